"""The real `skerry-init`: trees as archives, good and hostile ones."""

from __future__ import annotations

import errno
import io
import os
import random
import tarfile

import pytest
from native_agent import (
    EXIT_CODE,
    REAL,
    Client,
    failed,
    records,
    shell,
)

pytestmark = REAL


ODD = [
    "plain",
    ".dot",
    "with space",
    "ü-ñ-日本",
    "new\nline",
    "-dash",
    "tab\t",
    "x" * 200,
    "a" * 99,
]


def big_tree() -> bytes:
    """A thousand files with odd names, links, modes and times."""
    out = io.BytesIO()
    rng = random.Random(5)
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for i in range(1000):
            name = f"./dir{i % 20}/{'y' * (i % 7) * 20}/{ODD[i % len(ODD)]}{i}"
            info = tarfile.TarInfo(name)
            data = rng.randbytes(rng.randrange(3000))
            info.size, info.mode, info.mtime = (
                len(data),
                rng.choice([0o644, 0o755, 0o4755, 0o000]),
                i + 0.5,
            )
            info.uid, info.gid = (1000, 1000) if i % 3 else (3_000_000, 5)
            tar.addfile(info, io.BytesIO(data))
        for name, target in (("link", "dir1"), ("dangling", "/no/where"), ("long", "z" * 300)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
        info = tarfile.TarInfo("hard")
        info.type, info.linkname = tarfile.LNKTYPE, "dir0/plain0"
        tar.addfile(info)
        info = tarfile.TarInfo("closed")
        info.type, info.mode, info.mtime = tarfile.DIRTYPE, 0o555, 77
        tar.addfile(info)
        info = tarfile.TarInfo("closed/inside")
        tar.addfile(info, io.BytesIO())
    return out.getvalue()


def content(data: bytes) -> dict[str, tuple[object, ...]]:
    out: dict[str, tuple[object, ...]] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for info in tar:
            name = os.path.normpath(info.name)
            if info.isdir():
                continue
            body = tar.extractfile(info).read() if info.isfile() else b""  # type: ignore[union-attr]
            out[name] = (
                info.type,
                info.mode if info.isfile() else 0,
                info.linkname,
                body,
                info.mtime if info.isfile() else 0,
            )
    return out


def test_tree_of_a_thousand_odd_files_survives_put_and_get(client: Client) -> None:
    archive = big_tree()
    put = client.file("tree-put", "/tmp/tree/new", stdin_data=archive)
    assert put.done[EXIT_CODE] == 0, put.stderr  # type: ignore[index]
    got = client.file("tree-get", "/tmp/tree/new")
    assert got.done[EXIT_CODE] == 0, got.stderr  # type: ignore[index]
    want, have = content(archive), content(got.stdout)
    hard = {"hard", "dir0/plain0"}  # which of the two names comes first is the directory's choice
    assert want.keys() == have.keys()
    assert {k: v for k, v in want.items() if k not in hard} == {
        k: v for k, v in have.items() if k not in hard
    }
    assert sorted(have[name][0] for name in hard) == [tarfile.REGTYPE, tarfile.LNKTYPE]
    listed = records(client.file("list", "/tmp/tree/new").stdout)
    assert listed[b"closed"][:2] == ("d", 0o555)
    again = client.file("tree-put", "/tmp/tree/new", stdin_data=archive)
    assert again.done[EXIT_CODE] == 0, "what is there is replaced"  # type: ignore[index]


def test_tree_ownership_is_kept_for_root_and_mapped_where_it_cannot_be(client: Client) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, uid in (("a", 1000), ("b", 70000), ("c", 0)):
            info = tarfile.TarInfo(name)
            info.uid = info.gid = uid
            info.mode = 0o4755
            tar.addfile(info, io.BytesIO())
    client.file("tree-put", "/tmp/owned", stdin_data=out.getvalue())
    listed = records(client.file("list", "/tmp/owned").stdout)
    assert [listed[n][1:4] for n in (b"a", b"b", b"c")] == [
        (0o4755, 1000, 1000),
        (0o4755, 0, 0),
        (0o4755, 0, 0),
    ]
    client.file("mkdir", "/tmp/user", "777", "-")
    client.file("tree-put", "/tmp/user/t", stdin_data=out.getvalue(), user="1000:1000")
    assert {r[2] for r in records(client.file("list", "/tmp/user/t").stdout).values()} == {1000}


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_common_tar_format_is_read(client: Client, form: int) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        name = "p" * 90 + "/" + "q" * 90
        info = tarfile.TarInfo(name)
        info.size = 3
        tar.addfile(info, io.BytesIO(b"abc"))
    client.file("tree-put", f"/tmp/form{form}", stdin_data=out.getvalue())
    assert client.file("read", f"/tmp/form{form}/{name}", "0", "-1").stdout == b"abc"


def hostile(*members: tuple[str, bytes, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind, link in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, link
            tar.addfile(info)
    return out.getvalue()


@pytest.mark.parametrize(
    "members",
    [
        [("../out", tarfile.REGTYPE, "")],
        [("a/../../out", tarfile.REGTYPE, "")],
        [("/tmp/out", tarfile.REGTYPE, "")],
        [("l", tarfile.SYMTYPE, "/tmp"), ("l/out", tarfile.REGTYPE, "")],
        [("l", tarfile.SYMTYPE, ".."), ("l/out", tarfile.REGTYPE, "")],
        [("out", tarfile.LNKTYPE, "../victim")],
        [("out", tarfile.LNKTYPE, "/tmp/victim")],
        [("l", tarfile.SYMTYPE, "/tmp"), ("m", tarfile.LNKTYPE, "l/victim")],
    ],
)
def test_archive_cannot_escape_its_target(
    client: Client, members: list[tuple[str, bytes, str]]
) -> None:
    shell(client, "rm -rf /tmp/jail /tmp/out; echo v > /tmp/victim")
    op = client.file("tree-put", "/tmp/jail", stdin_data=hostile(*members))
    assert failed(op)[0] in {errno.EPERM, errno.ELOOP, errno.ENOENT}
    assert failed(client.file("stat", "/tmp/out"))[0] == errno.ENOENT
    assert shell(client, "stat -c %h /tmp/victim").stdout == b"1\n"


def test_member_of_a_links_name_replaces_the_link_not_its_target(client: Client) -> None:
    shell(
        client,
        "rm -rf /tmp/jail; mkdir /tmp/jail; echo v > /tmp/victim; ln -s /tmp/victim /tmp/jail/l",
    )
    client.file("tree-put", "/tmp/jail", stdin_data=hostile(("l", tarfile.REGTYPE, "")))
    assert (
        shell(client, "cat /tmp/victim; stat -c %F /tmp/jail/l").stdout
        == b"v\nregular empty file\n"
    )


@pytest.mark.parametrize("cut", [1, 511, 512, 700, 1024])
def test_broken_archive_is_an_error(client: Client, cut: int) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in ("a", "b"):
            info = tarfile.TarInfo(name)
            info.size = 100
            tar.addfile(info, io.BytesIO(bytes(100)))
    assert (
        failed(client.file("tree-put", "/tmp/broken", stdin_data=out.getvalue()[:cut]))[0]
        == errno.EIO
    )
    assert (
        failed(client.file("tree-put", "/tmp/broken", stdin_data=b"junk" * 200))[0] == errno.EBADMSG
    )
