"""The real launcher, driven over its socket; a small program stands in for the guest agent.

What is promised: an instance is what its plan says, a failed start is undone, a launcher that was
killed finds its instances again, and after everything nothing is left on the machine.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skerry.backends.shared import proc
from skerry.images.format.erofs import Tools
from skerry.images.format.pair import build_layer
from skerry.images.scratch import Spool
from skerry.images.tree.entry import Node, Tree, make_directory
from skerry.spec.files import FileType
from skerry.wire import plan, replies
from waiting import ended, soon

sys.path.insert(0, str(Path(__file__).parent))
from native_launcher import BUILD, OWNER, UID_BASE, Launcher, build_programs, missing

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in and the layer image; skips where the machine cannot."""
    if reason := missing():
        pytest.skip(reason)
    at = tmp_path_factory.mktemp("programs")
    build_programs(at)
    return at


@pytest.fixture
def make(programs: Path) -> Iterator[Callable[..., Launcher]]:
    """Makes launchers; a short directory, for socket paths are short."""
    with contextlib.ExitStack() as stack:

        def build(**options: object) -> Launcher:
            base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sk")))
            launcher = Launcher(programs, base, **options)  # type: ignore[arg-type]
            stack.callback(launcher.clear)
            return launcher

        yield build


@pytest.fixture
def launcher(make: Callable[..., Launcher]) -> Launcher:
    found = make()
    found.begin()
    found.prepare(0, 1)
    return found


def test_fifty_instances_started_and_stopped_leave_nothing(launcher: Launcher) -> None:
    for slot in range(2, 10):
        launcher.slot(slot)
    launcher.start("warm", 0)
    launcher.stop("warm")
    before = launcher.descriptors()
    for round_ in range(5):
        names = {f"i{round_}-{slot}": slot for slot in range(10)}
        replies = launcher.ask(*(launcher.plan(name, slot) for name, slot in names.items()))
        assert [reply.failure for reply in replies] == [None] * 10
        assert launcher.uppers() == set(names)
        replies = launcher.ask(*(plan.Stop(instance=name) for name in names))
        assert all(reply.stop().slot_clean for reply in replies)
    assert launcher.uppers() == set()
    assert launcher.descriptors() == before
    assert launcher.ok(plan.Status()).status().instance == ()
    for slot in range(10):
        launcher.drop(slot)
    launcher.end()


def test_inside_is_what_the_plan_says(launcher: Launcher) -> None:
    pid = launcher.start("a", 0, config=b"\x42\0\0\0\0")
    files = 1 if launcher.pids else 0
    # 7 was the configuration; by now it is the connection that asks.
    assert launcher.say("a", "fds").split() == [b"%d" % n for n in range(8 + files)]
    status = Path(f"/proc/{pid}/status").read_text()
    assert status.split("Uid:")[1].split()[:4] == [str(OWNER)] * 4
    for line in ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb"):
        assert int(status.split(f"{line}:")[1].split()[0], 16) == 0
    assert "NoNewPrivs:\t0" in status
    assert "Seccomp:\t2" in status
    assert launcher.say("a", "refused") == b"3"
    assert launcher.say("a", "cat /proc/sys/kernel/hostname") == b"host-0\n"
    assert launcher.say("a", "cat /etc/os-release") == b"NAME=small\n"
    assert launcher.say("a", "cat /proc/1/cmdline") == b"skerry-init\0"
    config = launcher.say("a", "config")
    assert config.startswith(b"\x42\0\0\0\0")
    assert config[5:14] == b"\x40\x08\0\0\0" + bytes([files, 0, 0, 0])
    # Not dumpable: what hangs on that belongs to root.
    assert os.stat(f"/proc/{pid}/environ").st_uid == 0


def test_no_name_of_the_host_shows_inside(launcher: Launcher) -> None:
    tasks = launcher.plan("x", 2).tasks
    launcher.slot(2, rooted=True)
    launcher.start("a", 2)
    if tasks:
        assert launcher.say("a", "tasks") == b"1"
    seen = [
        launcher.say("a", f"cat /proc/self/{name}") for name in ("mountinfo", "cgroup", "environ")
    ]
    for text in seen:
        for word in (launcher.base.name, "skerry-test", "pool", "layers", "small"):
            assert word.encode() not in text
    assert b"0::/agent\n" in seen[1]
    if tasks:
        assert b":pids:/\n" in seen[1]


