"""File transfer with a guest that swaps directories and links all the while.

Whatever moves inside, nothing happens outside the named directory there, nothing with more rights than
the named user's, and nothing on the client's side outside the local directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import tarfile
from pathlib import PurePosixPath

import pytest

from skerry.errors import CallerError, FileRefused, NotFound, SandboxError, SandboxFailed
from skerry.sdk.transfer import unpack_tree

pytestmark = pytest.mark.root

ROUNDS = 40
# `a` is a real directory, `b` a link to the target; the attacker exchanges the two as fast as it can.
STAGE = """mkdir -p /srv/race/a /srv/target && ln -sfn /srv/target /srv/race/b
chmod 777 /srv/race /srv/race/a && chmod 700 /srv/target && echo secret > /srv/target/secret"""


@pytest.fixture
async def swapping(box):
    """A sandbox in which root swaps /srv/race/a, a directory, and /srv/race/b, a link to /srv/target."""
    assert (await box.sh(STAGE)).ok
    await box.sh("setsid attacks swap >/dev/null 2>&1 &")
    return box


async def tar_of(*members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    yield out.getvalue()


async def put(sandbox, path, *members, **fields):
    """Returns whether the tree was taken."""
    try:
        await sandbox.files.put_tree(path, tar_of(*members), **fields)
    except (FileRefused, NotFound):
        return False
    return True


async def test_a_tree_put_never_leaves_its_directory(swapping):
    taken = [await put(swapping.sandbox, "/srv/race", ("a/planted", b"x")) for _ in range(ROUNDS)]
    assert any(taken)
    assert (await swapping.sh("ls -A /srv/target")).text.split() == ["secret"]


async def test_control_without_resolve_beneath_it_does(weak):
    async with weak("filter,core,beneath") as box:
        assert (await box.sh(STAGE)).ok
        assert await put(box.sandbox, "/srv/race", ("b/planted", b"x"))
        assert "planted" in (await box.sh("ls -A /srv/target")).text


async def test_uploads_and_reads_have_the_users_rights_only(swapping):
    """The path may lead anywhere inside: that is what links are for. The rights are the user's."""
    files = swapping.sandbox.files
    wrote = read = 0
    for _ in range(ROUNDS):
        for name in ("a", "b"):
            try:
                await files.write(f"/srv/race/{name}/planted", b"x", user="nobody")
                wrote += 1
            except SandboxError:
                pass
            try:
                assert await files.read(f"/srv/race/{name}/secret", user="nobody") == b""
            except (SandboxError, NotFound):
                read += 1
    assert wrote
    assert read == 2 * ROUNDS
    assert (await swapping.sh("ls -A /srv/target")).text.split() == ["secret"]
    assert await files.read("/srv/target/secret") == b"secret\n"  # the control: root inside may
    with pytest.raises(FileRefused):
        await files.read("/srv/target/secret", user="nobody")


