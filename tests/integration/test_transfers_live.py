"""Trees and large files between here and real sandboxes: what survives, and what it costs."""

from __future__ import annotations

import asyncio
import io
import os
import socket
import stat
import tarfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.root

MIB = 1 << 20


class Stop(Exception):
    """What a progress callback raises to end a transfer."""


@pytest.fixture
async def box(node_client):
    async with await node_client.sandboxes.create() as sandbox:
        yield sandbox


def tree_of(top: Path) -> dict[bytes, tuple]:
    """Name -> what it is, of everything below."""
    found = {}
    for where, directories, names in os.walk(os.fsencode(top)):
        for name in (*directories, *names):
            path = os.path.join(where, name)
            status = os.lstat(path)
            kind = stat.S_IFMT(status.st_mode)
            what = os.readlink(path) if kind == stat.S_IFLNK else b""
            if kind == stat.S_IFREG:
                what = Path(os.fsdecode(path)).read_bytes()
            mode = 0 if kind == stat.S_IFLNK else stat.S_IMODE(status.st_mode)
            times = 0 if kind != stat.S_IFREG else status.st_mtime_ns
            found[os.path.relpath(path, os.fsencode(top))] = (kind, mode, times, what)
    return found


def peak_kib(pid: int) -> int:
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1])


async def test_odd_tree_survives_both_ways(box, tmp_path):
    """Names, modes, links and dotfiles come back as they went (reports 35 and 37)."""
    source = tmp_path / "in"
    source.mkdir()
    for name in (
        b"\xff\xfe",
        b"new\nline",
        b" ",
        b"-rf",
        b"*",
        "ä漢字".encode(),
        b"n" * 255,
        b".dot",
    ):
        Path(os.fsdecode(os.path.join(os.fsencode(source), name))).write_bytes(name)
    (source / "closed").write_text("mode 0000")
    (source / "closed").chmod(0)
    (source / "shut").mkdir()
    (source / "shut" / "inside").write_text("x")
    (source / "shut").chmod(0o500)
    (source / "way").symlink_to("/etc/passwd")
    (source / "dangling").symlink_to("nowhere")
    (source / "one").write_text("two names")
    os.link(source / "one", source / "two")
    os.utime(source / "one", ns=(1_234_567_890_123_456_789, 1_234_567_890_123_456_789))
    assert (await box.files.upload(source, "/srv/tree")).notes == ()
    assert (await box.files.download("/srv/tree", tmp_path / "out")).notes == ()
    assert tree_of(tmp_path / "out") == tree_of(source)
    assert (tmp_path / "out/two").stat().st_nlink == 2
    names = {info.name: info for info in await box.files.list("/srv/tree")}
    odd = os.fsdecode(b"\xff\xfe")
    assert names[odd].size == 2
    assert await box.files.read(f"/srv/tree/{odd}") == b"\xff\xfe"
    await box.files.move(f"/srv/tree/{odd}", "/srv/tree/even")
    assert (await box.files.stat("/srv/tree/even")).size == 2


