"""Conformance: the words of the file helper."""

# ruff: noqa: D102, S101, S108 - tests: their names say it, and asserting is their purpose

from __future__ import annotations

import io
import tarfile

from skerry.testing.conformance.kit import Box, Conformance, Result

ENOENT, EACCES, EEXIST, EISDIR, ENOTEMPTY = 2, 13, 17, 21, 39


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
