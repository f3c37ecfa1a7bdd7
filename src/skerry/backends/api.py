"""The seam between the node and whatever isolates: one screen, two nouns.

A backend makes instances of one isolation kind on this host. An instance is a live thing with a
guest agent inside; commands, files and terminals are frames on the channel that `open_channel`
returns, the same for every kind. Lifecycle: `create` returns a running instance or raises and
leaves nothing; `record()` is small JSON from which `recover` finds it again after a restart of the
node (also if only half of it is left, so that it can be destroyed); `destroy` may be called twice,
after a crash, and while another call runs, and returns when no process, mount, cgroup, interface or
file of the instance is left. A backend never raises "not supported": it lacks the protocol.
Errors: SandboxFailed (what is inside is at fault), Unavailable and StorageFailed (the platform is),
Overloaded (no room). Conformance: `skerry.testing.conformance`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from skerry.spec.device import DeviceNode
from skerry.spec.layers import LayerFile, RootfsPlan
from skerry.spec.sandbox import CpuClass, Usage


class Capabilities(msgspec.Struct, frozen=True):
    """Plain facts of a backend on this host."""

    isolation: str  # "container", "microvm", "fullvm"
    disk_limit: bool
    snapshot: bool
    cgroup: str  # "v1", "v2", "none"


class Health(msgspec.Struct, frozen=True):
    """Whether a backend can work here; if not, `reason` says what to do."""

    usable: bool
    reason: str = ""
    facts: dict[str, str] = {}


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What an instance had written at one moment. It outlives the instance, until `drop_view`.

    `used_bytes` counts against the disk limit of an instance that is made from it.
    """

    name: str
    layers: tuple[LayerFile, ...]  # below it, lowest first
    uid_base: int
    used_bytes: int = 0
    frozen_seconds: float = 0.0


class CreateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What an instance is made from; all bounds were checked by `SandboxSpec.check`."""

    instance_id: str
    rootfs: RootfsPlan
    hostname: str
    cpu: float
    memory_bytes: int
    pids: int
    nofile: int
    shm_bytes: int
    disk_bytes: int | None = None
    env: dict[str, str] = {}
    cpu_class: CpuClass = CpuClass.LATENCY_SENSITIVE
    cpu_weight: int = 100
    cpu_burst: float = 0.0
    detached: bool = False  # stays if the node goes for good; others end some time after it
    readonly: tuple[str, ...] = ()  # paths inside that nobody there can change
    hidden: tuple[str, ...] = ()  # paths inside that are empty for everybody there
    devices: tuple[DeviceNode, ...] = ()  # what it sees below /dev beside the usual
    cells: int = 0  # above 0: a function container, with so many cells, at most 32
    view: View | None = None  # it begins with what that holds; `rootfs` has the same layers


class CellLimits(msgspec.Struct, frozen=True):
    """What all that runs in a cell may have together, its files included."""

    memory_bytes: int
    pids: int


class CellUsage(msgspec.Struct, frozen=True):
    """What was used in a cell since it was opened."""

    memory_bytes: int = 0
    memory_peak_bytes: int = 0  # v2 before Linux 6.12: of all that was ever in it
    cpu_us: int = 0
    oom_kills: int = 0
    pids_refused: int = 0  # forks beyond a limit


class Record(msgspec.Struct, frozen=True):
    """Enough to find an instance after a restart; `data` is the backend's own, versioned."""

    backend: str
    version: int
    data: dict[str, Any]


class Exit(msgspec.Struct, frozen=True):
    """How an instance's first process ended."""

    status: int | None = None
    signal: int | None = None


class Upper(msgspec.Struct, frozen=True):
    """A consistent view of what an instance wrote, as host directories readable by the node.

    `path` holds an overlay upper directory (whiteouts are 0:0 character devices owned by host root);
    ids in it are `uid_base` + the id seen inside. `lowers` are the layers below, topmost first.
    """

    path: str
    uid_base: int
    lowers: tuple[str, ...]
    frozen_seconds: float


class Reclaimed(msgspec.Struct, frozen=True):
    """Memory that an instance gave back: by how much its use shrank, and how long that took.

    What it takes in compressed swap is not in `bytes`.
    """

    bytes: int = 0
    seconds: float = 0.0