async def test_removing_a_tree_stays_in_it(swapping):
    files = swapping.sandbox.files
    for _ in range(ROUNDS // 2):
        await swapping.sh("mkdir -p /srv/race/deep/a/b/c; : > /srv/race/deep/a/b/c/f")
        await files.remove("/srv/race/deep", recursive=True)
        try:
            await files.remove("/srv/race/a", recursive=True)
            await swapping.sh("mkdir -p /srv/race/a; ln -sfn /srv/target /srv/race/b")
        except (FileRefused, NotFound):
            continue
    assert await files.read("/srv/target/secret") == b"secret\n"


async def test_a_tree_get_under_attack_never_writes_outside_the_local_directory(box, tmp_path):
    local, outside = tmp_path / "local", tmp_path / "outside"
    outside.mkdir()
    stage = "mkdir -p /srv/race/a /srv/race/in && touch /srv/race/a/f && ln -s in /srv/race/b"
    assert (await box.sh(stage)).ok
    await box.sh("setsid attacks swap >/dev/null 2>&1 &")
    good = 0
    for number in range(ROUNDS // 2):
        try:
            await box.sandbox.files.download("/srv/race", local / str(number))
            good += 1
        except (SandboxError, CallerError):
            continue
    assert good
    for path, directories, names in os.walk(local):
        for name in (*directories, *names):
            assert os.path.realpath(os.path.join(path, name)).startswith(str(local))
    assert not os.listdir(outside)
    assert not os.path.exists("/srv/race")


HOSTILE = {
    "parent": lambda out: [member("../escaped", b"x")],
    "absolute": lambda out: [member(f"{out}/escaped", b"x")],
    "through a link": lambda out: [link("door", str(out)), member("door/escaped", b"x")],
    "through a relative link": lambda out: [
        link("door", "../outside"),
        member("door/escaped", b"x"),
    ],
    "over a link": lambda out: [link("door", f"{out}/escaped"), member("door", b"x")],
    "hard link": lambda out: [hard("door", "../outside/there"), member("door", b"changed")],
    "device": lambda out: [device("door")],
}


def member(name, content):
    return tarfile.TarInfo(name), content


def link(name, target):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info, b""


def hard(name, target):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.LNKTYPE, target
    return info, b""


def device(name):
    info = tarfile.TarInfo(name)
    info.type, info.devmajor, info.devminor = tarfile.CHRTYPE, 1, 3
    return info, b""


def hostile_tar(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.parametrize("how", sorted(HOSTILE))
async def test_a_lying_guest_cannot_write_on_the_client(tmp_path, how):
    """What a guest would send that does not build archives as our agent does."""
    outside, local = tmp_path / "outside", tmp_path / "local"
    outside.mkdir()
    (outside / "there").write_text("mine")

    async def chunks():
        yield hostile_tar(HOSTILE[how](outside))

    with contextlib.suppress(SandboxFailed):
        await unpack_tree(chunks(), local)
    assert sorted(os.listdir(outside)) == ["there"]
    assert (outside / "there").read_text() == "mine"
    assert not (tmp_path / "escaped").exists()
    for path, _, names in os.walk(local):
        for name in names:
            kind = os.lstat(os.path.join(path, name)).st_mode
            assert (kind & 0o170000) in (0o100000, 0o120000)


@pytest.mark.parametrize("how", ["parent", "through a link"])
def test_control_a_trusting_unpacker_is_led_out(tmp_path, how):
    outside, local = tmp_path / "outside", tmp_path / "local"
    outside.mkdir()
    local.mkdir()
    content = hostile_tar(HOSTILE[how](outside))
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        tar.extractall(local, filter="fully_trusted")
    assert (outside / "escaped").exists() or (tmp_path / "escaped").exists()


@pytest.mark.parametrize("how", sorted(HOSTILE))
async def test_a_lying_client_cannot_write_beside_the_directory_inside(box, how):
    await box.sh("mkdir -p /srv/local /srv/outside; echo mine > /srv/outside/there")

    async def chunks():
        yield hostile_tar(HOSTILE[how](PurePosixPath("/srv/outside")))

    with contextlib.suppress(FileRefused, NotFound):
        await box.sandbox.files.put_tree("/srv/local", chunks())
    assert (await box.sh("ls -A /srv/outside; cat /srv/outside/there")).text.split() == [
        "there",
        "mine",
    ]
    assert (await box.sh("ls -A /srv")).text.split() == ["local", "outside"]
    assert (await box.sh("find /srv/local -type c -o -type b")).text == ""


async def test_two_uploads_at_once_of_one_path_leave_one_whole_file(box):
    contents = [bytes([65 + n]) * 300_000 for n in range(8)]
    await asyncio.gather(*(box.sandbox.files.write("/root/one", c) for c in contents))
    assert await box.sandbox.files.read("/root/one") in contents
    assert (await box.sh("ls -A /root")).text.split().count("one") == 1
    assert ".skerry" not in (await box.sh("ls -A /root")).text


async def test_absolute_paths_need_no_working_directory(box):
    """Root's home is closed to others; the sandbox's working directory lies there by default."""
    files = box.sandbox.files
    await files.write("/tmp/mine", b"x", user="nobody")
    assert (await files.stat("/tmp/mine", user="nobody")).uid == 65534
    await files.rename("/tmp/mine", "/tmp/other", user="nobody")
    assert [await files.exists(p) for p in ("/tmp/other", "/tmp/mine", "/etc/passwd/x")] == [
        True,
        False,
        False,
    ]
    with pytest.raises((FileRefused, NotFound)):
        await files.read("relative", user="nobody")


async def test_copies_and_owners_stay_in_their_tree(swapping):
    """Root copies and gives away a tree in which a directory becomes a link to the target and back."""
    files = swapping.sandbox.files
    await swapping.sh("mkdir -p /srv/out")
    copied = given = 0
    for number in range(ROUNDS):
        try:
            await files.copy("/srv/race", f"/srv/out/{number}", recursive=True)
            copied += 1
        except (SandboxError, NotFound):
            pass
        try:
            await files.chown("/srv/race", "nobody", recursive=True)
            given += 1
        except (SandboxError, NotFound):
            pass
    assert copied
    assert given
    assert (await swapping.sh("grep -rl secret /srv/out; true")).text == ""
    owner = await swapping.sh("stat -c %u /srv/target /srv/target/secret")
    assert owner.text.split() == ["0", "0"]


async def test_control_tools_that_follow_links_leave_the_tree(swapping):
    """The same race against programs inside that go by names: the target is reached."""
    line = (
        "for n in $(seq 300); do cp -rL /srv/race /srv/out 2>/dev/null; grep -qr secret /srv/out &&"
        " break; rm -rf /srv/out; done; grep -rl secret /srv/out"
    )
    assert (await swapping.sh(line, timeout=120)).text


async def test_walks_watches_and_usage_stay_in_their_tree(swapping):
    files = swapping.sandbox.files
    seen = set()
    for _ in range(ROUNDS):
        seen |= {info.name async for info in files.walk("/srv/race")}
        assert (await files.usage("/srv/race")).size < 4096
    assert {"a", "b"} <= seen
    assert not any("secret" in name for name in seen)
    told = []
    async with contextlib.aclosing(files.watch("/srv/race", recursive=True)) as events:
        assert (await anext(events)).kind == "ready"
        await swapping.sh("for n in $(seq 50); do echo x >> /srv/target/secret; done")
        async for event in events:
            told.append(event.path)
            if len(told) > 200:
                break
    assert not any("secret" in path for path in told)


async def test_each_new_operation_has_the_users_rights_only(swapping):
    """What the user may not do, none of these does for it, wherever the links lead."""
    files = swapping.sandbox.files
    for _ in range(ROUNDS // 4):
        for name in ("a", "b"):
            path = f"/srv/race/{name}"
            for call in (
                files.copy(f"{path}/secret", "/tmp/stolen", user="nobody"),
                files.copy(path, "/tmp/tree", recursive=True, user="nobody"),
                files.move(f"{path}/secret", "/tmp/stolen", user="nobody"),
                files.link(f"{path}/secret", "/tmp/stolen", user="nobody"),
                files.write_at(f"{path}/secret", 0, "X", user="nobody"),
                files.append(f"{path}/secret", "X", user="nobody"),
                files.truncate(f"{path}/secret", user="nobody"),
                files.chown(path, "nobody", recursive=True, user="nobody"),
                files.utime(f"{path}/secret", mtime=0, user="nobody"),
                files.remove(f"{path}/secret", user="nobody"),
            ):
                with contextlib.suppress(SandboxError, NotFound):
                    await call
    assert await files.read("/srv/target/secret") == b"secret\n"
    assert (await swapping.sh("grep -rl secret /tmp; ls -A /srv/target")).text.split() == ["secret"]
    assert (await swapping.sh("stat -c %u /srv/target")).text.strip() == "0"


async def test_removing_under_attack_ends_and_stays_in_the_tree(swapping):
    files = swapping.sandbox.files
    for _ in range(ROUNDS // 4):
        with contextlib.suppress(SandboxError, NotFound):
            await files.remove("/srv/race/a", recursive=True)
        with contextlib.suppress(SandboxError, NotFound):
            await files.remove("/srv/race", recursive=True)
        await swapping.sh("mkdir -p /srv/race/a; ln -sfn /srv/target /srv/race/b")
    assert await files.read("/srv/target/secret") == b"secret\n"


async def test_a_lying_guest_cannot_fill_this_disk_with_holes(tmp_path):
    """A map of pieces that overlap, run backwards or reach beyond the size is refused."""

    def sparse(text, size=4096):
        info = tarfile.TarInfo("GNUSparseFile.0/x")
        info.pax_headers = {
            "GNU.sparse.major": "1",
            "GNU.sparse.minor": "0",
            "GNU.sparse.name": "x",
            "GNU.sparse.realsize": str(size),
        }
        body = text.encode().ljust(512, b"\0") + bytes(512)
        info.size = len(body)
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
            tar.addfile(info, io.BytesIO(body))
        return out.getvalue()

    for number, (text, size) in enumerate(
        [
            ("1\n8192\n512\n", 4096),
            ("2\n512\n512\n0\n512\n", 4096),
            ("99999999\n", 4096),
            ("1\n-1\n512\n", 4096),
            ("1\n0\n513\n", 1 << 63),
            ("x", 4096),
            ("1\n0\n100000\n", 1 << 20),
        ]
    ):

        async def chunks(text=text, size=size):
            yield sparse(text, size)

        local = tmp_path / str(number)
        with pytest.raises(SandboxFailed):
            await unpack_tree(chunks(), local)
        assert not os.path.exists(local / "x")
