"""One interface over cgroup v1 and v2. It only *plans*: STEP texts that the launcher executes.

Every slot has, below the group of its node (NODE = "skerry-" + the node's name):

    v1 hybrid   <memory>/NODE/slot-N  <pids>/NODE/slot-N  <cpu>/NODE/slot-N     limits; entered by
                writing to `tasks` before exec, because CLONE_INTO_CGROUP is cgroup2 only
                <unified>/NODE/slot-N/{agent,w}     kill, freeze, cpu time; no controller needed
    v2          <unified>/NODE/slot-N/{agent,w}     limits are on `w`, so the agent is never hit

CPU classes: the slot of a best-effort sandbox has its cpu group below a second root, NODE-idle,
whose `cpu.idle` is 1 (v1): so all of them together weigh 3 against 1024 for each other group or
process of the host, and whatever else becomes runnable takes the core at once (kernel,
sched-design-CFS and cgroup-v2 "cpu.idle"). In v2 a slot is one tree, and its agent must stay
responsive: there `w` is idle within the slot, and the slot has the least weight there is. A slot
keeps its class for life. A weight or a burst is written at hand-out.

The agent makes one group a command below `w`. Files that hold a count since the group was made are
read at hand-out and afterwards: what a sandbox used is the difference. Nothing here opens a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum
from typing import Protocol

import msgspec

PERIOD_US = 100_000
QUOTA_US_MIN = 1_000  # the kernel refuses less
WEIGHT_DEFAULT = 100  # of v2's cpu.weight, 1 to 10,000; v1's cpu.shares says 1,024 for it
CONTROLLERS = ("memory", "pids", "cpu")


class OomKind(IntEnum):
    """CFG_OOM of native/PROTOCOL.md: which file counts OOM kills."""

    NONE = 0
    V1 = 1
    V2 = 2


class Layout(msgspec.Struct, frozen=True):
    """Where this host's hierarchies are. `controllers` maps a v1 controller to its mount."""

    kind: str  # "v1", "v2", "none"
    unified: str | None
    controllers: dict[str, str] = {}
    memsw: bool = False  # v1: swap is accounted
    cpu_idle: bool = True  # groups can be made idle
    reason: str = ""  # why kind is "none"


class Limits(msgspec.Struct, frozen=True):
    """What a slot's groups are set to."""

    memory_bytes: int
    pids: int
    cpu: float
    weight: int = WEIGHT_DEFAULT
    burst: float = 0.0  # cores above `cpu`, for a period, from what was saved while idle
    best_effort: bool = False  # says which slots it fits; a slot's class is never written anew


class Counters(msgspec.Struct, frozen=True):
    """What a slot's groups say; counts since the groups were made."""

    memory_bytes: int = 0
    cache_bytes: int = 0  # of memory_bytes, what is page cache
    memory_peak_bytes: int = 0
    pids: int = 0
    oom_kills: int = 0
    cpu_us: int = 0
    swap_bytes: int = 0  # of its memory, what is in swap
    major_faults: int = 0  # pages that had to be read back


class SlotGroups(msgspec.Struct, frozen=True):
    """Everything that the launcher and the agent need to know of one slot's groups."""

    make: tuple[str, ...]
    drop: tuple[str, ...]
    agent: str
    work: str
    tasks: tuple[str, ...]
    oom_file: str
    oom_kind: OomKind
    readings: tuple[str, ...]  # paths, in the order that `parse` takes
    cell_tasks: tuple[str, ...] = ()  # of each cell as many as `tasks`


class Groups(Protocol):
    """The planner of one layout."""

    def slot(self, number: int, owner_uid: int, *, best_effort: bool = False) -> SlotGroups:
        """Plans a slot's directories and names its files. `drop` serves both classes."""

    def limit(self, number: int, old: Limits | None, new: Limits) -> tuple[str, ...]:
        """Plans the writes from the limits that the slot has (None: unknown) to new ones."""

    def reclaim(self, number: int, max_bytes: int, /) -> tuple[str, ...]:
        """Plans what the kernel is asked for before processes are gone through one by one."""

    def settle(self, number: int, /) -> tuple[str, ...]:
        """Plans the end of `reclaim`: what runs is not swapped out."""

    def parse(self, contents: tuple[bytes, ...]) -> Counters:
        """Reads the contents of the slot's `readings`; a file that is gone or odd counts as 0."""

    def roots(self) -> tuple[str, ...]:
        """Names the node's directories, which must exist before the launcher is started."""

    def prepare(self) -> tuple[tuple[str, str], ...]:
        """Names (file, text) to be written, in order, once the roots exist."""


