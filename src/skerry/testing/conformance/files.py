"""Conformance: the words of the file helper."""

# ruff: noqa: D102, S101, S108 - tests: their names say it, and asserting is their purpose

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncGenerator
from contextlib import aclosing

from skerry.guest.records import parse_records, parse_usage
from skerry.spec.files import WatchEvent
from skerry.testing.conformance.kit import Box, Conformance, Result

ENOENT, EACCES, EEXIST, EISDIR, EINVAL, ENOTEMPTY = 2, 13, 17, 21, 22, 39


def refused(result: Result) -> int:
    """Returns the errno of a refused helper call."""
    assert result.outcome.exit_code == 1, result
    return int(result.stderr.split(b" ", 1)[0])


def pack(members: dict[str, bytes | str]) -> bytes:
    """Returns a tar: bytes are files, text is a symbolic link's target."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                tar.addfile(member)
            else:
                member.size, member.mode = len(content), 0o640
                tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


class Events:
    """What a watch tells, waited for."""

    def __init__(self, stream: AsyncGenerator[WatchEvent], patience_s: float) -> None:
        self._stream = stream
        self._patience_s = patience_s

    async def until(self, kind: str) -> WatchEvent:
        """Returns the next event of a kind; others are passed over."""
        async with asyncio.timeout(self._patience_s):
            while True:
                event = await anext(self._stream)
                if event.kind == kind:
                    return event


class FileConformance(Conformance):
    """Reading, writing, trees, refusals."""

    async def test_written_file_is_read_back(self, box: Box) -> None:
        data = bytes(range(256)) * 1500
        result = await box.helper("write", "/root/f.bin", "640", "-", stdin=data)
        assert result.outcome.exit_code == 0, result
        assert result.stdout.startswith(b"f 640 0 0 384000 ")
        assert (await box.helper("read", "/root/f.bin", "0", "-1")).stdout == data
        assert (await box.helper("read", "/root/f.bin", "255", "3")).stdout == b"\xff\x00\x01"

    async def test_append_makes_parents_and_exclusive_refuses(self, box: Box) -> None:
        for text in (b"one", b"two"):
            await box.helper("write", "/root/a/b/c", "644", "pa", stdin=text)
        assert (await box.helper("read", "/root/a/b/c", "0", "-1")).stdout == b"onetwo"
        again = await box.helper("write", "/root/a/b/c", "644", "x", stdin=b"no")
        assert refused(again) == EEXIST

    async def test_stat_and_list_give_records(self, box: Box) -> None:
        await box.helper("mkdir", "/root/d", "755", "-")
        await box.helper("write", "/root/d/ä\n.txt", "600", "-", stdin=b"x")
        listed = (await box.helper("list", "/root/d")).stdout
        assert listed.startswith(b"f 600 0 0 1 ")
        assert listed.endswith("ä\n.txt".encode())
        assert (await box.helper("stat", "/root/d")).stdout.startswith(b"d 755 0 0 ")

    async def test_rename_chmod_and_remove(self, box: Box) -> None:
        await box.helper("write", "/root/x", "644", "-", stdin=b"x")
        assert (await box.helper("rename", "/root/x", "/root/y")).outcome.exit_code == 0
        await box.helper("chmod", "/root/y", "4755")
        assert (await box.helper("stat", "/root/y")).stdout.startswith(b"f 4755 ")
        assert (await box.helper("remove", "/root/y", "-")).outcome.exit_code == 0
        assert refused(await box.helper("stat", "/root/y")) == ENOENT

    async def test_full_directory_is_removed_only_recursively(self, box: Box) -> None:
        await box.helper("write", "/root/t/u/v", "644", "p", stdin=b"x")
        assert refused(await box.helper("remove", "/root/t", "-")) == ENOTEMPTY
        assert (await box.helper("remove", "/root/t", "r")).outcome.exit_code == 0
        assert refused(await box.helper("stat", "/root/t")) == ENOENT

    async def test_refusals_name_their_errno(self, box: Box) -> None:
        assert refused(await box.helper("read", "/none", "0", "-1")) == ENOENT
        assert refused(await box.helper("read", "/root", "0", "-1")) == EISDIR
        assert refused(await box.helper("mkdir", "/root", "755", "-")) == EEXIST

    async def test_users_have_their_own_rights(self, box: Box) -> None:
        await box.helper("write", "/root/secret", "600", "-", stdin=b"x")
        await box.sh("chmod 755 /root")
        denied = await box.helper("read", "/root/secret", "0", "-1", user=b"1234:1234")
        assert refused(denied) == EACCES
        await box.helper("write", "/tmp/own", "644", "-", stdin=b"x", user=b"1234:1234")
        assert (await box.helper("stat", "/tmp/own")).stdout.startswith(b"f 644 1234 1234 ")

    async def test_tree_goes_in_and_comes_out(self, box: Box) -> None:
        tar = pack({".hidden": b"h", "sub/ä.txt": b"content", "link": "sub/ä.txt"})
        result = await box.helper("tree-put", "/root/tree", stdin=tar)
        assert result.outcome.exit_code == 0, result.stderr
        back = (await box.helper("tree-get", "/root/tree")).stdout
        with tarfile.open(fileobj=io.BytesIO(back)) as read:
            names = {name.removeprefix("./").rstrip("/") for name in read.getnames()} - {"", "."}
            assert names == {".hidden", "sub", "sub/ä.txt", "link"}
            assert read.getmember(next(n for n in read.getnames() if n.endswith("link"))).issym()

    async def test_tree_cannot_leave_its_target(self, box: Box) -> None:
        for tar in (pack({"../evil": b"x"}), pack({"/evil": b"x"})):
            assert (await box.helper("tree-put", "/root/t", stdin=tar)).outcome.exit_code == 1
        assert refused(await box.helper("stat", "/root/evil")) == ENOENT
        assert refused(await box.helper("stat", "/evil")) == ENOENT

    async def test_tree_does_not_write_through_links(self, box: Box) -> None:
        await box.helper("mkdir", "/root/outside", "755", "-")
        tar = pack({"way": "/root/outside", "way/evil": b"x"})
        await box.helper("tree-put", "/root/t", stdin=tar)
        assert refused(await box.helper("stat", "/root/outside/evil")) == ENOENT

    async def test_file_written_by_a_command_is_read_by_the_helper(self, box: Box) -> None:
        await box.sh("echo hello > /root/greeting")
        assert (await box.helper("read", "/root/greeting", "0", "-1")).stdout == b"hello\n"

    async def test_parts_of_a_file_are_read_and_written(self, box: Box) -> None:
        await box.helper("write", "/root/p", "644", "-", stdin=b"hello world")
        assert (await box.helper("tail", "/root/p", "5")).stdout == b"world"
        assert (await box.helper("put", "/root/p", "6", "-", stdin=b"W")).outcome.exit_code == 0
        await box.helper("put", "/root/p", "-1", "-", stdin=b"!")
        assert (await box.helper("read", "/root/p", "0", "-1")).stdout == b"hello World!"
        await box.helper("truncate", "/root/p", "5")
        assert (await box.helper("read", "/root/p", "0", "-1")).stdout == b"hello"
        await box.helper("utime", "/root/p", "keep", "1500000000")
        assert b" 5 1500000000 " in (await box.helper("stat", "/root/p")).stdout
        assert refused(await box.helper("put", "/root/none", "0", "-", stdin=b"x")) == ENOENT

    async def test_links_are_made_followed_and_replaced(self, box: Box) -> None:
        await box.helper("write", "/root/l/file", "640", "p", stdin=b"x")
        await box.helper("symlink", "/root/l/way", "file", "-")
        assert (await box.helper("stat", "/root/l/way")).stdout.startswith(b"l 777 ")
        assert (await box.helper("follow", "/root/l/way")).stdout.startswith(b"f 640 ")
        assert refused(await box.helper("symlink", "/root/l/way", "gone", "-")) == EEXIST
        await box.helper("symlink", "/root/l/way", "gone", "f")
        assert refused(await box.helper("follow", "/root/l/way")) == ENOENT
        await box.helper("link", "/root/l/again", "/root/l/file", "-")
        await box.helper("put", "/root/l/again", "0", "-", stdin=b"y")
        assert (await box.helper("read", "/root/l/file", "0", "-1")).stdout == b"y"

    async def test_trees_are_copied_and_moved(self, box: Box) -> None:
        await box.helper("write", "/root/from/sub/f", "640", "p", stdin=b"content")
        await box.helper("symlink", "/root/from/link", "sub/f", "-")
        assert refused(await box.helper("copy", "/root/from", "/root/to", "-")) == EISDIR
        assert (await box.helper("copy", "/root/from", "/root/to", "r")).outcome.exit_code == 0
        assert (await box.helper("stat", "/root/to/link")).stdout.startswith(b"l 777 ")
        assert (await box.helper("stat", "/root/to/sub/f")).stdout.startswith(b"f 640 ")
        again = await box.helper("copy", "/root/from/sub/f", "/root/to/sub/f", "x")
        assert refused(again) == EEXIST
        moved = await box.helper("move", "/root/to", "/root/deep/er", "p")
        assert moved.outcome.exit_code == 0
        assert (await box.helper("read", "/root/deep/er/sub/f", "0", "-1")).stdout == b"content"
        assert refused(await box.helper("stat", "/root/to")) == ENOENT
        assert refused(await box.helper("move", "/root/from", "/root/deep", "x")) == EEXIST

    async def test_walk_finds_by_depth_type_and_glob(self, box: Box) -> None:
        for name in ("a.py", "x/b.py", "x/y/c.py", "x/y/d.txt"):
            await box.helper("write", f"/root/w/{name}", "644", "p", stdin=b"12345")

        async def found(*words: str) -> set[str]:
            walked = await box.helper("walk", "/root/w", *words)
            assert walked.outcome.exit_code == 0, walked
            return {info.name for info in parse_records(walked.stdout)}

        assert await found("-1", "f", "") == {"a.py", "x/b.py", "x/y/c.py", "x/y/d.txt"}
        assert await found("1", "-", "") == {"a.py", "x"}
        assert await found("-1", "-", "*.py") == {"a.py", "x/b.py", "x/y/c.py"}
        assert await found("-1", "-", "x/*.py") == {"x/b.py"}
        assert await found("-1", "d", "**/y") == {"x/y"}
        used = parse_usage((await box.helper("usage", "/root/w")).stdout)
        assert (used.size, used.files, used.directories) == (20, 4, 3)

    async def test_owner_is_changed_by_root_only(self, box: Box) -> None:
        await box.helper("write", "/tmp/o/f", "644", "p", stdin=b"x")
        assert (await box.helper("chown", "/tmp/o", "1234:55", "r")).outcome.exit_code == 0
        assert (await box.helper("stat", "/tmp/o/f")).stdout.startswith(b"f 644 1234 55 ")
        await box.helper("chown", "/tmp/o/f", ":56", "-")
        assert (await box.helper("stat", "/tmp/o/f")).stdout.startswith(b"f 644 1234 56 ")
        assert refused(await box.helper("chown", "/tmp/o/f", "nobody-knows-me", "-")) == EINVAL

    async def test_watch_tells_what_happens(self, box: Box) -> None:
        await box.helper("mkdir", "/root/seen/in", "755", "p")
        async with aclosing(box.files().watch("/root/seen", recursive=True)) as stream:
            events = Events(stream, box.patience_s)
            await events.until("ready")
            await box.helper("write", "/root/seen/in/f", "644", "-", stdin=b"x")
            told = await events.until("created")
            assert told.path == "/root/seen/in/f"
            await box.helper("rename", "/root/seen/in/f", "/root/seen/g")
            told = await events.until("moved")
            assert (told.path, told.source) == ("/root/seen/g", "/root/seen/in/f")
            await box.helper("remove", "/root/seen/g", "-")
            assert (await events.until("removed")).path == "/root/seen/g"
