"""Who holds which device now. Pure: no I/O, no clock, no queue.

A claim is held by one call, from the moment it may use the device until nothing of it can any more.
Claims are in memory alone: a node that starts again has destroyed the containers of the one before it
before it hands anything out, so it begins with all devices free.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import NamedTuple

from skerry.errors import Bug
from skerry.spec.device import SHARES, Device, DeviceClaim, DeviceMode


class Held(NamedTuple):
    """A claim that was granted."""

    number: int
    device: Device
    claim: DeviceClaim
    who: str
    since: float

    def environment(self) -> dict[str, str]:
        """Returns what a call that holds it finds in its environment: the device's own, and its part.

        SKERRY_DEVICE is its id; SKERRY_DEVICE_MEMORY_BYTES, where the device's memory is known, is what
        of it the call asked for. Nothing but the device itself keeps a call to that.
        """
        found = self.device.env | {"SKERRY_DEVICE": self.device.id}
        if self.claim.mode is DeviceMode.SHARED:
            found["SKERRY_DEVICE_SHARE"] = f"{self.claim.shares / SHARES:g}"
        if self.device.memory_bytes is not None:
            part = self.device.memory_bytes * self.claim.shares // SHARES
            found["SKERRY_DEVICE_MEMORY_BYTES"] = str(part)
        return found


class Ledger:
    """Invariants: of each device at most SHARES are held; who holds one exclusively is alone there."""

    def __init__(self, devices: Iterable[Device] = ()) -> None:
        self.devices = {device.id: device for device in devices}
        self.granted = 0
        self.seconds: dict[str, float] = dict.fromkeys(self.devices, 0.0)  # held, by device
        self._held: dict[int, Held] = {}
        self._by_device: dict[str, dict[int, Held]] = {name: {} for name in self.devices}
        self._numbers = itertools.count(1)

    def named(self, name: str) -> list[Device]:
        """Returns the devices that a call may ask for by that name."""
        return [device for device in self.devices.values() if device.name == name]

    def shares_of(self, device: str) -> int:
        """Returns how many of a device's shares are held."""
        return sum(held.claim.shares for held in self._by_device[device].values())

    def holders(self, device: str) -> list[Held]:
        """Returns who holds a device, or parts of it, the longest first."""
        return list(self._by_device[device].values())

    @property
    def held(self) -> list[Held]:
        """Every claim that is held, the oldest first."""
        return list(self._held.values())

    def find(
        self, claim: DeviceClaim, prefer: Callable[[Device], bool] = lambda _device: False
    ) -> Device | None:
        """Returns a device that has room for the claim now.

        A shared claim goes where the least room stays: so devices stay whole for those who want one
        whole. Among equals one that is preferred comes first.
        """
        fitting = [device for device in self.named(claim.name) if self._fits(device, claim)]
        return min(
            fitting,
            key=lambda one: (-self.shares_of(one.id), not prefer(one)),
            default=None,
        )

    def take(self, device: Device, claim: DeviceClaim, who: str, now: float) -> Held:
        """Grants the claim; Bug if the device has no room for it."""
        if device.name != claim.name or not self._fits(device, claim):
            raise Bug(f"device {device.id} was given out though it has no room")
        held = Held(next(self._numbers), device, claim, who, now)
        self._held[held.number] = self._by_device[device.id][held.number] = held
        self.granted += 1
        return held

    def free(self, held: Held, now: float) -> bool:
        """The holder uses it no more; False if it was free already."""
        if self._held.pop(held.number, None) is None:
            return False
        del self._by_device[held.device.id][held.number]
        self.seconds[held.device.id] += max(0.0, now - held.since)
        return True

    def check_invariants(self) -> None:
        """Raises Bug unless the invariants hold."""
        for name, holders in self._by_device.items():
            if self.shares_of(name) > SHARES:
                raise Bug(f"more of device {name} is held than there is")
            modes = [held.claim.mode for held in holders.values()]
            if DeviceMode.EXCLUSIVE in modes and len(modes) > 1:
                raise Bug(f"device {name} is held exclusively, and not alone")
        if sum(len(holders) for holders in self._by_device.values()) != len(self._held):
            raise Bug("the ledger of devices has lost count")

    def _fits(self, device: Device, claim: DeviceClaim) -> bool:
        return self.shares_of(device.id) + claim.shares <= SHARES