class Instance(Protocol):
    """A live thing that a backend made."""

    async def open_channel(self, factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        """Connects to the guest agent; the newest connection wins."""

    async def wait(self) -> Exit:
        """Returns when the instance has ended by itself or was destroyed."""

    async def usage(self) -> Usage:
        """Returns what it has used since it was made."""

    async def destroy(self) -> None:
        """Leaves nothing of the instance behind; idempotent."""

    def record(self) -> Record:
        """Returns the record from which `recover` finds it."""


class Backend(Protocol):
    """Makes instances of one isolation kind on this host."""

    @property
    def capabilities(self) -> Capabilities:
        """Facts, valid after `start`."""

    async def start(self) -> None:
        """Brings up what instances share (launcher, pools); Unavailable if it cannot."""

    async def close(self, *, keep_instances: bool) -> None:
        """Ends the shared parts; with `keep_instances` live ones stay for a later `recover`."""

    async def probe(self) -> Health:
        """Says whether it can work here, and why not, in well under a second."""

    async def create(self, request: CreateRequest, /) -> Instance:
        """Makes a running instance, or raises and leaves nothing."""

    async def recover(self, record: Record, /) -> Instance | None:
        """Finds a live instance again; None (and nothing left of it) if it is gone."""


@runtime_checkable
class Attended(Protocol):
    """A backend with processes of its own beside the node, whose descriptors may run out."""

    def daemons(self) -> tuple[tuple[str, int], ...]:
        """Returns a name and a process id for each that runs now."""


@runtime_checkable
class Sweepable(Protocol):
    """A backend that can hold instances which no record knows, after a crash of the node."""

    async def sweep(self) -> list[str]:
        """Destroys what no `recover` claimed; call it once, after them. A line says what each was."""


@runtime_checkable
class Gauged(Protocol):
    """A backend that tells how its pools and mounts stand."""

    def gauges(self) -> dict[str, float]:
        """Returns readings by name; the names are few and fixed."""


class BlobSession(NamedTuple):
    """A FUSE session below which data blobs of verified layers appear, and a copy of its descriptor."""

    descriptor: int  # the receiver closes it
    fresh: bool  # nobody serves it yet; layers that read from an earlier one give errors


@runtime_checkable
class Lazy(Protocol):
    """A backend that mounts layers whose data blobs a process of the node's serves on demand."""

    async def blob_session(self, held: int | None, /) -> BlobSession:
        """Returns the session; `held` is a copy that the node has, should the backend have lost it."""


@runtime_checkable
class Snapshotable(Protocol):
    """An instance whose writes can be read consistently from the host."""

    def snapshot(self) -> AbstractAsyncContextManager[Upper]:
        """Freezes, takes a view, thaws; the view lives as long as the context."""


@runtime_checkable
class Viewable(Protocol):
    """An instance of a Viewer."""

    async def view(self, name: str, /) -> View:
        """Freezes, takes a view under that name, thaws. A paused instance stays paused.

        Everything written before the call is in it, nothing written after it.
        """


@runtime_checkable
class Viewer(Protocol):
    """A backend whose instances can be looked at, and copied, as they were at one moment.

    Only where `capabilities.snapshot` says so: elsewhere a view would have to stand still.
    """

    def claim_views(self, views: Iterable[View], /) -> None:
        """Takes note of views of an earlier process; what nobody claims goes with `sweep`."""

    def open_view(self, view: View, /) -> AbstractAsyncContextManager[Upper]:
        """Gives a view's directories for the block; Unavailable if it is lost."""

    async def drop_view(self, view: View, /) -> None:
        """Leaves nothing of it; idempotent."""


@runtime_checkable
class Pausable(Protocol):
    """An instance that can stand still without losing anything."""

    async def pause(self) -> Reclaimed:
        """All its processes are stopped when this returns; idempotent.

        Its memory was given back as far as the host can take it; the same answer when repeated.
        """

    async def resume(self) -> None:
        """They run again when this returns; idempotent. Memory may still be coming back."""


@runtime_checkable
class Reclaimable(Protocol):
    """An instance that can give memory back while it runs."""

    async def reclaim(self, max_bytes: int, /) -> Reclaimed:
        """Gives back up to that much, which comes again when it is used. Raises nothing."""


@runtime_checkable
class Celled(Protocol):
    """An instance that was asked for with cells. These calls take microseconds and do not wait."""

    @property
    def cells(self) -> int:
        """How many it has."""

    def open_cell(self, cell: int, limits: CellLimits, /) -> bool:
        """Sets limits of an empty cell and begins its counts anew.

        False if what earlier calls left in its group takes more than half of that memory, or more
        than 8 MiB of what nothing explains: another cell serves, and the container has had its day.
        Raises InvalidRequest for a cell that is not there, Unavailable if it cannot be done.
        """

    def cell_usage(self, cell: int, /) -> CellUsage:
        """Returns what was used since it was opened."""

    def cell_residue(self, cell: int, /) -> int:
        """Returns bytes that its group holds beyond page cache."""
