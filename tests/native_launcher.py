"""A rig for the real launcher: its programs, its directories, its one client, and the census.

The layer is a directory of almost nothing and the guest agent a stand-in, so that what the launcher
itself does is all there is to see.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from native_build import NATIVE, build
from skerry.backends.shared import proc
from skerry.wire import plan, replies
from skerry.wire.fields import FieldBuilder
from skerry.wire.frames import Tag, encode_frame
from waiting import soon

BUILD = NATIVE / "build"
UID_BASE = 3_000_000
# Told from those of another run on this machine by the number.
OWNER = 3_900_000 + os.getpid() % 1000 * 100


def _mkfs_erofs() -> str | None:
    cached = sorted(
        Path(os.environ.get("SKERRY_CACHE", "/var/cache/skerry")).glob(
            "erofs-utils*/bin/mkfs.erofs"
        )
    )
    return str(cached[-1]) if cached else shutil.which("mkfs.erofs")


def _cgroup(kind: str, option: str = "") -> Path | None:
    for line in Path("/proc/mounts").read_text().splitlines():
        _, at, fs, options, *_ = line.split()
        if fs == kind and (not option or option in options.split(",")):
            return Path(at)
    return None


def missing() -> str | None:
    """Why this machine cannot run the launcher; None if it can."""
    if os.geteuid() != 0:
        return "not root"
    status = Path("/proc/self/status").read_text()
    if not int(status.split("CapEff:")[1].split()[0], 16) >> 21 & 1:
        return "no CAP_SYS_ADMIN"
    if _cgroup("cgroup2") is None:
        return "no cgroup2 hierarchy is mounted"
    if "erofs" not in Path("/proc/filesystems").read_text():
        return "the kernel has no EROFS"
    tools = {"musl-gcc": shutil.which("musl-gcc"), "mkfs.erofs": _mkfs_erofs()}
    lacking = [name for name, path in tools.items() if path is None]
    return f"{', '.join(lacking)} not installed" if lacking else None


def build_programs(at: Path) -> None:
    """Builds the launcher; puts the stand-in and the layer image into a directory."""
    build("build/release/skerry-spawn", "build/san/skerry-spawn")
    source = Path(__file__).with_name("native_launcher_stand_in.c")
    subprocess.run(["musl-gcc", "-static", "-O1", "-o", at / "init", source], check=True)
    for name in ("proc", "dev", "tmp", "etc"):  # neither /run nor /sys: the launcher makes them
        (at / "tree" / name).mkdir(parents=True)
    (at / "tree/tmp").chmod(0o1777)
    (at / "tree/etc/os-release").write_text("NAME=small\n")
    tool = _mkfs_erofs()
    assert tool is not None
    subprocess.run([tool, at / "small.erofs", at / "tree"], check=True, capture_output=True)


def owned_by_slots() -> list[str]:
    """Returns the processes of slots' owners that run."""
    found = []
    for at in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            text = at.read_text()
            owner = int(text.split("Uid:")[1].split()[0])
            if OWNER <= owner < OWNER + 99 and proc.runs(int(at.parent.name)):
                found.append(text.split("PPid:")[0])
    return found


