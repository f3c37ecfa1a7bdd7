"""Devices of a node that function calls may ask for: what a device is, and what a call asks.

A device is what one exclusive call holds whole: a GPU, or one partition of a GPU (MIG) where the
operator has made some. Nothing here says how much a program really takes: shares are counted, and
only the hardware (partitions) keeps what was counted.
"""

from __future__ import annotations

import math
import re
from enum import StrEnum

import msgspec

from skerry.errors import InvalidRequest

SHARES = 1000  # a device has that many; shares are counted in whole ones
NODES_MAX = 32  # of one device; the launcher takes no more
# Below /dev, at most one directory deep, as the launcher takes it.
_NODE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,30}(?:/[A-Za-z0-9_-][A-Za-z0-9._-]{0,30})?")
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
# What every sandbox has there already.
_TAKEN = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "fd", "stdin", "stdout"}
_TAKEN |= {"stderr", "shm", "pts", "mqueue"}
_MEM_MAJOR = 1
_MEM_HARMLESS = frozenset((3, 5, 7, 8, 9))  # null, zero, full, random, urandom; not mem, port, kmsg


class DeviceMode(StrEnum):
    """How a call holds a device."""

    EXCLUSIVE = "exclusive"  # the whole device: nobody else's call runs on it meanwhile
    SHARED = "shared"  # a share of its memory: others may hold the rest


class DeviceClaim(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A device that a call needs: any one of that name. It holds it while its run step runs.

    So of a `compile_run` the program has it, and not the compiler.
    """

    name: str = "gpu"
    mode: DeviceMode = DeviceMode.EXCLUSIVE
    share: float | None = None  # of the device's memory, 0.001 to 1; with "shared", and only there

    @property
    def shares(self) -> int:
        """How many of a device's SHARES it takes; what is between two counts as the larger."""
        if self.mode is DeviceMode.EXCLUSIVE or self.share is None:
            return SHARES
        return max(1, min(SHARES, math.ceil(round(self.share * SHARES, 6))))

    def check(self) -> DeviceClaim:
        """Returns itself if it makes sense; raises InvalidRequest naming what does not."""
        if _NAME.fullmatch(self.name) is None:
            raise InvalidRequest(f"device: {self.name[:80]!r} is no device's name")
        if self.mode is DeviceMode.EXCLUSIVE:
            if self.share is not None:
                raise InvalidRequest("device.share: an exclusive call holds the whole device")
        elif self.share is None or not 1 / SHARES <= self.share <= 1:
            raise InvalidRequest("device.share: a shared call asks for 0.001 to 1 of the memory")
        return self


class DeviceNode(msgspec.Struct, frozen=True, order=True):
    """A character device as it appears inside: its name below /dev, and its numbers."""

    name: str
    major: int
    minor: int

    def check(self) -> DeviceNode:
        """Returns itself if a container may be given it; raises InvalidRequest."""
        if _NODE_NAME.fullmatch(self.name) is None or self.name.split("/")[0] in _TAKEN:
            raise InvalidRequest(f"device node {self.name!r}: no name below /dev, or one in use")
        if not (1 <= self.major < 1 << 12 and 0 <= self.minor < 1 << 20):
            raise InvalidRequest(f"device node {self.name}: {self.major}:{self.minor} is no device")
        if self.major == _MEM_MAJOR and self.minor not in _MEM_HARMLESS:
            raise InvalidRequest(f"device node {self.name}: memory of the host, given to nobody")
        return self


class Device(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A device that a provider found. `id` stays the same over restarts of the node."""

    id: str
    name: str = "gpu"  # by which calls ask for it; several devices have one name
    provider: str
    model: str = ""
    nodes: tuple[DeviceNode, ...] = ()
    env: dict[str, str] = {}  # set in calls that hold it
    memory_bytes: int | None = None  # None: the provider cannot tell
    parent: str | None = None  # of a partition: the id of the whole

    def check(self) -> Device:
        """Returns itself if a call could be given it; raises InvalidRequest."""
        from skerry.spec.sandbox import check_env

        if _ID.fullmatch(self.id) is None:
            raise InvalidRequest(f"device {self.id!r}: an id is of letters, digits and . _ : -")
        if _NAME.fullmatch(self.name) is None:
            raise InvalidRequest(f"device {self.id}: {self.name[:80]!r} is no device's name")
        if not 1 <= len(self.nodes) <= NODES_MAX:
            raise InvalidRequest(f"device {self.id}: between 1 and {NODES_MAX} device nodes")
        if len({node.check().name for node in self.nodes}) != len(self.nodes):
            raise InvalidRequest(f"device {self.id}: a device node is named twice")
        if self.memory_bytes is not None and self.memory_bytes <= 0:
            raise InvalidRequest(f"device {self.id}: memory must be positive")
        check_env(self.env)
        return self


class DeviceUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which device a call had, and for how long: while its run step ran, not while it compiled."""

    id: str
    name: str
    mode: DeviceMode
    share: float = 1.0
    queued_s: float = 0.0  # it waited for a device
    held_s: float = 0.0
