"""The leak census (decision 34): the global state of a host before and after, never only our names.

`take` reads processes, mount tables of all mount namespaces, cgroup directories of every hierarchy,
network namespaces, loop devices, unix sockets, descriptors of given processes, memfds, swap areas,
and given directories; `compare` says what is there afterwards that was not before, one explainable
line each.

Other programs come and go meanwhile. A process counts if it descends from this one, is a native
program, or is a Skerry daemon in the background; mount and network namespaces and memory files
count if such a process has them, a socket unless a process that does not count holds it. Another
Skerry on the same machine is told from ours by its launcher's arguments: if they name none of the
places given, that launcher, what descends from it and what lies below its directories and groups
is foreign, and so is another run of pytest. Without places every launcher counts.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from typing import ClassVar

import msgspec

from skerry.backends.shared import proc
from skerry.node import registry

SETTLE_S = 5.0
PATIENCE_S = 60.0
RUN = (
    "CENSUS_RUN"  # in the environment: tells what tests of one process started from what others did
)
_POLL_S = 0.05
_OURS = ("skerry-init", "skerry-spawn")


class Process(msgspec.Struct, frozen=True):
    """One process; `start` tells it from a later one of the same number."""

    pid: int
    start: int
    parent: int
    command: str


class Census(msgspec.Struct, frozen=True):
    """What was there."""

    processes: dict[tuple[int, int], Process]
    ours: frozenset[tuple[int, int]]  # descendants of this process and every native program
    mounts: frozenset[str]
    cgroups: frozenset[str]
    netns: frozenset[str]
    loops: frozenset[str]
    sockets: frozenset[str]
    memfds: frozenset[str]
    swaps: frozenset[str]
    descriptors: dict[int, dict[str, int]]
    files: frozenset[str]
    foreign: frozenset[str] = frozenset()  # prefixes of another Skerry's names


def take(
    *,
    pids_of_interest: tuple[int, ...] = (),
    places: tuple[str, ...] = (),
    own: tuple[str, ...] = (),
) -> Census:
    """Reads the state of this host; `places` are directories whose files are listed.

    What is ours is told by these and by `own`, directories whose files may stay.
    """
    processes = _processes()
    strangers, prefixes = _foreign(processes, (*places, *own))
    ours = {key for key in _ours(processes) if key[0] not in strangers}
    mine = {pid for pid, _ in ours} | {os.getpid()}
    netns, memfds, mounts = set(), set(), set()
    seen: set[str] = set()
    for pid in sorted(mine):
        namespace = proc.link(f"/proc/{pid}/ns/mnt")
        if namespace and namespace not in seen:
            seen.add(namespace)
            mounts |= _mounts(pid)
        netns.add(proc.link(f"/proc/{pid}/ns/net"))
        memfds |= _memfds(pid)
    return Census(
        processes=processes,
        ours=frozenset(ours),
        mounts=frozenset(mounts),
        cgroups=frozenset(_cgroups()),
        netns=frozenset((netns | _pinned(mounts)) - {""}),
        loops=frozenset(_loops()),
        sockets=frozenset(_sockets({p.pid for p in processes.values()} - mine)),
        memfds=frozenset(memfds),
        swaps=frozenset(_swaps()),
        descriptors={pid: descriptors(pid) for pid in pids_of_interest},
        files=frozenset(name for place in places for name in _files(place)),
        foreign=frozenset(prefixes),
    )


def compare(before: Census, after: Census) -> list[str]:
    """Returns a line for everything that `after` has and `before` has not."""
    out = []
    for key in sorted(after.ours - set(before.processes)):
        process = after.processes[key]
        if process.parent == 1 and process.command.endswith("(zombie)"):
            continue  # it has ended; collecting it is the host's init's to do
        out.append(
            f"process {process.pid} (child of {process.parent}) runs: {process.command[:200]}"
        )
    names = {
        "mount": (before.mounts, after.mounts),
        "cgroup directory": (before.cgroups, after.cgroups),
        "network namespace": (before.netns, after.netns),
        "loop device": (before.loops, after.loops),
        "unix socket": (before.sockets, after.sockets),
        "memory file": (before.memfds, after.memfds),
        "swap area or zram device": (before.swaps, after.swaps),
        "file": (before.files, after.files),
    }
    # /run/skerry must not hide /run/skerry-1.
    foreign = [re.compile(re.escape(f) + r"(?![\w.-])") for f in before.foreign | after.foreign]
    for name, (old, new) in names.items():
        mine = (item for item in sorted(new - old) if not any(f.search(item) for f in foreign))
        out += [f"{name} was not there before: {item}" for item in mine]
    for pid, counts in after.descriptors.items():
        for kind, count in sorted(counts.items()):
            had = before.descriptors.get(pid, {}).get(kind, 0)
            if count > had:
                out.append(f"process {pid} has {count} open descriptors of {kind}, had {had}")
    return out


class Watch:
    """A census before, and the comparison after.

    What ends by itself gets `SETTLE_S` to do so, from when it was seen first: a look may take
    longer than that on a busy machine, and what one look saw may be gone when it is over.
    """

    beside: ClassVar[frozenset[str]] = frozenset()
    """Directories of tests that run beside these in one run: what lies below them is foreign."""

    def __init__(self) -> None:
        self._pids: tuple[int, ...] = ()
        self._places: tuple[str, ...] = ()
        self._own: tuple[str, ...] = ()
        self._before = take()

    def watch(
        self,
        *,
        pids: tuple[int, ...] = (),
        places: tuple[str, ...] = (),
        own: tuple[str, ...] = (),
    ) -> None:
        """Begins anew, with descriptors of these processes and files below these places.

        With `places` or `own`, directories whose files may stay, another Skerry's are foreign.
        """
        self._pids, self._places, self._own = pids, places, own
        self._before = take(pids_of_interest=pids, places=places, own=own)

    def left(self, settle_s: float = SETTLE_S, *, others: tuple[str, ...] = ()) -> list[str]:
        """Returns what was left behind: what was there in every look for `settle_s` seconds.

        Or, once PATIENCE_S have passed, all that the last look saw, as where something left behind
        is made anew again and again. Lines that hold one of the words of `others` are not ours.
        """
        began = time.monotonic()
        seen: dict[str, float] = {}  # each line without its count, since when it has been there
        foreign = self.beside
        while True:
            after = take(pids_of_interest=self._pids, places=self._places, own=self._own)
            foreign |= (
                after.foreign
            )  # one that has just ended may have left its traces for a moment
            lines = compare(self._before, msgspec.structs.replace(after, foreign=foreign))
            lines = [line for line in lines if not any(word in line for word in others)]
            now = time.monotonic()
            seen = {name: seen.get(name, now) for name in map(_uncounted, lines)}
            if all(now - since >= settle_s for since in seen.values()):
                return lines
            if now - began > settle_s + PATIENCE_S:
                standing = [line for line in lines if now - seen[_uncounted(line)] >= settle_s]
                return standing or lines
            time.sleep(_POLL_S)


def _uncounted(line: str) -> str:
    return re.sub(r"has [0-9]+ open", "has open", line)


def descriptors(pid: int) -> dict[str, int]:
    """Counts the open descriptors of a process by kind: sockets, pipes, memfds, files by name."""
    counts: Counter[str] = Counter()
    for name in proc.names(f"/proc/{pid}/fd"):
        target = proc.link(f"/proc/{pid}/fd/{name}")
        counts[re.sub(r":?\[?[0-9]+\]?$", "", target) or "closed"] += 1
    return dict(counts)


def _processes() -> dict[tuple[int, int], Process]:
    found = {}
    for name in proc.names("/proc"):
        if not name.isdigit():
            continue
        text = proc.text(f"/proc/{name}/stat")
        comm, _, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        if len(fields) < 20 or int(fields[6]) & 0x0020_0000:  # PF_KTHREAD
            continue
        command = proc.text(f"/proc/{name}/cmdline").replace("\0", " ").strip()
        label = command or f"[{comm}]" + (" (zombie)" if fields[0] == "Z" else "")
        process = Process(int(name), int(fields[19]), int(fields[1]), label)
        found[process.pid, process.start] = process
    return found


def _is_skerry(process: Process) -> bool:
    """A native program, or a daemon of ours that has let go of its parent."""
    native = any(name in process.command for name in _OURS)
    return native or (process.parent == 1 and "skerry" in process.command)


def _ours(processes: dict[tuple[int, int], Process]) -> set[tuple[int, int]]:
    """Descendants of this process, native programs wherever they are, and their descendants."""
    native = {p.pid for p in processes.values() if _is_skerry(p)}
    below = _descendants(processes, {os.getpid()}) - {os.getpid()}
    found = below | _descendants(processes, native)
    return {key for key in processes if key[0] in found}


def _foreign(
    processes: dict[tuple[int, int], Process], places: tuple[str, ...]
) -> tuple[set[int], set[str]]:
    """Processes of another Skerry, and prefixes of what is its."""
    if not places:
        return set(), set()
    told = {p.pid: _arguments(p) for p in processes.values() if _is_skerry(p)}
    launchers = {pid for pid, words in told.items() if _is_below(words, places)}
    ours = _descendants(processes, {os.getpid()} | launchers)
    alive = {p.pid for p in processes.values()} - {1}
    heads, prefixes = _other_runs(processes)
    prefixes |= _other_nodes(places)
    # An agent says nothing of itself but by its group, and may have no launcher just now.
    heads |= {pid for pid in told if pid not in ours and _groups(pid) & prefixes}
    heads |= {pid for pid in told if pid not in ours and _run_of(pid) not in ("", _run_of_ours())}
    for process in processes.values():
        if process.pid not in told or process.pid in ours:
            continue
        words = told[process.pid]
        # An agent without a launcher is another test's if that lives, and a leak if nobody does.
        if words or process.parent in alive:
            heads.add(process.pid)
            prefixes |= {
                word for word in words if word.count("/") > 1 and "skerry-init" not in word
            }
            # A node's groups bear its name, and so does its compressed swap.
            groups = {word.rpartition("/")[2] for word in words if "/cgroup/" in word}
            prefixes |= {f"/{name}" for name in groups}
    strangers = _descendants(processes, heads)
    for pid in strangers:
        prefixes |= _groups(pid)
    return strangers, prefixes


def _groups(pid: int) -> set[str]:
    """The topmost groups of a process, if they are a Skerry's."""
    lines = proc.text(f"/proc/{pid}/cgroup").splitlines()
    names = {line.rpartition(":")[2].split("/")[1] for line in lines}
    return {f"/{name}" for name in names if name.startswith("skerry-")}


