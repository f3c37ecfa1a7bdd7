"""Typed requests to the launcher (native/PROTOCOL.md, "Launcher"); `replies` is what it answers.

A request's `encode(request_id)` is one packet. Attributes have the page's names in lower case;
repeated fields are tuples of that name. Plans are complete: the launcher knows neither cgroup versions
nor policy, only paths, ids and steps.
"""

from __future__ import annotations

from typing import ClassVar, Final

from skerry.errors import InvalidRequest
from skerry.wire.fields import Body, Kind, Part, flag, number, several, text
from skerry.wire.fields import raw as raw_part
from skerry.wire.frames import LauncherFrame, Tag, encode_frame
from skerry.wire.guest_cells import CELLS_MAX
from skerry.wire.replies import PID_MAX

UID_MAX: Final = (1 << 32) - 2
NUMBER64_MAX: Final = (1 << 64) - 1

TASKS_MAX: Final = 3 * (1 + CELLS_MAX)
FUNCTION: Final = 1  # PROFILE: of a container with cells; absent or 0: of a sandbox
_BYTES_MAX: Final = (1 << 63) - 1
MEMORY_WORK_S: Final = 7.5  # Reclaim and Prefetch answer a little later at the latest

_INSTANCE: Final = text("instance", Tag.INSTANCE)
_SLOT: Final = number("slot", Tag.SLOT, 0, NUMBER64_MAX)
_PROFILE: Final = number("profile", Tag.PROFILE, 0, 1, optional=True)
_STEPS: Final = several("step", Tag.STEP, Kind.TEXTS)


class Request(Body, frozen=True):
    """Base of all requests; `CODE` is the frame type."""

    CODE: ClassVar[LauncherFrame]

    def encode(self, request_id: int) -> bytes:
        """Returns the packet; raises InvalidRequest if a value or the whole cannot be sent."""
        if not 0 < request_id < 1 << 32:
            raise InvalidRequest(f"request id {request_id} is not within 1..2^32-1")
        return encode_frame(self.CODE, 0, request_id, self.payload())


class Status(Request, frozen=True):
    """Asks what the launcher is and holds; answered with a page of `StatusReply`."""

    CODE = LauncherFrame.STATUS
    PARTS = (number("offset", Tag.OFFSET, optional=True),)
    offset: int | None = None  # of the page, as the one before named it


class LayerMount(Request, frozen=True, kw_only=True):
    """Mounts a layer; idempotent by id."""

    CODE = LauncherFrame.LAYER_MOUNT
    PARTS = (
        text("layer", Tag.LAYER),
        text("path", Tag.PATH),
        text("device", Tag.DEVICE, optional=True),
    )
    layer: str
    path: str
    device: str | None = None


class LayerUnmount(Request, frozen=True):
    """Unmounts a layer; fails with EBUSY while an instance uses it."""

    CODE = LauncherFrame.LAYER_UNMOUNT
    PARTS = (text("layer", Tag.LAYER),)
    layer: str


class UpperOpen(Request, frozen=True, kw_only=True):
    """Opens the store of upper directories; answered with `UpperReply`."""

    CODE = LauncherFrame.UPPER_OPEN
    PARTS = (text("upper", Tag.UPPER), text("path", Tag.PATH))
    upper: str  # "btrfs", "dir"
    path: str


class SlotMake(Request, frozen=True, kw_only=True):
    """Makes a slot: its namespaces and what the steps say.

    With `agent_group` it holds a cgroup namespace rooted in the groups named here, so that START
    need not make one and no host path shows inside.
    """

    CODE = LauncherFrame.SLOT_MAKE
    PARTS = (
        _SLOT,
        number("uid_base", Tag.UID_BASE, 0, UID_MAX),
        number("owner_uid", Tag.OWNER_UID, 0, UID_MAX),
        _STEPS,
        text("agent_group", Tag.AGENT_GROUP, optional=True),
        several("tasks", Tag.TASKS, Kind.TEXTS),
        _PROFILE,
    )
    slot: int
    uid_base: int
    owner_uid: int
    step: tuple[str, ...] = ()
    agent_group: str | None = None
    tasks: tuple[str, ...] = ()
    profile: int | None = None


class SlotDrop(Request, frozen=True, kw_only=True):
    """Destroys a slot and does the steps."""

    CODE = LauncherFrame.SLOT_DROP
    PARTS = (_SLOT, _STEPS)
    slot: int
    step: tuple[str, ...] = ()


class StartPlan(Request, frozen=True, kw_only=True):
    """Starts an instance in a slot; answered with `StartReply`."""

    CODE = LauncherFrame.START
    PARTS = (
        _INSTANCE,
        _SLOT,
        several("layer", Tag.LAYER, Kind.TEXTS),
        text("hostname", Tag.HOSTNAME),
        number("disk_bytes", Tag.DISK_BYTES, optional=True),
        number("shm_bytes", Tag.SHM_BYTES),
        _STEPS,
        text("agent_group", Tag.AGENT_GROUP),
        text("work_group", Tag.WORK_GROUP, optional=True),
        several("tasks", Tag.TASKS, Kind.TEXTS),
        text("oom_file", Tag.OOM_FILE, optional=True),
        number("oom_kind", Tag.OOM_KIND, 0, 2),
        text("socket", Tag.SOCKET),
        raw_part("config", Tag.CONFIG),
        text("upper_from", Tag.UPPER_FROM, optional=True),
        number("uid_base", Tag.UID_BASE, 0, UID_MAX, optional=True),
        several("readonly", Tag.READONLY, Kind.TEXTS),
        several("hidden", Tag.HIDDEN, Kind.TEXTS),
        several("node", Tag.NODE, Kind.TEXTS),
        _PROFILE,
    )
    instance: str
    slot: int
    layer: tuple[str, ...]  # ids, lowest first
    hostname: str
    disk_bytes: int | None = None  # None or 0: no limit
    shm_bytes: int
    step: tuple[str, ...] = ()  # done before the clone
    agent_group: str  # cgroup2 directory for the clone
    work_group: str | None = None  # cgroup2 directory handed as descriptor 6
    tasks: tuple[str, ...] = ()  # v1 `tasks` files; then those of each cell
    oom_file: str | None = None
    oom_kind: int = 0  # 0 none, 1 v1 memory.oom_control, 2 v2 memory.events
    socket: str
    config: bytes  # AgentConfig.payload(), without tasks and oom
    upper_from: str | None = None  # an instance or a snapshot: its upper is copied
    uid_base: int | None = None  # of the ids of the files there; None: the slot's
    readonly: tuple[str, ...] = ()  # inside
    hidden: tuple[str, ...] = ()  # likewise
    node: tuple[str, ...] = ()  # "NAME MAJOR:MINOR": character devices below /dev
    profile: int | None = None


