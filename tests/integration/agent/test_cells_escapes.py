"""What a program in a cell asks of the kernel and is refused, and what it gets without a protection."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from function_rig import Container, FunctionLauncher
from native_agent import EXIT_CODE, NATIVE, REAL

pytestmark = REAL

ATTACKS = NATIVE.parent / "tests/security/attacks.c"
REFUSED = {"EPERM", "EACCES", "ENOSYS", "EROFS"}
NOT_THERE = {"ENOENT", "ENODATA", "ENXIO"}
# Reads and writes back what only the whole machine has; for a process of another user.
REMOUNT = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def name(result):
    return "ok" if result == 0 else errno.errorcode[ctypes.get_errno()]
print("root-rw", name(libc.mount(None, b"/", None, 32 | 4096, None)))
print("dev-rw", name(libc.mount(None, b"/dev", None, 32 | 4096, None)))
print("root-gone", name(libc.umount2(b"/", 2)))
print("dev-gone", name(libc.umount2(b"/dev", 2)))
print("sys-gone", name(libc.umount2(b"/sys", 2)))
print("proc-gone", name(libc.umount2(b"/proc", 2)))
print("again", name(libc.umount2(b"/proc", 2)))
print("mount", name(libc.mount(b"x", b"/tmp", b"tmpfs", 0, None)))
"""


@pytest.fixture(scope="module")
def attacks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("attacks") / "attacks"
    flags = ["-std=gnu11", "-O2", "-static", "-w", "-D_GNU_SOURCE"]
    subprocess.run(["gcc", *flags, "-o", str(at), str(ATTACKS)], check=True)
    return at


@pytest.fixture
def make(
    image: Path, attacks: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Armed]]:
    with contextlib.ExitStack() as stack:

        def build(words: str = "") -> Armed:
            base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sk")))
            launcher = FunctionLauncher(image, base, binary="weak" if words else "release")
            stack.callback(launcher.clear)
            monkeypatch.setenv("SKERRY_WEAK", words)
            launcher.begin()
            launcher.prepare(0)
            box = launcher.function("f", 0)
            stack.callback(box.client.close)
            return Armed(box, attacks)

        yield build


class Armed:
    """A cell with the attack program in it."""

    def __init__(self, box: Container, attacks: Path) -> None:
        self.box = box
        box.renew(0, disk=64 << 20)
        op = box.start(0, "write", "/call/attacks", "755", "-", kind=1, stdin=True)
        box.client.feed(op, attacks.read_bytes())
        assert box.client.wait(op).done[EXIT_CODE] == 0  # type: ignore[index]

    def attack(self, words: str) -> dict[str, str]:
        """Returns what each attack of a group came to, by name."""
        op = self.box.sh(0, f"/call/attacks {words}")
        assert op.done is not None
        assert op.done[EXIT_CODE] == 0, op
        return dict(line.split(" ", 1) for line in op.stdout.decode().splitlines())

    def python(self, code: str) -> dict[str, str]:
        op = self.box.python(0, code)
        return dict(line.split(" ", 1) for line in op.stdout.decode().splitlines())


def worked(results: dict[str, str], refused: set[str] = REFUSED) -> set[str]:
    return {name for name, result in results.items() if result not in refused}


def test_no_call_reaches_the_host_a_namespace_or_a_mount(make: Callable[..., Armed]) -> None:
    cell = make()
    for words, least in (("calls", 60), ("agent", 35)):
        results = cell.attack(words)
        assert len(results) > least
        assert not worked(results), words
    assert not worked(cell.attack("files"), REFUSED | NOT_THERE)
    assert not worked(cell.attack("network"), REFUSED | {"ENETUNREACH", "EAFNOSUPPORT"})
    assert not worked(cell.python(REMOUNT), REFUSED)
    assert cell.box.ok(0, "echo alive") == "alive\n"


def test_control_without_the_filter_kernel_interfaces_are_reached(
    make: Callable[..., Armed],
) -> None:
    cell = make("filter")
    let_in = worked(cell.attack("calls"))
    assert {"keyctl", "add_key", "io_uring_enter", "int80"} <= let_in
    # No privilege, and none to be had: the counters of the user namespace say ENOSPC.
    assert not let_in & {
        "fsopen",
        "open_tree",
        "unshare_mnt",
        "hostname",
        "bounding",
        "setns_pidfd",
    }
    assert cell.attack("calls")["unshare_user"] == "ENOSPC"


def test_control_with_a_capability_and_no_filter_only_the_locked_root_stays(
    make: Callable[..., Armed],
) -> None:
    cell = make("filter,capabilities")
    found = cell.python(REMOUNT)
    # The kernel's own rule holds the container's mounts, whoever asks.
    assert {found[name] for name in ("root-rw", "dev-rw")} == {"EPERM"}
    assert {found[name] for name in ("root-gone", "dev-gone", "sys-gone")} == {"EINVAL"}
    assert (found["proc-gone"], found["mount"]) == ("ok", "ok")
    assert found["again"] == "EINVAL"  # what is beneath is the container's, of processes only
    let_in = worked(cell.attack("calls"))
    assert {"mount", "unshare_mnt", "unshare_net", "hostname", "umount_lazy"} <= let_in


def test_nothing_of_the_host_or_the_container_shows_in_a_cell(make: Callable[..., Armed]) -> None:
    box = make().box
    mounts = box.ok(0, "cat /proc/self/mountinfo")
    for word in (str(box.launcher.base), "layers", "image", "pool", "skerry-test"):
        assert word not in mounts
    assert sorted(
        {line.split()[4] for line in mounts.splitlines()} - {"/", "/dev", "/sys"}
    ) == sorted(
        {line.split()[4] for line in mounts.splitlines() if line.split()[4].startswith("/proc")}
        | {"/tmp", "/var/tmp", "/dev/shm", "/run", "/call"}
    )
    assert box.ok(0, "cat /proc/1/status").count("CapEff:\t0000000000000000") == 1
    for path in ("environ", "mem", "maps", "fd/0", "exe"):
        assert box.sh(0, f"cat /proc/1/{path}").stdout == b""
    for path in ("root", "cwd", "fd", "ns/net", "exe"):
        assert box.sh(0, f"ls /proc/1/{path}/").stdout == b""
    assert box.ok(0, "ls /sys | wc -l; wc -c < /proc/kallsyms").split() == ["0", "0"]
    assert box.sh(0, "echo 1 > /proc/sys/kernel/core_pattern").done[EXIT_CODE] != 0  # type: ignore[index]


def test_first_process_of_a_cell_outlives_every_signal(make: Callable[..., Armed]) -> None:
    box = make().box
    box.sh(0, "kill -9 -1; kill -9 1")
    box.python(0, "import os\nfor n in range(1, 65):\n try: os.kill(1, n)\n except OSError: pass")
    assert box.ok(0, "echo alive; cat /tmp/none 2>/dev/null || true") == "alive\n"
