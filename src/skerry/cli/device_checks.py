"""Devices for function calls: which there are, who found them, and why not (docs/guide/functions.md)."""

from __future__ import annotations

from skerry.backends.devices.listed import DevicesConfig
from skerry.backends.devices.provider import Found, take_stock
from skerry.cli.findings import Check
from skerry.cli.words import size
from skerry.spec.device import Device

NAME = "devices"


def devices_check(config: DevicesConfig | None, root: str = "") -> Check:
    """Says what each provider finds. A host without a GPU is a host all the same."""
    found = take_stock((config or DevicesConfig()).all_providers(root)).found
    told = "; ".join(_told(one) for one in found) or "none is looked for"
    if any(one.reason and one.devices for one in found) or any(
        one.reason and one.provider == "listed" for one in found
    ):
        return Check(
            NAME, "warning", told, "function calls get only the others",
            "the driver, or [devices] in the node's configuration",
        )  # fmt: skip
    if not any(one.devices for one in found):
        return Check(
            NAME, "note", told, "function calls that ask for a GPU are refused here",
            "a driver, or [[devices.listed]] in the node's configuration",
        )  # fmt: skip
    return Check(NAME, "ok", told)


def _told(found: Found) -> str:
    devices = ", ".join(_one(device) for device in found.devices) or "none"
    return f"{found.provider}: {devices}" + (f" ({found.reason})" if found.reason else "")


def _one(device: Device) -> str:
    memory = "" if device.memory_bytes is None else f" {size(device.memory_bytes)}"
    model = f" {device.model}" if device.model else ""
    return f"{device.name} {device.id}{model}{memory}"
