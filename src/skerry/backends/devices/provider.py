"""The seam of devices: a provider looks at the host and says which there are, or why none.

A provider reads files; it loads no library of a vendor, starts nothing and opens no device. One that
fails to understand what it reads says so in `reason`: a node without its GPUs is a node all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from skerry.errors import InvalidRequest
from skerry.spec.device import Device


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What one provider found. `reason` says why there is nothing, or what was left out."""

    provider: str
    devices: tuple[Device, ...] = ()
    reason: str = ""


class DeviceProvider(Protocol):
    """Finds the devices of one vendor, or of one list."""

    @property
    def name(self) -> str:
        """Its name in configurations and reports."""

    def probe(self) -> Found:
        """Looks, in well under a second; raises nothing."""


class Inventory(msgspec.Struct, frozen=True):
    """All that was found on a host, and by whom."""

    found: tuple[Found, ...] = ()

    @property
    def devices(self) -> tuple[Device, ...]:
        """Every device, in the order of the providers."""
        return tuple(device for one in self.found for device in one.devices)


def take_stock(providers: Iterable[DeviceProvider]) -> Inventory:
    """Asks each provider. A device whose id was found before, or that is no device, is left out."""
    seen: set[str] = set()
    all_found = []
    for provider in providers:
        found = provider.probe()
        good, bad = [], [found.reason] if found.reason else []
        for device in found.devices:
            try:
                device.check()
            except InvalidRequest as error:
                bad.append(error.message)
                continue
            if device.id in seen:
                bad.append(f"device {device.id} was found before")
                continue
            seen.add(device.id)
            good.append(device)
        all_found.append(Found(provider=provider.name, devices=tuple(good), reason="; ".join(bad)))
    return Inventory(tuple(all_found))