async def test_paths_longer_than_the_kernel_takes_survive_both_ways(box, tmp_path):
    """Sixty directories of a hundred letters: 6,000 bytes in sum."""
    top = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    os.mkdir("in", dir_fd=top)
    place = os.open("in", os.O_RDONLY | os.O_DIRECTORY, dir_fd=top)
    for _ in range(60):
        os.mkdir("d" * 100, dir_fd=place)
        below = os.open("d" * 100, os.O_RDONLY | os.O_DIRECTORY, dir_fd=place)
        os.close(place)
        place = below
    leaf = os.open("leaf", os.O_WRONLY | os.O_CREAT, 0o640, dir_fd=place)
    os.write(leaf, b"deep")
    os.close(leaf)
    os.close(place)
    os.close(top)
    await box.files.upload(tmp_path / "in", "/srv/deep")
    found = await box.files.find("/srv/deep", "leaf")
    assert [info.name.count("/") for info in found] == [60]
    assert len(found[0].name) > 6_000
    await box.files.copy("/srv/deep", "/srv/again", recursive=True)
    await box.files.download("/srv/again", tmp_path / "out")
    place = os.open(tmp_path / "out", os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(60):
        below = os.open("d" * 100, os.O_RDONLY | os.O_DIRECTORY, dir_fd=place)
        os.close(place)
        place = below
    assert os.listdir(place) == ["leaf"]
    os.close(place)
    await box.files.remove("/srv/deep", recursive=True)
    assert not await box.files.exists("/srv/deep")


async def test_sparse_terabyte_crosses_as_what_it_holds(box, tmp_path):
    """Alone and in a tree, up and down: neither an hour nor a full disk."""
    source = tmp_path / "in" / "sparse"
    source.parent.mkdir()
    with source.open("wb") as file:
        file.truncate(1 << 40)
        for at in (0, 1 << 35, (1 << 40) - 4096):
            file.seek(at)
            file.write(os.urandom(4096))
    up = await box.files.upload(source, "/srv/alone")
    assert up.bytes < 64 * 1024
    await box.files.upload(source.parent, "/srv/tree")
    for path in ("/srv/alone", "/srv/tree/sparse"):
        info = await box.files.stat(path)
        assert info.size == 1 << 40
        assert info.allocated < MIB
        back = tmp_path / "back"
        assert (await box.files.download(path, back)).bytes < 64 * 1024
        assert (back.stat().st_size, back.stat().st_blocks * 512 < MIB) == (1 << 40, True)
        for at in (0, 1 << 35, (1 << 40) - 4096):
            with back.open("rb") as ours, source.open("rb") as theirs:
                assert os.pread(ours.fileno(), 4096, at) == os.pread(theirs.fileno(), 4096, at)
    await box.files.copy("/srv/alone", "/srv/copy")
    assert (await box.files.stat("/srv/copy")).allocated < MIB
    await box.files.download("/srv/tree", tmp_path / "tree")
    assert (tmp_path / "tree/sparse").stat().st_blocks * 512 < MIB


async def test_sparse_tar_of_gnu_tar_is_understood(box, tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    with (source / "sparse").open("wb") as file:
        file.truncate(64 * MIB)
        file.seek(32 * MIB)
        file.write(b"middle")
    archive = tmp_path / "a.tar"
    argv = ["tar", "-C", str(source), "--format=pax", "-Scf", str(archive), "."]
    process = await asyncio.create_subprocess_exec(*argv)
    assert await process.wait() == 0
    assert archive.stat().st_size < MIB

    async def chunks():
        yield archive.read_bytes()

    await box.files.put_tree("/srv/gnu", chunks())
    info = await box.files.stat("/srv/gnu/sparse")
    assert (info.size, info.allocated < MIB) == (64 * MIB, True)
    assert await box.files.read("/srv/gnu/sparse", offset=32 * MIB, length=6) == b"middle"
    back = tmp_path / "b.tar"
    back.write_bytes(b"".join([chunk async for chunk in box.files.get_tree("/srv/gnu")]))
    (tmp_path / "out").mkdir()
    argv = ["tar", "-C", str(tmp_path / "out"), "-xf", str(back)]
    process = await asyncio.create_subprocess_exec(*argv)
    assert await process.wait() == 0
    assert (tmp_path / "out/sparse").read_bytes() == (source / "sparse").read_bytes()


async def test_what_cannot_be_carried_is_said(box, tmp_path):
    """FIFOs, sockets and devices are left out with a note, on both sides."""
    await box.run(
        "mkdir -p /srv/t && cd /srv/t && mkfifo pipe && echo x > file && python3 -c 'import socket;"
        ' socket.socket(socket.AF_UNIX).bind("sock")\''
    )
    down = await box.files.download("/srv/t", tmp_path / "down")
    assert sorted(os.listdir(tmp_path / "down")) == ["file"]
    assert sorted(down.notes) == ["skipped pipe (a FIFO)", "skipped sock"]
    os.mkfifo(tmp_path / "down/fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "down/s"))
    up = await box.files.upload(tmp_path / "down", "/srv/up")
    assert sorted(up.notes) == ["skipped fifo (a FIFO)", "skipped s (a socket)"]
    assert [info.name for info in await box.files.list("/srv/up")] == ["file"]


async def test_setuid_bit_never_reaches_the_host(box, tmp_path):
    """A guest's set-id bits stay inside (report 38)."""
    await box.run(
        "mkdir /srv/s && cp /bin/true /srv/s/su && chmod 6755 /srv/s/su && chmod 3777 /srv/s"
    )
    await box.files.download("/srv/s", tmp_path / "tree")
    await box.files.download("/srv/s/su", tmp_path / "su")
    for path in (tmp_path / "su", tmp_path / "tree/su"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o755


async def test_dot_and_slash_are_entries_of_a_tree(box):
    """ "." and "/" in an archive stand for the tree itself (report 42)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in (".", "./", "/", "./f", "sub/.", "sub/./g"):
            info = tarfile.TarInfo(name)
            if name in ("./f", "sub/./g"):
                info.size = 1
                tar.addfile(info, io.BytesIO(b"x"))
            else:
                info.type, info.mode = tarfile.DIRTYPE, 0o700
                tar.addfile(info)

    async def chunks():
        yield out.getvalue()

    await box.files.mkdir("/srv/dots", mode=0o751)
    await box.files.put_tree("/srv/dots", chunks())
    found = {info.name for info in await box.files.find("/srv/dots")}
    assert found == {"f", "sub", "sub/g"}
    assert (await box.files.stat("/srv/dots")).mode == 0o751


async def test_progress_is_told_and_an_abort_leaves_no_half_file(box, tmp_path):
    """Transfers report progress and can be aborted (report 41)."""
    (tmp_path / "big").write_bytes(os.urandom(24 * MIB))
    seen = []

    def stop_in_the_middle(size):
        seen.append(size)
        if sum(seen) > 8 * MIB:
            raise Stop

    for target in ("/srv/file", "/srv/tree"):
        seen.clear()
        source = tmp_path / "big" if target == "/srv/file" else tmp_path
        with pytest.raises(Stop):
            await box.files.upload(source, target, progress=stop_in_the_middle)
        assert sum(seen) < 24 * MIB
    await box.files.upload(tmp_path / "big", "/srv/whole")
    assert [i.name for i in await box.files.find("/srv", types="f")] == ["whole"]
    seen.clear()
    (tmp_path / "down").mkdir()
    with pytest.raises(Stop):
        await box.files.download("/srv/whole", tmp_path / "down/x", progress=stop_in_the_middle)
    assert os.listdir(tmp_path / "down") == []
    assert not (await box.run("ls -A /srv /root | grep skerry")).stdout


async def test_transfers_take_constant_memory_everywhere(live_node, box, tmp_path):
    """Of the node, this client, the agent and its helper, by 320 MiB each way."""
    with (tmp_path / "big").open("wb") as file:
        for _ in range(320):
            file.write(os.urandom(MIB))

    def inside() -> list[int]:
        found = []
        for name in os.listdir("/proc"):
            try:
                if name.isdigit() and "memfd:" in os.readlink(f"/proc/{name}/exe"):
                    found.append(peak_kib(int(name)))
            except (OSError, StopIteration):
                continue
        return found

    await box.files.upload(tmp_path / "big", "/srv/warm")
    before = peak_kib(live_node.pid), peak_kib(os.getpid())
    peaks: list[int] = []

    def watch_peaks(_size: int) -> None:
        if len(peaks) < 40:
            peaks.append(max(inside(), default=0))

    await box.files.upload(tmp_path / "big", "/srv/big", progress=watch_peaks)
    await box.files.download("/srv/big", tmp_path / "back", progress=watch_peaks)
    assert peak_kib(live_node.pid) - before[0] < 32 * 1024
    assert peak_kib(os.getpid()) - before[1] < 48 * 1024
    assert 0 < max(peaks) < 16 * 1024
    assert (tmp_path / "back").stat().st_size == 320 * MIB
    assert (await box.run("cmp /srv/warm /srv/big")).ok


async def test_ten_thousand_small_files_survive_both_ways(box, tmp_path):
    source = tmp_path / "in"
    for directory in range(100):
        (source / str(directory)).mkdir(parents=True)
        for number in range(100):
            (source / str(directory) / str(number)).write_bytes(b"%d" % (directory * number))
    await box.files.upload(source, "/srv/many")
    usage = await box.files.usage("/srv/many")
    assert (usage.files, usage.directories) == (10_000, 101)
    await box.files.download("/srv/many", tmp_path / "out")
    assert tree_of(tmp_path / "out") == tree_of(source)


async def test_tree_that_changes_while_it_is_read_is_whole_and_says_so(box, tmp_path):
    await box.run(
        "mkdir /srv/c && cd /srv/c && for n in $(seq 200); do head -c 200000 /dev/zero > f$n; done"
    )
    await box.run(
        "setsid sh -c 'cd /srv/c; while :; do for n in $(seq 200); do echo x >> f$n; : > f$((201-n));"
        " rm -f g; mkdir g; rmdir g; touch g; done; done' >/dev/null 2>&1 &"
    )
    # One that takes long to read, and is written to all that time.
    await box.run("head -c 30000000 /dev/zero > /srv/c/f0")
    await box.run("setsid sh -c 'while :; do echo x >> /srv/c/f0; done' >/dev/null 2>&1 &")
    notes: list[str] = []
    for number in range(4):
        done = await box.files.download("/srv/c", tmp_path / str(number))
        notes += done.notes
        assert len(os.listdir(tmp_path / str(number))) >= 199
    assert any(note.startswith("changed f") for note in notes)