def detect(mountinfo: str, exists: Callable[[str], bool], read: Callable[[str], str]) -> Layout:
    """Finds the layout in the text of /proc/self/mountinfo; `read` gives "" for a missing file.

    v2 is taken if it has the controllers, else v1 with a cgroup2 mount beside it.
    """
    unified, controllers = None, dict[str, str]()
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        words, rest = before.split(), after.split()
        if len(words) < 5 or len(rest) < 3 or words[3] != "/":
            continue
        if rest[0] == "cgroup2" and unified is None:
            unified = words[4]
        elif rest[0] == "cgroup":
            for option in rest[2].split(","):
                controllers.setdefault(option, words[4])
    if unified is None:
        return Layout("none", None, reason="no cgroup2 hierarchy is mounted: mount one")
    if set(CONTROLLERS) <= set(read(f"{unified}/cgroup.controllers").split()):
        return Layout("v2", unified)
    missing = [name for name in CONTROLLERS if name not in controllers]
    if missing:
        names = ", ".join(missing)
        return Layout("none", unified, reason=f"neither cgroup v1 nor v2 offers: {names}")
    memsw = exists(f"{controllers['memory']}/memory.memsw.limit_in_bytes")
    mounts = {name: controllers[name] for name in CONTROLLERS}
    return Layout("v1", unified, mounts, memsw, exists(f"{mounts['cpu']}/cpu.idle"))


def groups_of(layout: Layout, node: str) -> Groups:
    """Returns the planner for a layout whose kind is not "none"."""
    return V2(layout, node) if layout.kind == "v2" else V1(layout, node)


def quota_us(cpu: float) -> int:
    """Converts cores to microseconds of a period."""
    return max(QUOTA_US_MIN, math.ceil(cpu * PERIOD_US))


def burst_us(limits: Limits) -> int:
    """Converts the burst to microseconds; the kernel takes at most the quota."""
    return min(math.ceil(limits.burst * PERIOD_US), quota_us(limits.cpu))