class Launcher:
    """A launcher of its own run directory, state directory and cgroups, and its one client."""

    def __init__(
        self, programs: Path, base: Path, *, upper: str = "btrfs", san: bool = False
    ) -> None:
        self.base, self.upper = base, upper
        self.run, self.state = base / "run", base / "state"
        self.state.mkdir()
        shutil.copy(programs / "small.erofs", self.state / "small.erofs")
        self.init = programs / "init"
        self.binary = BUILD / ("san" if san else "release") / "skerry-spawn"
        unified, pids = _cgroup("cgroup2"), _cgroup("cgroup", "pids")
        assert unified is not None
        name = f"skerry-test-{base.name}"
        self.unified = unified / name
        self.pids = pids / name if pids else None
        self.roots = [at for at in (self.unified, self.pids) if at]
        for at in self.roots:
            at.mkdir()
        self.ids = itertools.count(1)
        self.socket = socket.socket()
        self.exited: list[replies.Exited] = []

    def begin(self, *options: str) -> None:
        args = ["--run", self.run, "--state", self.state, "--init", self.init, "--foreground"]
        for at in self.roots:
            args += ["--cgroup", at]
        log = self.base / "log"
        self.process = subprocess.Popen([self.binary, *args, "--log", log, *options])
        self.socket.close()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(30)
        until = time.monotonic() + 10
        while True:
            try:
                self.socket.connect(str(self.run / "spawn.sock"))
                return
            except OSError:
                assert self.process.poll() is None, log.read_text()
                assert time.monotonic() < until
                time.sleep(0.005)

    def prepare(self, *slots: int) -> None:
        """Mounts the layer, opens the uppers, makes the slots."""
        pool = self.state / "pool"
        if self.upper == "btrfs" and not pool.exists():
            with pool.open("wb") as file:
                file.truncate(256 << 20)
            subprocess.run(["mkfs.btrfs", "-q", pool], check=True, capture_output=True)
        elif self.upper == "dir":
            pool.mkdir(exist_ok=True)
        layer = self.state / "small.erofs"
        self.ok(plan.LayerMount(layer="small", path=str(layer)))
        self.ok(plan.UpperOpen(upper=self.upper, path=str(pool)))
        for slot in slots:
            self.slot(slot)

    def ask(self, *requests: plan.Request) -> list[replies.Reply]:
        """Sends all, then returns the answers in the order of the requests."""
        waiting = {next(self.ids): request for request in requests}
        for number, request in waiting.items():
            self.socket.send(request.encode(number))
        found: dict[int, replies.Reply] = {}
        while len(found) < len(waiting):
            said = replies.decode(self.socket.recv(1 << 17))
            if isinstance(said, replies.Exited):
                self.exited.append(said)
            else:
                found[said.request_id] = said
        return [found[number] for number in waiting]

    def ok(self, request: plan.Request) -> replies.Reply:
        (reply,) = self.ask(request)
        assert reply.failure is None, reply.failure
        return reply

    def failure(self, request: plan.Request) -> replies.Failure:
        (reply,) = self.ask(request)
        assert reply.failure is not None
        return reply.failure

    def group(self, slot: int) -> Path:
        return self.unified / f"s{slot}"

    def slot(self, slot: int, *, uid_base: int | None = None, rooted: bool = False) -> None:
        """Makes a slot; `rooted`: with a cgroup namespace in its groups."""
        group = self.group(slot)
        made = self.slot_make(slot, uid_base=uid_base)
        number, more = next(self.ids), FieldBuilder()
        if rooted:
            more.text(Tag.AGENT_GROUP, str(group / "agent"))
            for at in self.plan("", slot).tasks:
                more.text(Tag.TASKS, at)
        payload = made.payload() + more.payload()
        self.socket.send(encode_frame(made.CODE, 0, number, payload))
        reply = replies.decode(self.socket.recv(1 << 16))
        assert isinstance(reply, replies.Reply)
        assert (reply.request_id, reply.failure) == (number, None)

    def slot_make(self, slot: int, *, uid_base: int | None = None) -> plan.SlotMake:
        group, owner = self.group(slot), OWNER + slot
        steps = [
            f"mkdir {group} 755 {owner}",
            f"mkdir {group}/agent 755 -1",
            f"mkdir {group}/w 755 {owner}",
        ]
        if self.pids:
            steps.append(f"mkdir {self.pids}/s{slot} 755 -1")
        base = UID_BASE + slot * 65536 if uid_base is None else uid_base
        return plan.SlotMake(slot=slot, uid_base=base, owner_uid=owner, step=tuple(steps))

    def drop(self, slot: int) -> None:
        self.ok(self.slot_drop(slot))

    def slot_drop(self, slot: int) -> plan.SlotDrop:
        group = self.group(slot)
        paths = [group / "agent", group / "w", group]
        paths += [self.pids / f"s{slot}"] if self.pids else []
        return plan.SlotDrop(slot=slot, step=tuple(f"rmdir {at}" for at in paths))

    def plan(self, name: str, slot: int, **more: object) -> plan.StartPlan:
        group = self.group(slot)
        tasks = (str(self.pids / f"s{slot}/tasks"),) if self.pids else ()
        fields: dict[str, object] = {
            "instance": name, "slot": slot, "layer": ("small",), "hostname": f"host-{slot}",
            "shm_bytes": 1 << 20, "agent_group": str(group / "agent"),
            "work_group": str(group / "w"), "tasks": tasks, "config": b"",
            "socket": str(self.run / "i" / name),
        }  # fmt: skip
        return plan.StartPlan(**{**fields, **more})  # type: ignore[arg-type]

    def start(self, name: str, slot: int, **more: object) -> int:
        return self.ok(self.plan(name, slot, **more)).start().pid

    def stop(self, name: str, **more: object) -> replies.StopReply:
        return self.ok(plan.Stop(instance=name, **more)).stop()  # type: ignore[arg-type]

    def say(self, name: str, line: str) -> bytes:
        """One line to the stand-in; its answer."""
        with socket.socket(socket.AF_UNIX) as channel:
            channel.settimeout(20)
            channel.connect(str(self.run / "i" / name))
            channel.send(line.encode())
            return b"".join(iter(lambda: channel.recv(65536), b""))

    def inside(self, *path: str) -> Path:
        return Path(f"/proc/{self.process.pid}/root").joinpath(*path)

    def uppers(self) -> set[str]:
        return {at.name for at in self.inside("upper").iterdir() if at.name[0] != "."}

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def end(self) -> None:
        """Shuts down and finds the machine as it was."""
        self.ok(plan.Shutdown())
        assert self.process.wait(20) == 0
        self.census()

    def census(self) -> None:
        base = str(self.base)
        assert base not in Path("/proc/self/mountinfo").read_text()
        for at in Path("/sys/block").glob("loop*/loop/backing_file"):
            assert base not in at.read_text()
        assert sorted(at.name for at in self.run.rglob("*")) == ["i", "ns"]
        for at in self.roots:
            assert [a for a in at.iterdir() if a.is_dir()] == []
        assert soon(lambda: not owned_by_slots())

    def clear(self) -> None:
        """After a failed test: takes away what this launcher may have left."""
        if self.process.poll() is None:
            with contextlib.suppress(OSError, AssertionError):
                self.ask(plan.Shutdown())
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.socket.close()
        for at in self.roots:
            for group in sorted(at.rglob("*/"), reverse=True):
                with contextlib.suppress(OSError):
                    group.rmdir()
            with contextlib.suppress(OSError):
                at.rmdir()
