"""A function container: the real launcher, the real agent, a small image of the host's own programs.

The image has a shell, some tools and Python, so that what is tried in a cell is plain to read.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from native_agent import (
    CFG_ENV,
    CFG_MAX_OPS,
    CFG_NOFILE,
    CFG_PEER_UID,
    EXIT_CODE,
    NATIVE,
    Client,
    Operation,
    pack,
    unpack,
)

import native_launcher
from native_build import build
from native_launcher import Launcher
from skerry.wire import plan

CELL_FRAME, CELL_IS, ZYGOTE_IS = 0x13, 0x86, 0x87
CELL, CPU_MS, RLIMITS, FSIZE, LIMIT_NOFILE, STACK, CORE, RESULT = range(48, 56)
ACTION, DISK, INODES, CPU_LIMIT, DISK_USED, RESULT_TOTAL = range(56, 62)
CFG_CELLS = 73
READY, GONE, FAILED = 1, 2, 3
DISK_BYTES = 16 << 20
TOOLS = (
    "sh", "cat", "ls", "touch", "sleep", "id", "echo", "mkdir", "rm", "true", "false", "grep",
    "ps", "kill", "ln", "dd", "wc", "env", "setsid", "head", "hostname", "mount", "umount",
    "unshare", "stat", "df", "readlink",
)  # fmt: skip
UNWANTED = {
    "test",
    "idlelib",
    "lib2to3",
    "ensurepip",
    "tkinter",
    "distutils",
    "__pycache__",
    "lib-dynload",
    "config-3.11-x86_64-linux-gnu",
}


def _libraries(program: str) -> set[str]:
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return {word for line in listed.splitlines() for word in line.split() if word.startswith("/")}


def _copy(source: str, tree: Path) -> None:
    at = tree / source.lstrip("/")
    at.parent.mkdir(parents=True, exist_ok=True)
    if not at.exists():
        shutil.copy2(source, at)


def image_build(at: Path, files: Mapping[str, str] | None = None) -> None:
    """Puts `image.erofs` into a directory: tools, Python, `files`, and no /call, /run or /sys."""
    tree = at / "function-tree"
    for name in ("proc", "dev", "tmp", "etc", "var/tmp"):
        (tree / name).mkdir(parents=True, exist_ok=True)
    (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (tree / "etc/group").write_text("root:x:0:\n")
    for name, text in (files or {}).items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    programs = [found for tool in TOOLS if (found := shutil.which(tool))]
    programs.append("/usr/bin/python3.11")
    dynload = Path("/usr/lib/python3.11/lib-dynload")
    for name in ("mmap", "_ctypes", "_posixshmem", "_multiprocessing", "resource"):
        programs += [str(found) for found in dynload.glob(f"{name}.*")]
    for program in programs:
        _copy(program, tree)
        for library in _libraries(program):
            _copy(library, tree)
    for name, target in (("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")):
        if (tree / name).is_dir():
            shutil.copytree(tree / name, tree / target, dirs_exist_ok=True)
            shutil.rmtree(tree / name)
        (tree / name).symlink_to(target)
    (tree / "usr/bin/python3").symlink_to("python3.11")
    for source in Path("/usr/lib/python3.11").iterdir():
        if source.name not in UNWANTED:
            copy = shutil.copytree if source.is_dir() else shutil.copy2
            copy(source, tree / "usr/lib/python3.11" / source.name)  # type: ignore[operator]
    tool = native_launcher._mkfs_erofs()
    assert tool is not None
    subprocess.run([tool, at / "image.erofs", tree], check=True, capture_output=True)
    shutil.rmtree(tree)


class FunctionLauncher(Launcher):
    """The launcher with the real agent and that image."""

    def __init__(
        self, programs: Path, base: Path, *, binary: str = "release", cells: int = 2
    ) -> None:
        super().__init__(programs, base)
        self.init = NATIVE / "build" / binary / "skerry-init"
        build(f"build/{binary}/skerry-init", f"build/{binary}/skerry-spawn")
        self.binary = NATIVE / "build" / binary / "skerry-spawn"
        self.cells = cells
        os.link(programs / "image.erofs", self.state / "image.erofs")

    def prepare(self, *slots: int) -> None:
        pool = self.state / "pool"
        with pool.open("wb") as file:
            file.truncate(256 << 20)
        subprocess.run(["mkfs.btrfs", "-q", pool], check=True, capture_output=True)
        self.ok(plan.LayerMount(layer="image", path=str(self.state / "image.erofs")))
        self.ok(plan.UpperOpen(upper="btrfs", path=str(pool)))
        for slot in slots:
            self.function_slot(slot)

    def _cell_groups(self, slot: int) -> list[Path]:
        found = [self.group(slot) / f"w/cell-{n}" for n in range(self.cells)]
        if self.pids:
            found += [self.pids / f"s{slot}/cell-{n}" for n in range(self.cells)]
        return found

    def function_slot(self, slot: int) -> None:
        made = self.slot_make(slot)
        owner = made.owner_uid
        steps = [*made.step]
        steps += [f"mkdir {at} 755 {owner}" for at in self._cell_groups(slot)]
        self.ok(plan.SlotMake(**{**_fields(made), "step": tuple(steps), "profile": plan.FUNCTION}))

    def slot_drop(self, slot: int) -> plan.SlotDrop:
        own = super().slot_drop(slot)
        steps = tuple(f"rmdir {at}" for at in self._cell_groups(slot))
        return plan.SlotDrop(slot=slot, step=steps + own.step)

    def function_plan(self, name: str, slot: int, **more: object) -> plan.StartPlan:
        tasks: list[str] = []
        if self.pids:
            tasks = [str(self.pids / f"s{slot}/tasks")]
            tasks += [str(self.pids / f"s{slot}/cell-{n}/tasks") for n in range(self.cells)]
        config = pack(CFG_PEER_UID, os.getuid()) + pack(CFG_NOFILE, 512) + pack(CFG_MAX_OPS, 64)
        config += pack(CFG_ENV, "LANG=C.UTF-8") + pack(CFG_CELLS, self.cells)
        fields: dict[str, object] = {"layer": ("image",), "tasks": tuple(tasks), "config": config}
        return self.plan(name, slot, **{**fields, "profile": plan.FUNCTION, **more})

    def function(self, name: str, slot: int, **more: object) -> Container:
        pid = self.ok(self.function_plan(name, slot, **more)).start().pid
        return Container(self, self.run / "i" / name, pid)


def _fields(body: object) -> dict[str, object]:
    return {name: getattr(body, name) for name in body.__struct_fields__}  # type: ignore[attr-defined]


class Container:
    """The host's side of one function container."""

    def __init__(self, launcher: FunctionLauncher, path: Path, pid: int) -> None:
        self.launcher, self.pid = launcher, pid
        self.path = path
        self.client = Client(path)

    def reconnect(self) -> None:
        self.client.close()
        self.client = Client(self.path)

    def ask(self, cell: int, action: int, disk: int = DISK_BYTES, inodes: int = 1024) -> None:
        payload = pack(CELL, cell) + pack(ACTION, action)
        payload += pack(DISK, disk) + pack(INODES, inodes)
        self.client.send(CELL_FRAME, 0, payload)

    def answer(self) -> dict[int, int | str | bytes]:
        """The next CELL_IS, which may have come already."""
        while True:
            for at, (kind, _, payload) in enumerate(self.client.other):
                if kind == CELL_IS:
                    del self.client.other[at]
                    return {tag: values[0] for tag, values in unpack(payload).items()}
            self.client.step()

    def renew(self, cell: int, **sizes: int) -> None:
        self.ask(cell, 1, **sizes)
        said = self.answer()
        assert said == {CELL: cell, 7: READY}, said

    def drop(self, cell: int) -> None:
        self.ask(cell, 2)
        said = self.answer()
        assert said == {CELL: cell, 7: GONE}, said

    def start(self, cell: int | None, *args: str, **options: object) -> Operation:
        """As Client.start, with the fields of a call: cpu_ms, limits (tag -> value), result."""
        more = b""
        if cell is not None:
            more += pack(CELL, cell)
        if "cpu_ms" in options:
            more += pack(CPU_MS, int(options.pop("cpu_ms")))  # type: ignore[call-overload]
        if "limits" in options:
            limits = options.pop("limits")
            more += pack(RLIMITS, b"".join(pack(t, v) for t, v in limits.items()))  # type: ignore[attr-defined]
        result = bool(options.pop("result", False))
        more += pack(RESULT, 1) if result else b""
        op = self.client.start(*args, more=more, **options)
        if result:
            op.out[1] = bytearray()
        return op

    def run(self, cell: int | None, *args: str, **options: object) -> Operation:
        return self.client.wait(self.start(cell, *args, **options))

    def sh(self, cell: int, line: str, **options: object) -> Operation:
        return self.run(cell, "sh", "-c", line, **options)

    def python(self, cell: int, code: str, **options: object) -> Operation:
        return self.run(cell, "python3", "-I", "-S", "-c", code, **options)

    def ok(self, cell: int, line: str, **options: object) -> str:
        op = self.sh(cell, line, **options)
        assert op.done is not None, op.errors
        assert op.done.get(EXIT_CODE) == 0, (op.done, op.stderr)
        return op.stdout.decode()
