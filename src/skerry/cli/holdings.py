"""What Skerry holds on this machine, whoever made it: each thing with its node, and which are orphans.

An orphan is what no running node holds and no start would take over: its node neither runs nor has a
state directory any more (as the registry, the launchers and the running nodes tell). What waits for
its node is no orphan. Reads /proc and /sys, and changes nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from skerry.backends.shared import proc
from skerry.cli import blob_things
from skerry.cli.things import Process, Thing
from skerry.density.zram import Kernel
from skerry.images.disks.keeper import NAME as DISK_KEEPER
from skerry.images.disks.service import NAME as DISKS
from skerry.images.lazy.main import NAME as BLOBS
from skerry.node import registry
from skerry.node.identity import held

__all__ = ["Holdings", "Process", "Thing", "group_roots", "pins", "take"]

LABEL = re.compile(r"skerry-([a-z2-7]{5})")  # of a node's compressed swap
GROUP = re.compile(r"/skerry-([a-z2-7]{5})(?:-idle)?(?:/|$)")
PROGRAMS = ("skerry-spawn", "skerry-init", BLOBS, DISKS, DISK_KEEPER)
STATE_DIR = "/var/lib/skerry"


@dataclass
class Holdings:
    """Everything that was found."""

    things: list[Thing] = field(default_factory=list)
    running: set[str] = field(default_factory=set)  # nodes whose daemon runs
    waiting: set[str] = field(default_factory=set)  # nodes that a start would bring back
    launchers: dict[str, list[Process]] = field(default_factory=dict)
    blobs: dict[str, list[Process]] = field(default_factory=dict)  # who serves data blobs
    workers: dict[str, list[Process]] = field(default_factory=dict)
    run_dirs: dict[str, set[str]] = field(default_factory=dict)

    def orphan(self, thing: Thing) -> bool:
        """Returns whether nobody holds it, and nobody will."""
        known = self.running | self.waiting
        return bool(thing.node) and thing.node not in known

    @property
    def orphans(self) -> list[Thing]:
        """What could be removed."""
        return [thing for thing in self.things if self.orphan(thing)]

    def shared(self, run: str) -> bool:
        """Returns whether a node that runs or waits has this run directory."""
        known = self.running | self.waiting
        return held(run) or any(run in self.run_dirs.get(node, ()) for node in known)

    def state_of(self, node: str) -> str:
        """Returns how a node stands, in a word."""
        if node in self.running:
            return "runs"
        return "waits for its next start" if node in self.waiting else "is gone"


def take(directory: str = registry.DIRECTORY, state_dir: str = STATE_DIR) -> Holdings:
    """Returns what was found; `state_dir` is looked at beside those that somebody names."""
    found = Holdings()
    processes = list(_processes())
    _nodes(found, processes, directory, state_dir)
    for process in processes:
        found.things += _of_process(process)
    found.things += _groups()
    found.things += _mounts(found)
    found.things += _loops(processes)
    found.things += _sockets(found)
    found.things += _swap()
    for node, places in found.run_dirs.items():
        found.things += [Thing("run directory", at, node) for at in places if os.path.isdir(at)]
    # A node that has started meanwhile was not known above; its things may have been seen.
    later = Holdings()
    _nodes(later, list(_processes()), directory, state_dir)
    found.running |= later.running
    found.waiting |= later.waiting
    for node, places in later.run_dirs.items():
        found.run_dirs.setdefault(node, set()).update(places)
    return found


def _nodes(found: Holdings, processes: list[Process], directory: str, state_dir: str) -> None:
    """Finds out which nodes there are."""
    for name, entry in registry.read_all(directory).items():
        found.things.append(Thing("registry entry", f"{directory}/{name}", name))
        found.run_dirs.setdefault(name, set()).add(entry.run_dir)
        if entry.adoptable(name):
            found.waiting.add(name)
    for process in processes:
        if _is_node(process.words):
            name = _node_of_daemon(process, directory, state_dir)
            if name:
                found.running.add(name)
                found.things.append(Thing("node", process.label(), name))
        elif _is(process, "skerry-spawn"):
            name = _node_of_launcher(process)
            found.launchers.setdefault(name, []).append(process)
            run = os.path.dirname(process.option("--run"))
            if name and run:
                found.run_dirs.setdefault(name, set()).add(run)
            if name and proc.text(f"{os.path.dirname(process.option('--state'))}/name") == name:
                found.waiting.add(name)
        elif _is_blobs(process):
            name, run = process.option("--node"), os.path.dirname(process.option("--socket"))
            found.blobs.setdefault(name, []).append(process)
            if name and run:
                found.run_dirs.setdefault(name, set()).add(run)
        elif _is_worker(process):
            found.workers.setdefault(_node_of_worker(process), []).append(process)
    if name := proc.text(f"{state_dir}/name"):
        found.waiting.add(name)


def _node_of_daemon(process: Process, directory: str, state_dir: str) -> str:
    """Returns its name. Its directories may stand in a file: the lock that it holds tells them."""
    for fd in proc.names(f"/proc/{process.pid}/fd"):
        target = proc.link(f"/proc/{process.pid}/fd/{fd}")
        if target.endswith("/lock") and (name := proc.text(f"{os.path.dirname(target)}/name")):
            return name
    state = process.option("--state") or state_dir
    return _by_pid(directory, process.pid) or proc.text(f"{state}/name")


def _swap() -> Iterator[Thing]:
    kernel = Kernel()
    for name in proc.names("/sys/block"):
        if name.startswith("zram") and (match := LABEL.fullmatch(kernel.label(kernel.dev / name))):
            yield Thing("compressed swap", f"/dev/{name}", match[1])


def _by_pid(directory: str, pid: int) -> str:
    return next((n for n, e in registry.read_all(directory).items() if e.pid == pid), "")


def _node_of_launcher(process: Process) -> str:
    match = GROUP.search(process.option("--cgroup"))
    return match[1] if match else ""


def _node_of_worker(process: Process) -> str:
    """Returns whose it is, by its state directory: STATE/workers/NUMBER."""
    return proc.text(f"{os.path.dirname(os.path.dirname(process.option('--state')))}/name")


def _of_process(process: Process) -> Iterator[Thing]:
    if _is_node(process.words):
        return
    if _is(process, "skerry-spawn"):
        node = _node_of_launcher(process)
        yield Thing("launcher", process.label(), node)
        nets = sum(proc.link(f"/proc/{process.pid}/fd/{fd}").startswith("net:")
                   for fd in proc.names(f"/proc/{process.pid}/fd"))  # fmt: skip
        if nets:
            yield Thing("network namespaces", f"{nets} held by launcher {process.pid}", node)
        for name in proc.names(f"/proc/{process.pid}/root/upper"):
            yield Thing("trash" if name.startswith(".") else "upper", name, node)
        for name in proc.names(f"/proc/{process.pid}/root/layers"):
            yield Thing("layer mount", name, node)
        yield from blob_things.sessions(process, node)
    elif _is_blobs(process):
        yield from blob_things.of_process(process, process.option("--node"))
        yield from blob_things.sessions(process, process.option("--node"))
    elif _is_worker(process):
        yield Thing("worker", process.label(), _node_of_worker(process))
    elif process.comm in {DISKS, DISK_KEEPER} and not process.group_of:
        yield Thing("disk service", process.label(), "")
        yield from blob_things.sessions(process, "")
        if process.comm == DISKS:
            places = os.path.join(process.option("--root"), "open")
            yield from (Thing("open disk", f"{places}/{one}", "") for one in proc.names(places))
    elif _is(process, "skerry-init"):
        yield Thing("agent", process.label(), process.group_of)
        net = proc.link(f"/proc/{process.pid}/ns/net")
        yield Thing("network namespaces", f"{net} of agent {process.pid}", process.group_of)
    elif process.group_of:
        yield Thing("process in a sandbox", process.label(), process.group_of)
    for fd in proc.names(f"/proc/{process.pid}/fd") if _is(process, *PROGRAMS) else ():
        target = proc.link(f"/proc/{process.pid}/fd/{fd}")
        if target.startswith("/memfd:"):
            yield Thing("memory file", f"{target} of process {process.pid}",
                        process.group_of or _node_of_launcher(process))  # fmt: skip


def group_roots() -> Iterator[tuple[str, str]]:
    """Gives (path, node) of each node's directory in each hierarchy."""
    for line in proc.text("/proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        if after.split(" ")[0] not in ("cgroup", "cgroup2"):
            continue
        at = before.split(" ")[4]
        for name in proc.names(at):
            match = GROUP.fullmatch(f"/{name}")
            if match:
                yield f"{at}/{name}", match[1]


def _groups() -> Iterator[Thing]:
    for path, node in group_roots():
        slots = sum(name.startswith("slot-") for name in proc.names(path))
        yield Thing("control groups", f"{path} with {slots} slots", node)


def pins() -> Iterator[tuple[str, str]]:
    """Gives (mount point, run directory) of each pinned mount namespace in the host's table."""
    for line in proc.text("/proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        at = before.split(" ")[4]
        if at.endswith("/container/ns/mnt") and after.startswith("nsfs"):
            yield at, at.removesuffix("/container/ns/mnt")


def _mounts(found: Holdings) -> Iterator[Thing]:
    places = {at: node for node, all_ in found.run_dirs.items() for at in all_}
    seen = set()
    for node, processes in found.launchers.items():
        for process in processes:
            seen.add(process.option("--run"))
            table = proc.text(f"/proc/{process.pid}/mountinfo").splitlines()
            where = f"the namespace of launcher {process.pid}"
            yield Thing("mounts", f"{len(table)} in {where}", node)
            yield from blob_things.mounts(table, where, node)
    for at, run in pins():
        node = places.get(run, "")
        yield Thing("pinned mount namespace", at, node)
        # Without its launcher nobody else tells what is mounted there.
        if f"{run}/container" not in seen and (table := blob_things.table_in(at)):
            yield Thing("mounts", f"{len(table)} in {at}", node)
            yield from blob_things.mounts(table, at, node)


def _loops(processes: list[Process]) -> Iterator[Thing]:
    states = {
        os.path.realpath(p.option("--state")): _node_of_launcher(p)
        for p in processes
        if _is(p, "skerry-spawn")
    }
    for name in proc.names("/sys/block"):
        backing = proc.text(f"/sys/block/{name}/loop/backing_file")
        if backing.removesuffix(" (deleted)").endswith("/container/uppers.btrfs"):
            node = states.get(os.path.dirname(backing.removesuffix(" (deleted)")), "")
            yield Thing("loop device", f"/dev/{name} of {backing}", node)


def _sockets(found: Holdings) -> Iterator[Thing]:
    places = {f"{at}/": node for node, all_ in found.run_dirs.items() for at in all_}
    for line in proc.text("/proc/net/unix").splitlines()[1:]:
        path = line.split(None, 7)[-1]
        for place, node in places.items():
            if path.startswith(place):
                yield Thing("socket", path, node)


def _processes() -> Iterator[Process]:
    for name in proc.names("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        if not proc.runs(int(name)):
            continue
        words = proc.words(int(name))
        comm = proc.text(f"/proc/{name}/comm")
        match = GROUP.search(proc.text(f"/proc/{name}/cgroup").replace("\n", " \n"))
        process = Process(int(name), words, comm, match[1] if match else "")
        known = _is_node(words) or _is_worker(process) or _is(process, *PROGRAMS)
        if process.group_of or known:
            yield process


def _is_node(words: tuple[str, ...]) -> bool:
    if "node" not in words:
        return False
    before = words[: words.index("node")]
    return any(word == "skerry.cli.main" or word.endswith("/skerry") for word in before)


def _is_worker(process: Process) -> bool:
    words = process.words
    if "worker" not in words or process.group_of:
        return False
    before = words[: words.index("worker")]
    return any(word == "skerry.cli.main" or word.endswith("/skerry") for word in before)


def _is_blobs(process: Process) -> bool:
    # What runs in a sandbox may call itself anything.
    return process.comm == BLOBS and not process.group_of


def _is(process: Process, *programs: str) -> bool:
    program = os.path.basename(process.words[0]) if process.words else ""
    return process.comm in programs or program in programs