def test_stopped_twice_or_unknown_answers_ok(launcher: Launcher) -> None:
    launcher.start("a", 0)
    assert launcher.stop("a").wait_status == signal.SIGKILL
    again = launcher.stop("a")
    assert (again.wait_status, again.slot_clean) == (0, False)
    launcher.start("ghost", 0)
    launcher.stop("ghost", keep_upper=True)
    (launcher.run / "i" / "ghost").touch()
    assert launcher.uppers() == {"ghost"}
    assert launcher.stop("ghost").wait_status == 0
    assert not (launcher.run / "i" / "ghost").exists()
    assert launcher.uppers() == set()


def test_read_files_come_back_after_the_end(launcher: Launcher) -> None:
    launcher.start("a", 0)
    procs = launcher.group(0) / "agent" / "cgroup.procs"
    reply = launcher.stop("a", read=(str(procs), str(launcher.group(0) / "none")))
    assert reply.read == (b"", b"")
    assert launcher.stop("b", read=(str(launcher.group(0) / "cgroup.type"),)).read == (b"domain\n",)


def test_first_process_that_ends_is_reported(launcher: Launcher) -> None:
    launcher.start("a", 0)
    with contextlib.suppress(OSError):
        launcher.say("a", "exit 3")
    assert soon(lambda: bool(launcher.ask(plan.Status())) and bool(launcher.exited))
    assert launcher.exited == [replies.Exited(instance="a", wait_status=3 << 8)]
    assert launcher.stop("a").wait_status == 3 << 8


def test_waiting_connection_gets_the_slot_a_new_network(launcher: Launcher) -> None:
    def network(pid: int) -> str:
        return os.readlink(f"/proc/{pid}/ns/net")

    first = network(launcher.start("a", 0))
    assert launcher.stop("a").slot_clean
    second = network(launcher.start("b", 0))
    assert second == first
    assert launcher.say("b", "waiting") == b"0"
    assert launcher.stop("b").slot_clean
    assert network(launcher.start("c", 0)) != first


def test_killed_launcher_comes_back_to_its_instances(launcher: Launcher) -> None:
    pid = launcher.start("a", 0)
    launcher.start("lost", 1)
    launcher.stop("lost", keep_upper=True)
    launcher.process.kill()
    launcher.process.wait()
    launcher.begin()
    status = launcher.ok(plan.Status()).status()
    assert (status.layer, status.upper, status.instance) == (("small",), "btrfs", ())
    assert launcher.uppers() == {"a", "lost"}
    same = launcher.plan("a", 0)
    adopt = plan.Adopt(
        instance="a", slot=0, pid=pid, agent_group=same.agent_group,
        work_group=same.work_group, socket=same.socket,
    )  # fmt: skip
    wrong = launcher.plan("a", 1).agent_group
    assert (
        launcher.failure(plan.Adopt(**{**vars_of(adopt), "agent_group": wrong})).errno
        == errno.ESRCH
    )
    launcher.ok(adopt)
    assert launcher.say("a", "cat /etc/os-release") == b"NAME=small\n"
    assert launcher.failure(plan.LayerUnmount("small")).errno == errno.EBUSY
    reply = launcher.stop("a")
    assert not reply.slot_clean
    assert ended(pid)
    launcher.ok(plan.UpperDrop("lost"))
    assert launcher.uppers() == set()
    launcher.slot(0)
    launcher.start("b", 0)
    launcher.stop("b")
    for slot in (0, 1):
        launcher.drop(slot)
    launcher.end()


def vars_of(body: plan.Adopt) -> dict[str, object]:
    return {name: getattr(body, name) for name in body.__struct_fields__}


def test_slot_that_is_being_made_is_known_and_stays(launcher: Launcher) -> None:
    """Whoever asked for it may be gone: the node that comes next must not take its number for free."""
    slots = range(2, 10)
    made = [launcher.slot_make(slot) for slot in slots]
    *answers, dropped, status = launcher.ask(*made, launcher.slot_drop(9), plan.Status())
    assert [reply.failure for reply in answers] == [None] * len(made)
    assert dropped.failure is not None
    assert (dropped.failure.error_step, dropped.failure.errno) == ("slot", errno.EBUSY)
    assert set(slots) <= set(status.status().slot)
    for slot in slots:
        launcher.drop(slot)
    assert not set(slots) & set(launcher.ok(plan.Status()).status().slot)


