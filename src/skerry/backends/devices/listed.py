"""Devices that the operator lists: what no provider finds, or what one finds otherwise than wanted."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field

from skerry.backends.devices.nvidia import Nvidia
from skerry.backends.devices.provider import DeviceProvider, Found
from skerry.errors import InvalidRequest
from skerry.spec.device import Device, DeviceNode
from skerry.spec.limits import GIB, MIB, parse_bytes

PROVIDERS = ("nvidia",)


@dataclass(frozen=True, kw_only=True)
class ListedDevice:
    """One device of the list.

    A node is the path of a character device on the host, and how it is named inside, below /dev, where
    that differs: "/dev/nvidia0", "/srv/dev/card:gpu0".
    """

    id: str
    nodes: tuple[str, ...]
    name: str = "gpu"  # by which calls ask for it
    model: str = ""
    memory: str | None = None  # e.g. "80GiB"; None: not known, and shares are told without bytes
    env: dict[str, str] = field(default_factory=dict)  # of calls that hold it


@dataclass(frozen=True, kw_only=True)
class DevicesConfig:
    """The node's devices. A listed one takes the place of one that is found under the same id."""

    providers: tuple[str, ...] = PROVIDERS  # that look; () for none
    listed: tuple[ListedDevice, ...] = ()
    waiting_max: int = 1024  # calls that wait for a device, of each name
    artifacts_bytes_max: int = GIB  # of compiled programs that wait for one

    def check(self) -> DevicesConfig:
        """Returns itself if it makes sense; raises InvalidRequest naming what does not."""
        for name in self.providers:
            if name not in PROVIDERS:
                raise InvalidRequest(
                    f"devices.providers: {name!r} is none of {', '.join(PROVIDERS)}"
                )
        if not 0 <= self.waiting_max <= 1_000_000:
            raise InvalidRequest("devices.waiting_max must be between 0 and a million")
        if not MIB <= self.artifacts_bytes_max <= 1 << 50:
            raise InvalidRequest("devices.artifacts_bytes_max must be at least 1 MiB")
        ids = [one.id for one in self.listed]
        if len(set(ids)) != len(ids):
            raise InvalidRequest("devices.listed: an id is there twice")
        for one in self.listed:
            if one.memory is not None:
                parse_bytes(one.memory)
            # All but the numbers, which only the host knows.
            names = [DeviceNode(inside(node)[1], 195, at) for at, node in enumerate(one.nodes)]
            Device(
                id=one.id, name=one.name, provider="listed", nodes=tuple(names), env=one.env
            ).check()  # fmt: skip
        return self

    def all_providers(self, root: str = "") -> tuple[DeviceProvider, ...]:
        """Returns who is to be asked, the list first."""
        found: list[DeviceProvider] = [Listed(self.listed)] if self.listed else []
        return (*found, *(Nvidia(root) for name in self.providers if name == Nvidia.name))


class Listed:
    """The provider of the list. A device of which a node is missing is left out, with the reason."""

    name = "listed"

    def __init__(self, listed: Sequence[ListedDevice]) -> None:
        self._listed = listed

    def probe(self) -> Found:
        """Returns the listed devices that are there now."""
        devices, odd = [], []
        for one in self._listed:
            try:
                nodes = tuple(node_of(text) for text in one.nodes)
            except (OSError, InvalidRequest) as error:
                odd.append(f"device {one.id}: {error}")
                continue
            devices.append(
                Device(
                    id=one.id, name=one.name, provider=self.name, model=one.model, nodes=nodes,
                    env=one.env, memory_bytes=None if one.memory is None else parse_bytes(one.memory),
                )
            )  # fmt: skip
        return Found(provider=self.name, devices=tuple(devices), reason="; ".join(odd))


def inside(text: str) -> tuple[str, str]:
    """Returns the path on the host, and the name below /dev inside."""
    path, colon, name = text.partition(":")
    if not path.startswith("/"):
        raise InvalidRequest(f"device node {text[:200]!r}: no path on the host")
    return path, name if colon else path.removeprefix("/dev/") if path.startswith("/dev/") else (
        os.path.basename(path)
    )


def node_of(text: str) -> DeviceNode:
    """Returns the node as it is inside; OSError if there is none, InvalidRequest if it is no device."""
    path, name = inside(text)
    found = os.stat(path)
    if not stat.S_ISCHR(found.st_mode):
        raise InvalidRequest(f"{path} is no character device")
    return DeviceNode(name, os.major(found.st_rdev), os.minor(found.st_rdev)).check()