def shares(weight: int) -> int:
    """Converts a weight of v2 to v1's shares; the kernel takes 2 at least."""
    return max(2, weight * 1024 // WEIGHT_DEFAULT)


def number_in(content: bytes) -> int:
    """Returns what a file of one number says; 0 for anything else."""
    text = content.strip()
    return int(text) if text.isdigit() else 0


def keyed(content: bytes, key: bytes) -> int:
    """Returns the number of a line that begins with the key; 0 without one."""
    for line in content.splitlines():
        name, _, value = line.partition(b" ")
        if name == key:
            return number_in(value)
    return 0


def _counters(contents: tuple[bytes, ...], cache: bytes) -> Counters:
    usage, peak, pids, oom, cpu, stat, *swap = contents
    return Counters(
        memory_bytes=number_in(usage),
        cache_bytes=keyed(stat, cache),
        memory_peak_bytes=number_in(peak),
        pids=number_in(pids),
        oom_kills=keyed(oom, b"oom_kill"),
        cpu_us=keyed(cpu, b"usage_usec"),
        swap_bytes=number_in(swap[0]) if swap else keyed(stat, b"swap"),
        major_faults=keyed(stat, b"pgmajfault"),
    )


def _quota(old: Limits | None, new: Limits, burst: str, quota: str) -> list[str]:
    """Plans quota and burst: the kernel refuses a burst above the quota, at any moment."""
    now, burst_now = (None, None) if old is None else (quota_us(old.cpu), burst_us(old))
    wanted, burst_wanted = quota_us(new.cpu), burst_us(new)
    steps = []
    if now != wanted:
        if burst_now != 0:
            steps.append(f"write {burst} 0")
        steps.append(f"write {quota}")
        burst_now = 0
    if burst_now != burst_wanted:
        steps.append(f"write {burst} {burst_wanted}")
    return steps


def memory_writes(old: int | None, new: int, *, memsw: bool) -> list[tuple[str, int]]:
    """Plans (file, value) of a v1 group: the memsw limit, which holds swap too, may never be lower."""
    if old == new:
        return []
    plain, swap = ("memory.limit_in_bytes", new), ("memory.memsw.limit_in_bytes", new)
    if not memsw:
        return [plain]
    if old is None:  # what it had may be lower or higher
        return [(swap[0], -1), plain, swap]
    return [plain, swap] if new < old else [swap, plain]


class V1:
    """Limits in v1 hierarchies, kill and freeze in cgroup2."""

    def __init__(self, layout: Layout, node: str) -> None:
        assert layout.unified is not None  # noqa: S101
        self._memsw = layout.memsw
        self._unified = f"{layout.unified}/skerry-{node}"
        self._of = {name: f"{path}/skerry-{node}" for name, path in layout.controllers.items()}
        # Where the cpu controller shares a hierarchy, a process has one group there for all limits.
        self._apart = self._of["cpu"] not in (self._of["memory"], self._of["pids"])
        self._idle = f"{self._of['cpu']}-idle"
        self._idle_write = "cpu.idle 1" if layout.cpu_idle else "cpu.shares 2"

    def roots(self) -> tuple[str, ...]:
        """One directory a hierarchy, and one for idle groups; controllers together share one."""
        idle = (self._idle,) if self._apart else ()
        return tuple(dict.fromkeys((*self._of.values(), *idle, self._unified)))

    def prepare(self) -> tuple[tuple[str, str], ...]:
        """Best-effort slots lie below a root that is idle, or else has the least shares."""
        file, _, text = self._idle_write.partition(" ")
        return ((f"{self._idle}/{file}", text),) if self._apart else ()

    def _cpu(self, number: int, *, best_effort: bool) -> str:
        return f"{self._idle if best_effort and self._apart else self._of['cpu']}/slot-{number}"

    def slot(self, number: int, owner_uid: int, *, best_effort: bool = False) -> SlotGroups:
        """Limit groups are root's; the cgroup2 subtree is the owner uid's, but not `agent`."""
        top = f"{self._unified}/slot-{number}"
        memory, pids = (f"{self._of[name]}/slot-{number}" for name in ("memory", "pids"))
        cpu = self._cpu(number, best_effort=best_effort)
        other = self._cpu(number, best_effort=not best_effort)
        limits = tuple(dict.fromkeys((memory, pids, cpu)))
        make = (
            *(f"mkdir {path} 0755 -1" for path in limits),
            f"mkdir {top} 0755 {owner_uid}",
            f"mkdir {top}/agent 0755 -1",
            f"mkdir {top}/w 0755 {owner_uid}",
        )
        made = [step.split()[1] for step in reversed(make)]
        here = best_effort and not self._apart
        # Who drops a slot of an earlier node does not know its class.
        return SlotGroups(
            make=(*make, f"write {cpu}/{self._idle_write}") if here else make,
            drop=tuple(f"rmdir {path}" for path in dict.fromkeys((*made, other))),
            agent=f"{top}/agent",
            work=f"{top}/w",
            tasks=tuple(f"{path}/tasks" for path in limits),
            oom_file=f"{memory}/memory.oom_control",
            oom_kind=OomKind.V1,
            readings=(
                f"{memory}/memory.usage_in_bytes",
                f"{memory}/memory.max_usage_in_bytes",
                f"{pids}/pids.current",
                f"{memory}/memory.oom_control",
                f"{top}/w/cpu.stat",
                f"{memory}/memory.stat",
            ),
        )

    def limit(self, number: int, old: Limits | None, new: Limits) -> tuple[str, ...]:
        """Writes what differs, and always restarts the peak."""
        memory, pids = (f"{self._of[name]}/slot-{number}" for name in ("memory", "pids"))
        cpu = self._cpu(number, best_effort=new.best_effort)
        before = None if old is None else old.memory_bytes
        writes = memory_writes(before, new.memory_bytes, memsw=self._memsw)
        steps = [f"write {memory}/{file} {value}" for file, value in writes]
        if old is None or old.pids != new.pids:
            steps.append(f"write {pids}/pids.max {new.pids}")
        if old is None:
            steps.append(f"write {cpu}/cpu.cfs_period_us {PERIOD_US}")
        steps += _quota(
            old, new, f"{cpu}/cpu.cfs_burst_us", f"{cpu}/cpu.cfs_quota_us {quota_us(new.cpu)}"
        )
        if (old is None or old.weight != new.weight) and (self._apart or not new.best_effort):
            steps.append(f"write {cpu}/cpu.shares {shares(new.weight)}")
        return (*steps, f"write {memory}/memory.max_usage_in_bytes 0")

    def reclaim(self, _number: int, _max_bytes: int, /) -> tuple[str, ...]:
        """Nothing: v1 can only empty a group, of pages that others use too (decision 19)."""
        return ()

    def settle(self, _number: int, /) -> tuple[str, ...]:
        """Nothing: memory and swap have one limit together."""
        return ()

    def parse(self, contents: tuple[bytes, ...]) -> Counters:
        """The OOM count is the line `oom_kill` of memory.oom_control."""
        return _counters(contents, b"cache")


class V2:
    """All in cgroup2; limits on `w`."""

    def __init__(self, layout: Layout, node: str) -> None:
        assert layout.unified is not None  # noqa: S101
        self._mount = layout.unified
        self._node = f"{layout.unified}/skerry-{node}"

    def roots(self) -> tuple[str, ...]:
        """The node's one directory."""
        return (self._node,)

    def prepare(self) -> tuple[tuple[str, str], ...]:
        """Controllers are handed down from the root to the slots."""
        text = "+memory +pids +cpu"
        files = (f"{self._mount}/cgroup.subtree_control", f"{self._node}/cgroup.subtree_control")
        return tuple((path, text) for path in files)

    def slot(self, number: int, owner_uid: int, *, best_effort: bool = False) -> SlotGroups:
        """`w` gets the controllers; its limit files stay root's, so the agent cannot lift them."""
        top = f"{self._node}/slot-{number}"
        idle = (f"write {top}/cpu.weight 1", f"write {top}/w/cpu.idle 1") if best_effort else ()
        make = (
            f"mkdir {top} 0755 {owner_uid}",
            f"write {top}/cgroup.subtree_control +memory +pids +cpu",
            f"mkdir {top}/agent 0755 -1",
            f"mkdir {top}/w 0755 {owner_uid}",
            *idle,
        )
        work = f"{top}/w"
        return SlotGroups(
            make=make,
            drop=(f"rmdir {work}", f"rmdir {top}/agent", f"rmdir {top}"),
            agent=f"{top}/agent",
            work=work,
            tasks=(),
            oom_file=f"{work}/memory.events",
            oom_kind=OomKind.V2,
            readings=(
                f"{work}/memory.current",
                f"{work}/memory.peak",
                f"{work}/pids.current",
                f"{work}/memory.events",
                f"{work}/cpu.stat",
                f"{work}/memory.stat",
                f"{work}/memory.swap.current",
            ),
        )

    def limit(self, number: int, old: Limits | None, new: Limits) -> tuple[str, ...]:
        """Writes what differs; swap is off, as memsw is in v1."""
        top = f"{self._node}/slot-{number}"
        work = f"{top}/w"
        steps = []
        if old is None:
            steps.append(f"write {work}/memory.swap.max 0")
        if old is None or old.memory_bytes != new.memory_bytes:
            steps.append(f"write {work}/memory.max {new.memory_bytes}")
        if old is None or old.pids != new.pids:
            steps.append(f"write {work}/pids.max {new.pids}")
        quota = f"{work}/cpu.max {quota_us(new.cpu)} {PERIOD_US}"
        steps += _quota(old, new, f"{work}/cpu.max.burst", quota)
        if (old is None or old.weight != new.weight) and not new.best_effort:
            steps.append(f"write {top}/cpu.weight {new.weight}")
        return tuple(steps)

    def reclaim(self, number: int, max_bytes: int, /) -> tuple[str, ...]:
        """Opens swap, and has anonymous memory reclaimed: with this swappiness no page cache goes."""
        work = f"{self._node}/slot-{number}/w"
        return (
            f"write {work}/memory.swap.max max",
            f"write {work}/memory.reclaim {max_bytes} swappiness=200",
        )

    def settle(self, number: int, /) -> tuple[str, ...]:
        """Closes swap; what is there stays until it is needed."""
        return (f"write {self._node}/slot-{number}/w/memory.swap.max 0",)

    def parse(self, contents: tuple[bytes, ...]) -> Counters:
        """The peak is that of the group's life: the kernel resets it for single readers only."""
        return _counters(contents, b"file")