def test_lock_of_a_launcher_that_is_still_ending_is_waited_for(
    make: Callable[..., Launcher],
) -> None:
    """A busy host lets the killed one keep its copy for a while; the next one starts all the same."""
    found = make()
    found.run.mkdir()
    held = os.open(found.run, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(held, fcntl.LOCK_EX)
    threading.Timer(0.5, os.close, (held,)).start()
    found.begin()
    found.prepare(0)


def test_frozen_instance_thaws_and_can_be_stopped(launcher: Launcher) -> None:
    launcher.start("a", 0)
    launcher.ok(plan.Freeze("a"))
    assert "frozen 1" in (launcher.group(0) / "w" / "cgroup.events").read_text()
    assert launcher.say("a", "cat /etc/os-release") == b"NAME=small\n"
    launcher.ok(plan.Thaw("a"))
    launcher.ok(plan.Freeze("a"))
    assert launcher.stop("a").slot_clean
    assert launcher.failure(plan.Freeze("a")).errno == errno.ENOENT


def test_disk_limit_holds_and_is_lifted_for_the_next(launcher: Launcher) -> None:
    launcher.start("a", 0, disk_bytes=4 << 20)
    assert int(launcher.say("a", "fill 8")) == errno.EDQUOT
    launcher.stop("a")
    launcher.start("b", 0)
    assert launcher.say("b", "fill 8") == b"0"
    launcher.stop("b")


def test_root_that_would_be_read_only_is_no_sandbox(launcher: Launcher) -> None:
    """The kernel mounts an overlay read-only where it has no room for its work directory."""
    refused = launcher.failure(launcher.plan("a", 0, disk_bytes=1))
    assert (refused.error_step, refused.errno) == ("overlay", errno.EROFS)
    assert launcher.uppers() == set()
    launcher.start("a", 0)
    assert launcher.say("a", "fill 1") == b"0"
    launcher.stop("a")


def test_snapshot_carries_files_to_the_next_instance(launcher: Launcher) -> None:
    launcher.slot(5, uid_base=UID_BASE)
    launcher.start("a", 0)
    assert launcher.say("a", "deep 3") == b"0"
    launcher.ok(plan.UpperSnapshot(instance="a", text="kept"))
    launcher.start("b", 5, upper_from="a", disk_bytes=16 << 20)
    launcher.start("c", 1)
    assert launcher.inside("upper/b/u/tmp/d/d/d").is_dir()
    launcher.stop("b")
    assert launcher.uppers() == {"a", "c", "kept"}
    launcher.ok(plan.UpperDrop("kept"))


def test_snapshot_in_another_range_of_ids_belongs_to_that_range(launcher: Launcher) -> None:
    """What a copy shows is its own range's; on disk all stays in the first one's."""
    launcher.slot(2)
    launcher.slot(3)
    launcher.start("a", 0)
    assert launcher.say("a", "deep 1") == b"0"
    os.chown(launcher.inside("upper/a/u/tmp/d"), UID_BASE + 7, UID_BASE + 7)
    launcher.ok(plan.UpperSnapshot(instance="a", text="kept"))
    for name, slot, source in (("b", 2, "kept"), ("c", 3, "b")):
        pid = launcher.start(name, slot, upper_from=source, uid_base=UID_BASE)
        root, base = Path(f"/proc/{pid}/root"), UID_BASE + slot * 65536
        assert (root.stat().st_uid, (root / "tmp/d").stat().st_uid) == (base, base + 7)
        os.chown(root / "tmp/d", base + 9, base + 9)
        assert launcher.inside(f"upper/{name}/u/tmp/d").stat().st_uid == UID_BASE + 9
        os.chown(root / "tmp/d", base + 7, base + 7)
    for name in "abc":
        launcher.stop(name)
    launcher.ok(plan.UpperDrop("kept"))


def test_copies_are_made_at_once_and_leave_nothing_beside_them(launcher: Launcher) -> None:
    """Each is made in a directory of its own, for a snapshot holds its directory's lock."""
    slots = range(2, 6)
    for slot in slots:
        launcher.slot(slot)
    launcher.start("a", 0)
    assert launcher.say("a", "deep 1") == b"0"
    launcher.ok(plan.UpperSnapshot(instance="a", text="kept"))
    wanted = [launcher.plan(f"c{slot}", slot, upper_from="kept") for slot in slots]
    assert [reply.failure for reply in launcher.ask(*wanted)] == [None] * len(slots)
    no_room = launcher.failure(launcher.plan("b", 1, upper_from="kept", disk_bytes=1))
    assert no_room.error_step == "overlay"
    assert all(launcher.inside(f"upper/c{slot}/u/tmp/d").is_dir() for slot in slots)
    assert launcher.uppers() == {"a", "kept", *(f"c{slot}" for slot in slots)}
    assert not list(launcher.inside("upper").glob(".at-*"))
    for name in ("a", *(f"c{slot}" for slot in slots)):
        launcher.stop(name)
    launcher.ok(plan.UpperDrop("kept"))


def test_what_a_copy_left_that_was_killed_goes(launcher: Launcher) -> None:
    """With its sandbox, and what nobody knows of with the next launcher."""
    upper = launcher.inside("upper")

    def broken_off(name: str) -> None:
        (upper / f".at-{name}").mkdir()
        made = [*("btrfs", "subvolume", "create"), upper / f".at-{name}" / name]
        subprocess.run(made, check=True, capture_output=True)

    launcher.start("a", 0)
    broken_off("a")
    launcher.stop("a")
    assert not list(upper.glob(".at-*"))
    broken_off("b")
    launcher.process.kill()
    launcher.process.wait()
    launcher.begin()
    assert not list(launcher.inside("upper").glob(".at-*"))


def test_plain_directories_serve_without_limits_and_deep_trees_go(
    make: Callable[..., Launcher],
) -> None:
    launcher = make(upper="dir")
    launcher.begin()
    launcher.prepare(0)
    refused = launcher.failure(launcher.plan("a", 0, disk_bytes=1 << 20))
    assert refused.errno == errno.EOPNOTSUPP
    launcher.start("a", 0)
    assert launcher.say("a", "deep 5000") == b"0"
    launcher.stop("a")
    trash = launcher.state / "pool" / ".trash"
    assert soon(lambda: not any(trash.iterdir()), 60)  # thousands of renames, on a busy machine
    launcher.drop(0)
    launcher.end()


@pytest.mark.parametrize(
    "field", ["agent_group", "work_group", "tasks", "socket", "oom_file", "step"]
)
def test_path_outside_of_the_roots_is_refused(launcher: Launcher, field: str) -> None:
    values: dict[str, object] = {
        "tasks": ("/etc/passwd",), "step": ("write /etc/passwd x",), "socket": "/tmp/x",
        "agent_group": str(launcher.unified / "agent"),
    }  # fmt: skip
    failure = launcher.failure(launcher.plan("a", 0, **{field: values.get(field, "/etc/passwd")}))
    assert failure.errno == errno.EACCES
    assert launcher.uppers() == set()


STEPS = (  # noqa: SIM905
    "mkdir socket upper limit clone session join hostname tasks work lower overlay shared leave root "
    "dev run proc devpts mqueue chroot hide readonly limits config descriptors seccomp identity exec"
).split()


@pytest.mark.parametrize("step", STEPS)
def test_start_that_fails_is_undone(make: Callable[..., Launcher], step: str) -> None:
    launcher = make(san=True)
    if step == "tasks" and not launcher.pids:
        pytest.skip("no v1 pids hierarchy")
    launcher.begin("--fail-at", step)
    launcher.prepare(0)
    before = launcher.descriptors()
    extra = launcher.group(0) / "more"
    request = launcher.plan("a", 0, disk_bytes=1 << 20, step=(f"mkdir {extra} 755 -1",))
    failure = launcher.failure(request)
    assert (failure.error_step, failure.errno) == (step, errno.EIO)
    assert launcher.uppers() == set()
    assert not extra.exists()
    assert list((launcher.run / "i").iterdir()) == []
    assert launcher.descriptors() == before
    launcher.drop(0)
    launcher.end()


def test_start_that_hangs_ends_at_its_deadline_while_others_go_on(
    make: Callable[..., Launcher],
) -> None:
    launcher = make(san=True)
    launcher.begin("--fail-at", "hang:hostname")
    launcher.prepare(0)
    number = next(launcher.ids)
    launcher.socket.send(launcher.plan("a", 0).encode(number))
    assert launcher.ok(plan.Status()).status().instance == ("a",)
    reply = replies.decode(launcher.socket.recv(1 << 16))
    assert isinstance(reply, replies.Reply)
    assert reply.failure is not None
    assert (reply.failure.error_step, reply.failure.errno) == ("deadline", errno.ETIMEDOUT)
    launcher.drop(0)
    launcher.end()


def test_plan_is_printed_without_privilege(tmp_path: Path) -> None:
    spawn = BUILD / "release" / "skerry-spawn"
    if not spawn.exists():
        pytest.skip("the launcher is not built")
    start = plan.StartPlan(
        instance="a", slot=1, layer=("low", "high"), hostname="box", shm_bytes=65536, config=b"",
        step=("mkdir /cg/s 755 7",), agent_group="/cg/s/agent", socket="/run/i/a",
    )  # fmt: skip
    slot = plan.SlotMake(slot=1, uid_base=200000, owner_uid=77)
    command = ["setpriv", "--reuid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    found = subprocess.run(
        [*command, spawn, "--dry-run"],
        input=slot.encode(1) + start.encode(2), capture_output=True, check=True,
    )  # fmt: skip
    words = [line.split()[1:3] for line in found.stdout.decode().splitlines()[1:]]
    assert words[0] == ["launcher", "mkdir"]
    assert [who for who, _ in words] == sorted((who for who, _ in words), reverse=True)
    assert words[-3:] == [["child", "seccomp"], ["child", "identity"], ["child", "exec"]]
    text = found.stdout.decode()
    assert text.index("/layers/high") < text.index("/layers/low")
    assert "uid and gid 77" in text
    assert "owned by 200000" in text


def test_log_is_bounded(make: Callable[..., Launcher]) -> None:
    launcher = make(san=True)
    launcher.run.mkdir(mode=0o700)
    log, old = launcher.run / "spawn.log", launcher.run / "spawn.log.1"
    for _ in range(2):  # the second time there is an older one, which goes
        log.write_bytes(b"x" * (1 << 20))
        launcher.begin("--log", str(log))
        launcher.prepare()
        launcher.failure(launcher.plan("a", 7))
        launcher.failure(launcher.plan("b", 7))
        assert log.stat().st_size < 2000
        assert log.read_text().count("\n") == 2
        assert old.stat().st_size == 1 << 20
        launcher.ok(plan.Shutdown())
        assert launcher.process.wait(20) == 0
    log.unlink()
    old.unlink()
    launcher.census()


def test_without_a_client_what_is_not_kept_ends_and_then_the_launcher(
    make: Callable[..., Launcher],
) -> None:
    launcher = make(san=True)
    launcher.run.mkdir(mode=0o700)
    keep = launcher.run / "keep"
    keep.mkdir()
    launcher.begin("--orphan-after", "1", "--keep", str(keep))
    launcher.prepare(0, 1)
    (keep / "a").touch()
    kept, goes = launcher.start("a", 0), launcher.start("b", 1)
    launcher.socket.close()
    assert ended(goes)
    assert proc.runs(kept)
    assert launcher.process.poll() is None
    (keep / "a").unlink()  # it is not to be kept any more, and nobody comes back
    assert launcher.process.wait(20) == 0
    keep.rmdir()
    launcher.census()


@pytest.fixture
def pair(make: Callable[..., Launcher]) -> Iterator[tuple[Launcher, Path, Path]]:
    """A launcher, a metadata blob in its state directory, and its data blob in a store elsewhere.

    The store is a file system of its own, as a shared one is.
    """
    launcher = make()
    store = launcher.base / "store"
    store.mkdir()
    mount_tmpfs(store)
    try:
        yield make_pair(launcher, store)
    finally:
        subprocess.run(["umount", "-l", store], check=False, capture_output=True)


def mount_tmpfs(at: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "store", at], check=True)


