"""Block disks with a real file system on them: written on one node, read on another."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from disk_stand import GIB, KIB, MIB, Rig, attached, mounted, run, until

from s3_place import s3_options
from skerry.cli.holdings import take
from skerry.errors import Conflict, NotFound
from skerry.images.lazy.fetch import FetchConfig
from skerry.testing.link import link
from skerry.testing.s3_server import S3Server

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    before = run("losetup", "-a")
    with Rig(tmp_path, str(tmp_path / "store")) as found:
        yield found
    left = set(run("losetup", "-a").splitlines()) - set(before.splitlines())
    assert not [line for line in left if str(tmp_path) in line]
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


def write_files(at: Path, count: int, seed: int) -> dict[str, str]:
    """Writes files of all sizes; returns their digests."""
    draw = random.Random(seed)
    digests = {}
    for number in range(count):
        content = draw.randbytes(draw.choice((10, 5_000, 70_000, 900_000)))
        path = at / f"d{number % 7}" / f"{seed}-{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        digests[str(path.relative_to(at))] = hashlib.sha256(content).hexdigest()
    return digests


def check_files(at: Path, digests: dict[str, str]) -> None:
    for name, digest in digests.items():
        assert hashlib.sha256((at / name).read_bytes()).hexdigest() == digest, name


def sync(at: Path) -> None:
    run("sync", "-f", str(at))


def test_snapshot_of_a_disk_in_use_opens_elsewhere_at_once_and_fetches_little(rig: Rig) -> None:
    a, b = rig.node("a"), rig.node("b")
    a.create("ws", 4 * GIB)
    view = a.open("ws")
    with mounted(rig.place, view.path, mkfs=True) as at:
        digests = write_files(at, 60, 1)
        (at / "bulk").write_bytes(random.Random(9).randbytes(48 * MIB))
        sync(at)
        going = threading.Event()

        def writer() -> None:
            number = 0
            while not going.is_set():
                (at / "counter").write_text(f"{number}\n" * 1000)
                number += 1

        thread = threading.Thread(target=writer)
        thread.start()
        try:
            a.snapshot("ws", "ws:one")
            with pytest.raises(Conflict):
                a.close("ws", discard=True)
            manifest = a.wait("ws", "disk/ws:one", 60)
        finally:
            going.set()
            thread.join()
        after = write_files(at, 20, 2)
        sync(at)
        check_files(at, digests | after)
    assert manifest.disk_bytes == 4 * GIB
    opened = b.open("ws:one")
    assert b.status().stats["fetched_bytes"] == 0
    with attached(opened.path) as device:
        # The journal is replayed, as after a loss of power; then nothing is wrong.
        run("e2fsck", "-p", device, codes=(0, 1))
        run("e2fsck", "-fn", device)
        with mounted(rig.place, device) as at:
            check_files(at, digests)
            assert not any((at / name).exists() for name in after)
    fetched = b.status().stats["fetched_bytes"]
    assert 0 < fetched < manifest.stored_bytes / 2


def test_killed_service_loses_nothing_and_its_users_only_wait(rig: Rig) -> None:
    a = rig.node("a")
    a.create("ws", GIB)
    view = a.open("ws")
    with mounted(rig.place, view.path, mkfs=True) as at:
        digests = write_files(at, 20, 1)
        sync(at)
        for round_ in range(3):
            stop = threading.Timer(0.2, os.kill, (a.status().pid, signal.SIGKILL))
            stop.start()
            digests |= write_files(at, 60, 10 + round_)
            sync(at)
            stop.join()
            drop_caches(at)
            check_files(at, digests)
        pid = a.status().pid
        a.snapshot("ws", "ws:killed")
        os.kill(pid, signal.SIGKILL)  # a snapshot that was answered is made all the same
        a.wait("ws", "ws:killed", 60)
        assert a.status().pid != pid
        drop_caches(at)
        check_files(at, digests)
    b = rig.node("b")
    with attached(b.open("ws:killed").path) as device:
        run("e2fsck", "-p", device, codes=(0, 1))
        with mounted(rig.place, device) as at:
            check_files(at, digests)


def drop_caches(at: Path) -> None:
    """Lets the next reads of a file system's files ask the device."""
    for directory, _, names in os.walk(at):
        for name in names:
            with contextlib.suppress(OSError), open(os.path.join(directory, name), "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_chain_of_fifty_snapshots_stays_flat_and_equal(rig: Rig) -> None:
    a, b = rig.node("a", blobs_max=6), rig.node("b")
    a.create("chain", 64 * MIB)
    path = a.open("chain").path
    expected = bytearray(64 * MIB)
    draw = random.Random(5)
    with open(path, "r+b", buffering=0) as disk:
        for number in range(50):
            for _ in range(3):
                at = draw.randrange(64 * MIB - 300 * KIB) // 512 * 512
                data = draw.randbytes(draw.choice((512, 4096, 70_000 // 512 * 512, 256 * KIB)))
                os.pwrite(disk.fileno(), data, at)
                expected[at : at + len(data)] = data
            manifest = a.snapshot("chain", f"chain:{number}", wait_s=60)
            assert manifest is not None
            assert len(manifest.layers()) <= 6
    assert Path(path).read_bytes() == expected
    opened = b.open("chain:49")
    assert Path(opened.path).read_bytes() == expected
    flat = b.flatten("chain:49")
    assert len(flat.layers()) <= 2
    c = rig.node("c")
    assert Path(c.open("chain:49").path).read_bytes() == expected
    # An earlier one is still what it was, whatever was folded since.
    assert Path(c.open("chain:0", "first").path).stat().st_size == 64 * MIB


def test_collection_keeps_what_named_and_open_disks_need(rig: Rig) -> None:
    a = rig.node("a")
    a.create("gc", 16 * MIB)
    with open(a.open("gc").path, "r+b", buffering=0) as disk:
        for number in range(3):
            os.pwrite(disk.fileno(), random.Random(number).randbytes(MIB), number * MIB)
            a.snapshot("gc", f"gc:{number}", wait_s=60)
    expected = Path(a.view("gc").path).read_bytes()
    library = rig.library()
    until(lambda: len(list(library.store.pins())) == 1)
    for name in ("disk/gc:latest", "disk/gc:0", "disk/gc:1"):
        library.remove(name)
    needed = a.find("gc:2").blobs()
    assert len(needed) == 6  # three maps and three data blobs
    kept = {one.digest: set(one.why) for one in library.look().kept}
    assert all({"tag disk/gc:2", "pin disk-a-gc"} <= kept[digest] for digest in needed)
    library.collect()
    b = rig.node("b")
    assert Path(b.open("gc:2").path).read_bytes() == expected
    assert library.verify("disk/gc:2").damage == ()
    with pytest.raises(Conflict, match="open on a node"):
        library.remove("disk/gc:2")
    for node in (a, b):
        node.close("gc")
    library.remove("disk/gc:2")
    with pytest.raises(NotFound):
        b.open("gc:2")
    # Nothing but what makers of blobs hold for a few seconds more.
    reasons = {why for one in library.look().kept for why in one.why}
    assert all(why.startswith("lease of ") for why in reasons)


def test_trim_frees_room_here_and_in_the_next_snapshot(rig: Rig) -> None:
    a = rig.node("a")
    a.create("trim", 256 * MIB)
    with mounted(rig.place, a.open("trim").path, mkfs=True) as at:
        (at / "bulk").write_bytes(random.Random(1).randbytes(64 * MIB))
        sync(at)
        assert a.view("trim").local_bytes > 64 * MIB
        (at / "bulk").unlink()
        sync(at)
        run("fstrim", str(at))
        assert a.view("trim").local_bytes < 16 * MIB
        first = a.snapshot("trim", "trim:1", frozen=str(at), wait_s=60)
        (at / "bulk").write_bytes(random.Random(2).randbytes(64 * MIB))
        second = a.snapshot("trim", "trim:2", frozen=str(at), wait_s=60)
        (at / "bulk").unlink()
        sync(at)
        run("fstrim", str(at))
        third = a.snapshot("trim", "trim:3", frozen=str(at), wait_s=60)
    assert first is not None
    assert second is not None
    assert third is not None
    assert first.stored_bytes < 8 * MIB
    assert second.stored_bytes > 60 * MIB
    assert third.total_bytes < 8 * MIB  # what no chunk of it needs is not named any more
    assert rig.library().verify("disk/trim:3").damage == ()


def write_until_full(handle: int) -> None:
    for number in range(1, 64):
        os.pwrite(handle, random.Random(number).randbytes(MIB), number * 4 * MIB)


def read_all(handle: int) -> None:
    for number in range(32):
        os.pread(handle, 256 * KIB, number * 256 * KIB)


def test_full_local_disk_refuses_writes_and_keeps_what_was_acknowledged(
    rig: Rig, tmp_path: Path
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(small))
    try:
        a = rig.node("a", root=small / "disks")
        a.create("full", 256 * MIB)
        handle = os.open(a.open("full").path, os.O_RDWR)
        try:
            kept = random.Random(1).randbytes(4 * MIB)
            os.pwrite(handle, kept, 0)
            os.fsync(handle)
            with pytest.raises(OSError, match="No space left"):
                write_until_full(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(handle, 4 * MIB, 0) == kept
            os.kill(a.status().pid, signal.SIGKILL)
            assert os.pread(handle, 4 * MIB, 0) == kept
        finally:
            os.close(handle)
        a.close("full", discard=True, force=True)
        a.stop()
    finally:
        run("umount", str(small))


def test_damaged_chunk_is_refused_and_a_blob_that_is_cut_off_ends_reads_in_time(rig: Rig) -> None:
    hasty = FetchConfig(wait_s=0.5, range_bytes=256 * KIB, ahead_bytes=0)
    a, b = rig.node("a"), rig.node("b", fetch=hasty)
    a.create("bad", 16 * MIB)
    with open(a.open("bad").path, "r+b", buffering=0) as disk:
        os.pwrite(disk.fileno(), random.Random(1).randbytes(8 * MIB), 0)
    a.snapshot("bad", "bad:1", wait_s=60)
    (data,) = (path for path in rig.blob_files() if path.suffix == ".zst")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.chmod(0o600)
    data.write_bytes(content)
    handle = os.open(b.open("bad:1").path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="Input/output error"):
            read_all(handle)
        assert b.status().stats["verify_failures"] >= 3
    finally:
        os.close(handle)
    c = rig.node("c", fetch=hasty)
    handle = os.open(c.open("bad:1").path, os.O_RDONLY)
    try:
        os.truncate(data, 0)
        began = time.monotonic()
        with pytest.raises(OSError, match="Input/output error"):
            os.pread(handle, 4096, 31 * 256 * KIB)
        assert time.monotonic() - began < 20
    finally:
        os.close(handle)


def test_disk_in_a_bucket_over_a_slow_link(tmp_path: Path, s3_server: S3Server) -> None:
    options = s3_options(s3_server, tmp_path)
    with (
        link(s3_server.port, rate=20e6, latency_s=0.002) as far,
        Rig(tmp_path, f"s3://{s3_server.bucket}/{tmp_path.name}", options) as rig,
    ):
        a = rig.node("a")
        a.create("s3", GIB)
        with mounted(rig.place, a.open("s3").path, mkfs=True) as at:
            digests = write_files(at, 20, 1)
            (at / "bulk").write_bytes(random.Random(9).randbytes(32 * MIB))
            manifest = a.snapshot("s3", "s3:1", frozen=str(at), wait_s=120)
        assert manifest is not None
        b = rig.node("b", endpoint=far.endpoint)
        with mounted(rig.place, b.open("s3:1").path) as at:
            check_files(at, digests)
        assert b.status().stats["fetched_bytes"] < manifest.stored_bytes * 0.7


def test_stopped_service_serves_the_same_again(rig: Rig) -> None:
    a = rig.node("a")
    a.create("again", 16 * MIB)
    content = random.Random(1).randbytes(3 * MIB + 700)
    path = a.open("again").path
    with open(path, "r+b") as disk:
        disk.write(content)
        with pytest.raises(Conflict):
            a.stop()
        listed = [(thing.kind, thing.what) for thing in take().things]
        assert ("open disk", f"{a.config.root}/open/again") in listed
        label = f"{a.status().pid} "
        assert any(kind == "disk service" and what.startswith(label) for kind, what in listed)
    until(lambda: a.view("again").opens == 0)
    a.stop()
    assert not Path(path).exists()
    a.start()
    assert Path(path).read_bytes()[: len(content)] == content
    with pytest.raises(Conflict):
        a.close("again")
    a.close("again", discard=True)
    assert subprocess.run(["ls", a.config.mount], capture_output=True, check=True).stdout == b""


def test_parts_of_blocks_are_written_on_a_cold_node_by_many_at_once(rig: Rig) -> None:
    a, b = rig.node("a"), rig.node("b")
    a.create("mix", 16 * MIB)
    expected = bytearray(random.Random(1).randbytes(16 * MIB))
    with open(a.open("mix").path, "r+b", buffering=0) as disk:
        for at in range(0, 16 * MIB, MIB):
            os.pwrite(disk.fileno(), expected[at : at + MIB], at)
    a.snapshot("mix", "mix:1", wait_s=60)
    path = b.open("mix:1").path
    parts = [(at, random.Random(at).randbytes(700)) for at in range(300, 16 * MIB - MIB, 1300)]
    for at, data in parts:
        expected[at : at + len(data)] = data
    failures: list[Exception] = []

    def write(mine: list[tuple[int, bytes]]) -> None:
        try:
            handle = os.open(path, os.O_RDWR)
            for at, data in mine:
                os.pwrite(handle, data, at)
            os.close(handle)
        except OSError as error:
            failures.append(error)

    # Neighbours share blocks, and chunks come from the store meanwhile.
    threads = [threading.Thread(target=write, args=(parts[one::4],)) for one in range(4)]
    for thread in threads:
        thread.start()
    b.snapshot("mix", "mix:between")
    for thread in threads:
        thread.join()
    assert not failures
    b.wait("mix", "mix:between", 60)
    assert Path(path).read_bytes() == expected
    handle = os.open(path, os.O_RDWR)
    punch(handle, 5000, 300_000)
    expected[5000:305_000] = bytes(300_000)
    os.close(handle)
    assert Path(path).read_bytes() == expected
    b.snapshot("mix", "mix:2", wait_s=60)
    assert Path(path).read_bytes() == expected
    assert Path(a.open("mix:2", "again").path).read_bytes() == expected


def punch(handle: int, offset: int, length: int) -> None:
    """Makes zeros of a range, as a loop device does when its blocks are discarded."""
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.fallocate(handle, 3, ctypes.c_int64(offset), ctypes.c_int64(length))
    assert done == 0, os.strerror(ctypes.get_errno())


def test_disk_that_is_closed_while_it_is_packed_leaves_nothing(rig: Rig) -> None:
    a = rig.node("a")
    a.create("gone", 64 * MIB)
    with open(a.open("gone").path, "r+b", buffering=0) as disk:
        for at in range(32):
            os.pwrite(disk.fileno(), random.Random(at).randbytes(MIB), at * MIB)
    until(lambda: a.view("gone").opens == 0)
    a.snapshot("gone", "gone:1")
    with pytest.raises(Conflict):
        a.close("gone")
    a.close("gone", discard=True)
    root = Path(a.config.root)
    until(lambda: not list((root / "jobs").iterdir()), 60)
    until(lambda: not list(a.store.pins()), 60)
    assert not list((root / "open").iterdir())
    assert not list((root / "scratch").iterdir())


def test_service_is_started_once_by_many_at_once(rig: Rig) -> None:
    one, other = rig.node("a"), rig.node("a")
    with ThreadPoolExecutor(2) as threads:
        views = list(threads.map(lambda node: node.start(), (one, other)))
    assert views[0].pid == views[1].pid


def test_command_line_makes_opens_and_closes_disks(tmp_path: Path) -> None:
    def skerry(*words: str, codes: tuple[int, ...] = (0,)) -> str:
        where = ("--state", str(tmp_path / "state"), "--run", str(tmp_path / "run"))
        return run(sys.executable, "-m", "skerry.cli.main", *where, "disk", *words, codes=codes)

    try:
        assert skerry("create", "disk/cli", "--size", "16MiB").startswith("disk/cli:latest@sha256:")
        path = Path(skerry("open", "cli", "work").strip())
        assert path.stat().st_size == 16 * MIB
        run("mkfs.ext4", "-q", str(path))
        until(lambda: '"opens": 0' in skerry("status", "--json"))
        assert skerry("snapshot", "work", "cli:fs").startswith("disk/cli:fs@sha256:")
        assert [line.split()[0] for line in skerry("ls").splitlines()[1:]] == [
            "disk/cli:fs",
            "disk/cli:latest",
        ]
        assert '"disk_bytes": 16777216' in skerry("inspect", "cli:fs")
        with path.open("r+b") as file:
            file.write(b"changed")
        until(lambda: '"opens": 0' in skerry("status", "--json"))
        skerry("close", "work", codes=(125,))
        skerry("close", "work", "--discard")
        assert "work" not in skerry("status")
    finally:
        skerry("stop", "--force")
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
