"""A function container with a zygote: the real launcher, agent and extension, no node."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from function_rig import ZYGOTE_IS, Container, FunctionLauncher, image_build
from native_agent import STATE, Operation, unpack

from native_build import NATIVE, build
from native_launcher import build_programs, missing
from skerry.guest import zygote

CALL_KIND, ZYGOTE_KIND = 3, 4

# Tries, with every privilege that the zygote's process has, what would lead out of it.
HOSTILE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
outcome = {}
def tried(name, result):
    outcome[name] = ctypes.get_errno() if result < 0 else 0
own = os.open("/proc/self/ns/mnt", os.O_RDONLY)
caps = open("/proc/self/status").read()
tried("mount", libc.mount(b"none", b"/tmp", b"tmpfs", 0, b""))
tried("bind", libc.mount(b"/", b"/run", None, 4096, None))
tried("fsopen", libc.syscall(430, b"tmpfs", 0))
tried("open_tree", libc.syscall(428, -100, b"/", 1))
tried("remount", libc.mount(None, b"/tmp", None, 32, None))
tried("umount", libc.umount2(b"/tmp", 2))
tried("setns 0", libc.setns(own, 0))
tried("setns mnt", libc.setns(own, 0x20000))
tried("setns user", libc.setns(own, 0x10000000))
pid = libc.syscall(56, 0x20000 | 17, 0, 0, 0, 0)
if pid == 0:
    os._exit(0)
tried("clone", pid)
tried("unshare", libc.unshare(0x20000))
try:
    os.kill(1, 0)
    outcome["kill agent"] = 0
except OSError as error:
    outcome["kill agent"] = error.errno
try:
    open("/x", "w")
    outcome["write"] = 0
except OSError as error:
    outcome["write"] = error.errno
"""
# Waits for a signal file instead of answering: a zygote that hangs with its first call.
HANGING = """
import os, time
def before():
    if not armed:
        return
    while True:
        time.sleep(1000)
armed = False
os.register_at_fork(before=before)
class Arming:
    def __del__(self):
        pass
def arm_after(forks):
    global armed
    count = [0]
    def counted():
        global armed
        count[0] += 1
        armed = count[0] > forks
    os.register_at_fork(before=counted)
arm_after(2)
"""
FILES = {"opt/hostile.py": HOSTILE, "opt/hanging.py": HANGING}


@contextlib.contextmanager
def launched(image: Path, binary: str = "release") -> Iterator[FunctionLauncher]:
    with tempfile.TemporaryDirectory(prefix="sk") as base:
        made = FunctionLauncher(image, Path(base), cells=3, binary=binary)
        try:
            made.begin()
            made.prepare(0)
            yield made
            made.drop(0)
            made.end()
        finally:
            made.clear()


def zygote_image_build(at: Path) -> Path:
    """An image with Python and FILES; skips where the machine cannot."""
    if reason := missing():
        pytest.skip(reason)
    build("build/release/skerry-zygote.so")
    build_programs(at)
    image_build(at, FILES)
    return at


class Box:
    """A function container with a zygote."""

    def __init__(self, launcher: FunctionLauncher, name: str) -> None:
        self.launcher, self.name = launcher, name
        self.at: Container = launcher.function(name, 0)
        self.zygote: Operation | None = None

    def begin(self, *modules: str, env: tuple[str, ...] = (), ready: bool = True) -> zygote.Report:
        """Starts the zygote; returns its report once ZYGOTE_IS has come."""
        library = (NATIVE / "build/release/skerry-zygote.so").read_bytes()
        start = zygote.start("/usr/bin/python3", modules, library=library)
        self.zygote = self.at.start(
            None, *start.args, script=start.script, kind=ZYGOTE_KIND, env=env, result=True
        )
        assert self.heard() == (1 if ready else 3), (self.zygote.stderr, self.zygote.done)
        while 1 not in self.zygote.ended:  # the report may come behind
            self.at.client.step()
        return zygote.read_report(bytes(self.zygote.out[1]))

    def heard(self) -> int:
        client = self.at.client
        while not any(kind == ZYGOTE_IS for kind, _, _ in client.other):
            client.step()
        found = next(frame for frame in client.other if frame[0] == ZYGOTE_IS)
        client.other.remove(found)
        return int(unpack(found[2])[STATE][0])

    def start(
        self, cell: int, code: str, entry: str | None = "main", *args: object, **options: object
    ) -> Operation:
        payload = zygote.payload(code, entry, args)
        return self.at.start(cell, script=payload, kind=CALL_KIND, result=True, **options)

    def call(self, cell: int, code: str, *args: object, **options: object) -> Operation:
        self.at.renew(cell)
        return self.at.client.wait(self.start(cell, code, "main", *args, **options))

    def value(self, cell: int, code: str, *args: object, **options: object) -> object:
        op = self.call(cell, code, *args, **options)
        answer = answer_of(op)
        assert answer.returned, (op.done, op.errors, op.stderr, answer)
        return answer.value

    def stop(self) -> None:
        self.at.client.close()
        self.launcher.stop(self.name)


def answer_of(op: Operation) -> zygote.Answer:
    return zygote.read_answer(bytes(op.out[1]))


@contextlib.contextmanager
def box_of(launcher: FunctionLauncher, *modules: str, ready: bool = True) -> Iterator[Box]:
    made = Box(launcher, "own")
    try:
        made.at.renew(0)
        report = made.begin(*modules, env=("PYTHONPATH=/opt",), ready=ready)
        assert (report.error is None) == ready
        yield made
    finally:
        made.stop()