def make_pair(launcher: Launcher, store: Path) -> tuple[Launcher, Path, Path]:
    spool, tree, tools = Spool(str(store)), Tree(), Tools()
    for path, content in ((b"etc/os-release", b"NAME=pair\n"), (b"large", os.urandom(300_000))):
        file = Node(FileType.FILE, 0o644)
        file.content = spool.add([content])
        tree.put(path, file)
    for name in (b"proc", b"dev", b"tmp"):
        tree.put(name, make_directory())
    built = build_layer(tree, spool, str(store), tools=tools)
    spool.close()
    assert built.data
    metadata = launcher.state / "metadata"
    shutil.move(built.path, metadata)
    launcher.begin("--bind", str(store))
    launcher.prepare(0)
    return launcher, metadata, Path(built.data)


def test_layer_with_its_data_in_a_store_elsewhere_serves_instances(pair) -> None:
    launcher, metadata, data = pair
    layer = plan.LayerMount(layer="pair", path=str(metadata), device=str(data))
    launcher.ok(layer)
    launcher.ok(layer)
    launcher.start("a", 0, layer=("pair",))
    assert launcher.say("a", "cat /etc/os-release") == b"NAME=pair\n"
    # The files may go: the mount holds them.
    metadata.unlink()
    launcher.stop("a")
    launcher.ok(plan.LayerUnmount("pair"))
    assert launcher.failure(layer).errno == errno.ENOENT
    launcher.drop(0)
    subprocess.run(["umount", data.parent], check=True)
    launcher.end()