class Stop(Request, frozen=True, kw_only=True):
    """Ends an instance and leaves nothing of it; answered with `StopReply`."""

    CODE = LauncherFrame.STOP
    PARTS = (
        _INSTANCE,
        several("read", Tag.READ, Kind.TEXTS),
        _STEPS,
        flag("keep_upper", Tag.KEEP_UPPER),
    )
    instance: str
    read: tuple[str, ...] = ()  # files whose contents come back
    step: tuple[str, ...] = ()
    keep_upper: bool = False


class Adopt(Request, frozen=True, kw_only=True):
    """Gives an instance that outlived a launcher to this one; its slot is not reused."""

    CODE = LauncherFrame.ADOPT
    PARTS = (
        _INSTANCE,
        _SLOT,
        number("pid", Tag.PID, 1, PID_MAX),
        text("agent_group", Tag.AGENT_GROUP),
        text("work_group", Tag.WORK_GROUP, optional=True),
        text("socket", Tag.SOCKET),
    )
    instance: str
    slot: int
    pid: int
    agent_group: str
    work_group: str | None = None
    socket: str


class Freeze(Request, frozen=True):
    """Answered when every process of the instance stands still; at most 10 s."""

    CODE = LauncherFrame.FREEZE
    PARTS = (_INSTANCE,)
    instance: str


class Thaw(Request, frozen=True):
    """Undoes Freeze."""

    CODE = LauncherFrame.THAW
    PARTS = (_INSTANCE,)
    instance: str


class Reclaim(Request, frozen=True, kw_only=True):
    """Does the steps, then moves up to `bytes` of the instance's memory to swap: `MovedReply`."""

    CODE = LauncherFrame.RECLAIM
    PARTS = (_INSTANCE, number("bytes", Tag.BYTES, 0, _BYTES_MAX), _STEPS)
    instance: str
    bytes: int
    step: tuple[str, ...] = ()


class Prefetch(Request, frozen=True, kw_only=True):
    """Reads back what is in swap within the first `bytes` of addresses: `MovedReply`."""

    CODE = LauncherFrame.PREFETCH
    PARTS = (_INSTANCE, number("bytes", Tag.BYTES, 0, _BYTES_MAX), _STEPS)
    instance: str
    bytes: int
    step: tuple[str, ...] = ()


class UpperDrop(Request, frozen=True):
    """Deletes an upper that Stop kept."""

    CODE = LauncherFrame.UPPER_DROP
    PARTS = (_INSTANCE,)
    instance: str


class UpperSnapshot(Request, frozen=True, kw_only=True):
    """Makes a read-only snapshot, named `text`, beside the uppers."""

    CODE = LauncherFrame.UPPER_SNAPSHOT
    PARTS = (_INSTANCE, text("text", Tag.TEXT))
    instance: str
    text: str


class Shutdown(Request, frozen=True):
    """Stops everything, unmounts and exits; the answer comes first."""

    CODE = LauncherFrame.SHUTDOWN


class Blobs(Request, frozen=True):
    """Asks for the FUSE session at /blobs; `BlobsReply` comes with a copy of its descriptor.

    One that the launcher has not, since an earlier one had it, may be sent along.
    """

    CODE = LauncherFrame.BLOBS


class AgentConfig(Body, frozen=True, kw_only=True):
    """What skerry-init reads from descriptor 7; the launcher adds `tasks`, `oom` and `profile`."""

    PARTS: ClassVar[tuple[Part, ...]] = (
        number("tasks", Tag.CFG_TASKS, 0, TASKS_MAX, optional=True),
        number("oom", Tag.CFG_OOM, 0, 2, optional=True),
        number("peer_uid", Tag.CFG_PEER_UID, 0, UID_MAX),
        number("nofile", Tag.CFG_NOFILE),
        several("env", Tag.CFG_ENV, Kind.WORDS),
        number("exec_deadline_ms", Tag.CFG_EXEC_DEADLINE_MS),
        number("max_ops", Tag.CFG_MAX_OPS),
        number("best_effort", Tag.CFG_BEST_EFFORT, 0, 1, optional=True),
        number("profile", Tag.CFG_PROFILE, 0, FUNCTION, optional=True),
        number("cells", Tag.CFG_CELLS, 0, CELLS_MAX, optional=True),
    )
    tasks: int | None = None
    oom: int | None = None
    peer_uid: int
    nofile: int
    env: tuple[bytes, ...] = ()  # "K=V", the default environment
    exec_deadline_ms: int = 10_000
    max_ops: int = 512
    best_effort: int | None = None  # 1: commands are scheduled as SCHED_IDLE
    profile: int | None = None
    cells: int | None = None