def _run_of(pid: int) -> str:
    """Which run of tests a process is of, if its environment says so."""
    words = proc.text(f"/proc/{pid}/environ").split("\0")
    return next((word.partition("=")[2] for word in words if word.startswith(f"{RUN}=")), "")


def _run_of_ours() -> str:
    return os.environ.get(RUN, "")


def _other_nodes(places: tuple[str, ...]) -> set[str]:
    """The directories and groups of the nodes of this host that have theirs elsewhere."""
    found = set()
    for name, node in registry.read_all().items():
        words = {node.state_dir, node.run_dir}
        if not _is_below(words, places):
            found |= {f"/skerry-{name}", f"/skerry-{name}-idle", *words}  # both of its cpu groups
    return found


def _other_runs(processes: dict[tuple[int, int], Process]) -> tuple[set[int], set[str]]:
    """Other runs of pytest that say where they keep their files, and these directories."""
    parents = {p.pid: p.parent for p in processes.values()}
    above, pid = set(), os.getpid()
    while pid and pid not in above:
        above.add(pid)
        pid = parents.get(pid, 0)
    found = {
        process.pid: match[1]
        for process in processes.values()
        if process.pid not in above
        and (match := re.search(r"pytest\b.* --basetemp[= ](\S+)", process.command))
    }
    return set(found), {place.rstrip("/") for place in found.values() if place.startswith("/")}