def test_store_that_is_mounted_anew_serves_again(pair) -> None:
    launcher, metadata, data = pair
    layer = plan.LayerMount(layer="pair", path=str(metadata), device=str(data))
    launcher.ok(layer)
    launcher.ok(plan.LayerUnmount("pair"))
    content = data.read_bytes()
    data.unlink()
    subprocess.run(["umount", data.parent], check=True)
    assert launcher.failure(layer).errno == errno.ENOENT
    mount_tmpfs(data.parent)
    data.write_bytes(content)
    launcher.ok(layer)
    launcher.start("a", 0, layer=("pair",))
    assert launcher.say("a", "cat /etc/os-release") == b"NAME=pair\n"
    launcher.stop("a")
    launcher.ok(plan.LayerUnmount("pair"))
    # What is gone from the same file system is just gone.
    data.unlink()
    before = Path(f"/proc/{launcher.process.pid}/mountinfo").read_text()
    assert launcher.failure(layer).errno == errno.ENOENT
    assert Path(f"/proc/{launcher.process.pid}/mountinfo").read_text() == before
    subprocess.run(["umount", data.parent], check=True)
    launcher.drop(0)
    launcher.end()


def test_device_that_cannot_be_had_is_named_and_mounts_nothing(pair) -> None:
    launcher, metadata, data = pair
    outside = launcher.base / "outside"
    shutil.copy(data, outside)
    (data.parent / "directory").mkdir()
    os.mkfifo(data.parent / "pipe")
    small = str(launcher.state / "small.erofs")
    cases = [
        (str(metadata), str(outside), errno.EACCES, "path", str(outside)),
        (str(metadata), f"{data.parent}/../outside", errno.EINVAL, "request", "device"),
        (str(outside), str(data), errno.EACCES, "path", str(outside)),
        (str(metadata), f"{data}.gone", errno.ENOENT, "device", f"{data}.gone"),
        (f"{metadata}.gone", str(data), errno.ENOENT, "file", f"{metadata}.gone"),
        (small, str(data), errno.EINVAL, "erofs", None),  # it has no slot
        (str(data), str(data), None, "erofs", None),  # no image
        (str(metadata), str(data.parent / "directory"), errno.EINVAL, "device", "directory"),
        (str(metadata), str(data.parent / "pipe"), errno.EINVAL, "device", "pipe"),
    ]
    for path, device, number, step, word in cases:
        failure = launcher.failure(plan.LayerMount(layer="bad", path=path, device=device))
        assert failure.error_step == step, (path, device, failure)
        assert number in (None, failure.errno), (path, device, failure)
        assert word is None or word in failure.text
    assert launcher.ok(plan.Status()).status().layer == ("small",)
    launcher.ok(plan.LayerMount(layer="bad", path=str(metadata), device=str(data)))
    launcher.drop(0)
    subprocess.run(["umount", data.parent], check=True)
    launcher.end()
