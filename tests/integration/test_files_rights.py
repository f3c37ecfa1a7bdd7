"""What writing keeps, and what is said about names, rights and archives that are none."""

from __future__ import annotations

import asyncio
import gzip
import io
import os
import tarfile
from contextlib import aclosing
from pathlib import Path

import pytest

from skerry.errors import FileDenied, FileRefused

pytestmark = pytest.mark.root


@pytest.fixture
async def box(node_client):
    async with await node_client.sandboxes.create() as sandbox:
        yield sandbox


async def one(data: bytes):
    yield data


async def test_file_that_is_written_again_keeps_its_mode(box):
    await box.files.write("/srv/run", "#!/bin/sh\necho 1\n", mode=0o755)
    await box.files.symlink("run", "/srv/link")
    for path in ("/srv/run", "/srv/link"):
        assert (await box.files.write(path, "#!/bin/sh\necho 2\n")).size == 17
        assert (await box.files.stat("/srv/run")).mode == 0o755
        assert (await box.run("/srv/run")).stdout == b"2\n"
    assert (await box.files.write("/srv/run", "x", mode=0o640)).mode == 0o640
    assert (await box.files.write("/srv/fresh", "x")).mode == 0o644
    await box.run("chmod 6755 /srv/run && install -d -m 777 /srv/w")
    assert (await box.files.write("/srv/run", "x")).mode == 0o755  # and no set-id bit
    await box.files.write("/srv/w/own", "x", mode=0o700, user="nobody")
    assert (await box.files.write("/srv/w/own", "y", user="nobody")).mode == 0o700


async def test_path_that_ends_with_a_slash_means_a_directory(box, tmp_path):
    (tmp_path / "file").write_text("x")
    await box.files.upload(tmp_path / "file", "/srv/new/")
    assert await box.files.read("/srv/new/file") == b"x"
    for path in ("/srv/new/", "/srv/other/", "/srv/new/file/", "/"):
        for call in (box.files.write, box.files.append):
            with pytest.raises(FileRefused, match="Is a directory"):
                await call(path, "x")
        with pytest.raises(FileRefused, match="Is a directory"):
            await box.files.write_at(path, 0, "x")
    assert [info.name for info in await box.files.find("/srv")] == ["new", "new/file"]
    await box.files.download("/srv/new/file", tmp_path / "not" / "there" / "yet")
    assert (tmp_path / "not/there/yet").read_text() == "x"


async def test_tree_is_fetched_without_what_its_user_may_not_read(box, tmp_path):
    """As tar(1) does it: the rest comes, and each that was left out is said."""
    await box.run(
        "mkdir -p /srv/t/shut /srv/t/listed && cd /srv/t && echo a > a && echo b > b && echo z > z &&"
        " echo x > shut/x && echo y > listed/y && chmod 600 b && chmod 700 shut && chmod 744 listed"
    )
    done = await box.files.download("/srv/t", tmp_path, user="nobody")
    assert sorted(done.notes) == ["unreadable b", "unreadable listed/y", "unreadable shut/"]
    found = {name: os.listdir(tmp_path / name) for name in os.listdir(tmp_path) if len(name) > 1}
    assert found == {"shut": [], "listed": []}
    assert ((tmp_path / "a").read_text(), (tmp_path / "z").read_text()) == ("a\n", "z\n")
    assert not (tmp_path / "b").exists()
    with pytest.raises(FileDenied):  # of which nothing can be had
        await box.files.download("/srv/t/shut", tmp_path / "shut", user="nobody")
    assert (await box.files.download("/srv/t", tmp_path / "root")).notes == ()


async def test_owners_that_are_unknown_are_said_so_and_a_users_own_group_is_meant(box):
    await box.run("useradd -u 1500 ann; groupadd -g 1600 team; usermod -g team ann; touch /srv/f")
    for owner, found in (("ann:", (1500, 1600)), ("0:0", (0, 0)), (":team", (0, 1600))):
        await box.files.chown("/srv/f", owner)
        info = await box.files.stat("/srv/f")
        assert (info.uid, info.gid) == found
    for owner, said in (
        ("bob", "unknown user"),
        ("bob:", "unknown user"),
        ("ann:crew", "unknown group"),
        ("1500:", "unknown group"),
    ):
        with pytest.raises(FileRefused, match=f"/srv/f: {said}"):
            await box.files.chown("/srv/f", owner)


async def test_archive_that_is_none_says_what_is_wrong_with_it(box):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        info = tarfile.TarInfo("f")
        info.size = 3000
        tar.addfile(info, io.BytesIO(bytes(3000)))
    whole = out.getvalue()
    for data, said in (
        (gzip.compress(whole), "compressed"),
        (gzip.compress(os.urandom(2000)), "compressed"),
        (whole[:1500], "cut off"),
        (b"", "cut off"),
        (b"PK\x03\x04" + os.urandom(4000), "no tar"),
    ):
        with pytest.raises(FileRefused, match=said):
            await box.files.put_tree("/srv/t", one(data))
    assert [info.name for info in await box.files.find("/srv", types="f")] == []
    await box.files.put_tree("/srv/t", one(whole))
    assert (await box.files.stat("/srv/t/f")).size == 3000


async def test_watch_tells_no_name_that_nobody_gave(box):
    """What is written by way of a file without a name is told once it has one."""
    await box.run("mkdir /srv/w && echo x > '/srv/w/#1'")
    async with aclosing(box.files.watch("/srv/w")) as events, asyncio.timeout(60):
        assert (await anext(events)).kind == "ready"
        await box.files.write("/srv/w/new", "x")
        await box.run("echo y > '/srv/w/#1'; touch /srv/w/end")
        seen = []
        async for event in events:
            seen.append((event.kind, event.path))
            if event.path == "/srv/w/end":
                break
    assert ("created", "/srv/w/new") in seen
    assert ("modified", "/srv/w/#1") in seen  # somebody's, however it looks
    assert {path for _, path in seen} == {"/srv/w/new", "/srv/w/#1", "/srv/w/end"}


async def test_times_before_1970_and_far_ahead_survive_both_ways(box, tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    times = (-1, -86_400_000_000_001, -(2**31) * 10**9, 2**33 * 10**9 + 5)
    for number, time_ns in enumerate(times):
        (source / str(number)).write_text("x")
        os.utime(source / str(number), ns=(time_ns, time_ns))
        (source / f"link{number}").symlink_to("nowhere")
        os.utime(source / f"link{number}", ns=(time_ns, time_ns), follow_symlinks=False)
    await box.files.upload(source, "/srv/t")
    assert (await box.run("stat -c %Y /srv/t/1")).text == "-86401\n"
    await box.files.download("/srv/t", tmp_path / "out")
    for name in ("", "link"):
        came = [Path(tmp_path, "out", f"{name}{n}").lstat().st_mtime_ns for n in range(4)]
        assert came == list(times)
    await box.files.utime("/srv/t/0", mtime=-3.25)
    assert (await box.files.stat("/srv/t/0")).mtime == -3.25
