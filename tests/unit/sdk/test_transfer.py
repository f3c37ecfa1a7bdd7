"""Trees to and from a sandbox: what survives, what is refused on this side."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import stat
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skerry.errors import InvalidRequest, SandboxFailed
from skerry.sdk.files import AsyncFiles
from skerry.sdk.transfer import file_chunks, pack_tree, unpack_tree
from skerry.sdk.transport import Transport


async def pieces(data: bytes, size: int = 1000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


async def test_a_tree_with_odd_names_and_links_comes_back_equal(tmp_path: Path) -> None:
    source = tmp_path / "in"
    (source / ".dot" / "schöne Datei").mkdir(parents=True)
    (source / ".dot" / "schöne Datei" / "x").write_bytes(os.urandom(700_000))
    (source / "link").symlink_to(".dot/schöne Datei/x")
    (source / "run").write_text("#!/bin/sh\n")
    (source / "run").chmod(0o755)
    os.mkdir(os.fsencode(source) + b"/bad\xff")
    await unpack_tree(pack_tree(source), tmp_path / "out")
    out = tmp_path / "out"
    assert (out / ".dot/schöne Datei/x").read_bytes() == (
        source / ".dot/schöne Datei/x"
    ).read_bytes()
    assert os.readlink(out / "link") == ".dot/schöne Datei/x"
    assert stat.S_IMODE((out / "run").stat().st_mode) == 0o755
    assert b"bad\xff" in os.listdir(os.fsencode(out))


async def test_members_are_owned_by_root_in_the_packed_tree(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    packed = b"".join([chunk async for chunk in pack_tree(tmp_path)])
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        assert [(member.uid, member.gid, member.uname) for member in tar] == [(0, 0, "")]


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil"])
async def test_a_member_that_leaves_the_target_is_refused(tmp_path: Path, name: str) -> None:
    target = tmp_path / "deep" / "target"
    with contextlib.suppress(SandboxFailed):
        await unpack_tree(pieces(tar_of((tarfile.TarInfo(name), b"x"))), target)
    assert not (tmp_path / "deep" / "evil").exists()
    assert not (tmp_path / "evil").exists()
    assert not Path("/etc/evil").exists()


async def test_a_link_that_leaves_the_target_is_refused(tmp_path: Path) -> None:
    link = tarfile.TarInfo("way")
    link.type = tarfile.SYMTYPE
    link.linkname = "../.."
    with pytest.raises(SandboxFailed):
        await unpack_tree(
            pieces(tar_of((link, b""), (tarfile.TarInfo("way/x"), b"1"))), tmp_path / "t"
        )


async def test_a_setuid_bit_does_not_reach_this_host(tmp_path: Path) -> None:
    info = tarfile.TarInfo("su")
    info.mode = 0o6755
    await unpack_tree(pieces(tar_of((info, b"x"))), tmp_path)
    assert stat.S_IMODE((tmp_path / "su").stat().st_mode) & 0o6000 == 0


async def test_a_device_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("null")
    info.type = tarfile.CHRTYPE
    info.devmajor, info.devminor = 1, 3
    with pytest.raises(SandboxFailed):
        await unpack_tree(pieces(tar_of((info, b""))), tmp_path)


async def test_a_stream_that_breaks_off_is_an_error(tmp_path: Path) -> None:
    whole = tar_of((tarfile.TarInfo("a"), os.urandom(50_000)))
    with pytest.raises(SandboxFailed):
        await unpack_tree(pieces(whole[:20_000]), tmp_path)


async def test_a_reader_that_stops_early_ends_the_packing_thread(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(8 << 20))
    stream = pack_tree(tmp_path)
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]


async def test_packing_what_is_no_directory_is_the_callers_fault(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="not a directory"):
        await anext(pack_tree(tmp_path / "missing"))


async def test_a_prefix_places_the_tree_with_its_parents(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    packed = b"".join([chunk async for chunk in pack_tree(tmp_path, prefix="/opt/tool")])
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        assert [member.name for member in tar] == ["opt", "opt/tool", "opt/tool/f"]


async def test_links_to_absolute_paths_are_kept_as_links(tmp_path: Path) -> None:
    link = tarfile.TarInfo("venv/bin/python")
    link.type = tarfile.SYMTYPE
    link.linkname = "/usr/bin/python3"
    await unpack_tree(pieces(tar_of((link, b""))), tmp_path / "t")
    assert os.readlink(tmp_path / "t/venv/bin/python") == "/usr/bin/python3"


async def test_a_hard_link_to_outside_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    link = tarfile.TarInfo("way")
    link.type = tarfile.LNKTYPE
    link.linkname = "../secret"
    with pytest.raises(SandboxFailed):
        await unpack_tree(pieces(tar_of((link, b""))), tmp_path / "t")


async def test_a_file_in_the_place_of_a_link_replaces_the_link(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("untouched")
    link = tarfile.TarInfo("x")
    link.type = tarfile.SYMTYPE
    link.linkname = str(tmp_path / "outside")
    await unpack_tree(pieces(tar_of((link, b""), (tarfile.TarInfo("x"), b"new"))), tmp_path / "t")
    assert (tmp_path / "outside").read_text() == "untouched"
    assert (tmp_path / "t/x").read_text() == "new"


async def test_a_directory_closed_to_its_owner_is_filled_first(tmp_path: Path) -> None:
    place = tarfile.TarInfo("d")
    place.type, place.mode = tarfile.DIRTYPE, 0o555
    await unpack_tree(pieces(tar_of((place, b""), (tarfile.TarInfo("d/f"), b"1"))), tmp_path / "t")
    assert stat.S_IMODE((tmp_path / "t/d").stat().st_mode) == 0o555
    assert (tmp_path / "t/d/f").read_text() == "1"


async def test_a_link_inside_the_tree_may_be_hard(tmp_path: Path) -> None:
    link = tarfile.TarInfo("b")
    link.type = tarfile.LNKTYPE
    link.linkname = "a"
    await unpack_tree(pieces(tar_of((tarfile.TarInfo("a"), b"1"), (link, b""))), tmp_path / "t")
    assert (tmp_path / "t/a").stat().st_nlink == 2


@pytest.mark.parametrize("size", [1 << 20, 9 << 20], ids=["shrinks", "grows"])
async def test_a_file_that_changes_while_it_is_sent_is_told(tmp_path: Path, size: int) -> None:
    file = tmp_path / "file"
    file.write_bytes(os.urandom(4 << 20))
    notes: list[str] = []
    total = 0
    async for piece in file_chunks(file, notes=notes):
        if not total:
            os.truncate(file, size)
        total += len(piece)
    assert notes == ["changed file"]
    assert total <= 4 << 20
    notes.clear()
    assert sum([len(piece) async for piece in file_chunks(file, notes=notes)]) == size
    assert notes == []


async def test_what_is_no_file_and_no_tree_is_not_sent(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name in (tmp_path / "fifo", tmp_path / "socket", "/dev/null"):
            with pytest.raises(InvalidRequest, match="is no regular file"):
                await AsyncFiles(Transport("http://node"), "s").upload(name, "/x")