def _is_below(words: set[str], places: tuple[str, ...]) -> bool:
    return any(f"{word}/".startswith(f"{place}/") for word in words for place in places)


def _arguments(process: Process) -> set[str]:
    """The values of a program's long options."""
    words = process.command.split()
    return {words[at + 1] for at in range(len(words) - 1) if words[at].startswith("--")}


def _descendants(processes: dict[tuple[int, int], Process], heads: set[int]) -> set[int]:
    """The heads and everything below them."""
    found = set(heads)
    while True:
        more = {p.pid for p in processes.values() if p.parent in found} - found
        if not more:
            return found
        found |= more


def _mounts(pid: int) -> set[str]:
    """Mounts of one namespace, without the numbers that differ from namespace to namespace."""
    found = set()
    for line in proc.text(f"/proc/{pid}/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        words, rest = before.split(), after.split()
        if len(words) >= 5 and len(rest) >= 2:
            found.add(
                f"{rest[0]} on {words[4]} from {rest[1]} (root {words[3]}, device {words[2]})"
            )
    return found


def _pinned(mounts: set[str]) -> set[str]:
    """Network namespaces that only a bind mount keeps."""
    return {match[0] for line in mounts if (match := re.search(r"net:\[[0-9]+\]", line))}


def _cgroups() -> set[str]:
    found = set()
    for line in proc.text("/proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        if after.split()[:1] in (["cgroup"], ["cgroup2"]):
            found |= {path for path, _, _ in os.walk(before.split()[4])}
    # Groups of one command of the workplace come and go with that command.
    return {path for path in found if not re.search(r"/process_api/[0-9a-f]{32}$", path)}


def _loops() -> set[str]:
    found = set()
    for name in proc.names("/sys/block"):
        backing = proc.text(f"/sys/block/{name}/loop/backing_file").strip()
        if backing:
            found.add(f"/dev/{name} of {backing}")
    return found


def _swaps() -> set[str]:
    """Areas in use, and compressed devices by their label; whose they are is told as of a group."""
    found = {f"{line.split()[0]} is in use" for line in proc.text("/proc/swaps").splitlines()[1:]}
    named = set()
    for name in proc.names("/sys/block"):
        if not name.startswith("zram") or proc.text(f"/sys/block/{name}/initstate").strip() != "1":
            continue
        try:
            with open(f"/dev/{name}", "rb", buffering=0) as file:
                label = file.read(1068)[1052:].rstrip(b"\0").decode("ascii", "replace")
        except OSError:
            label = ""
        named.add(f"/dev/{name} of /{label}")
        found.discard(f"/dev/{name} is in use")
    return found | named


def _sockets(others: set[int]) -> set[str]:
    """Bound unix sockets with a path, without those that other processes hold."""
    held = set()
    for pid in others:
        for name in proc.names(f"/proc/{pid}/fd"):
            target = proc.link(f"/proc/{pid}/fd/{name}")
            if target.startswith("socket:["):
                held.add(target[8:-1])
    lines = proc.text("/proc/net/unix").splitlines()[1:]
    rows = (line.split(None, 7) for line in lines)
    return {row[7] for row in rows if len(row) == 8 and row[6] not in held}


def _memfds(pid: int) -> set[str]:
    found = set()
    for name in proc.names(f"/proc/{pid}/fd"):
        target = proc.link(f"/proc/{pid}/fd/{name}")
        if target.startswith("/memfd:"):
            found.add(f"{target} of process {pid}")
    return found


def _files(place: str) -> set[str]:
    found = set()
    for path, directories, files in os.walk(place):
        found |= {f"{path}/{name}" for name in (*directories, *files)}
    return found
