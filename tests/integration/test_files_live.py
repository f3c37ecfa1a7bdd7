"""Files in real sandboxes, end to end: what survives, what is bounded, what is said."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from pathlib import Path

import aiohttp
import pytest

from skerry.errors import DiskFull, FileDenied, FileRefused, InvalidRequest, NotFound

pytestmark = pytest.mark.root

MIB = 1 << 20


@pytest.fixture
async def box(node_client):
    async with await node_client.sandboxes.create() as sandbox:
        yield sandbox


def peak_kib(pid: int) -> int:
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1])


async def test_upload_without_a_length_is_visible_when_it_returns(live_node, box):
    """Chunked bodies of unknown length, byte by byte too (reports 34 and 36)."""
    connector = aiohttp.UnixConnector(path=live_node.url.removeprefix("unix://"))

    async def drops():
        for byte in b"slow but whole":
            yield bytes([byte])

    async with aiohttp.ClientSession(connector=connector) as session:
        url = f"http://node/v1/sandboxes/{box.id}/files?path=/root/x"
        async with session.put(url, data=drops()) as answer:
            assert answer.status == 200, await answer.text()
            assert (await answer.json())["size"] == 14
    assert (await box.run("cat /root/x")).stdout == b"slow but whole"


async def test_missing_places_are_clean_answers(box):
    """Searching, listing or watching what is not there; parents that are missing are made
    (reports 41 and 42)."""
    for call in (
        box.files.list("/none"),
        box.files.find("/none", "*"),
        box.files.usage("/none"),
        box.files.copy("/none", "/other"),
        box.files.move("/none", "/other"),
        box.files.read("/none"),
    ):
        with pytest.raises(NotFound):
            await call
    with pytest.raises(NotFound):
        async for _ in box.files.watch("/none"):
            pass
    await box.files.write("/a/b/c/file", "x")
    await box.files.copy("/a/b/c/file", "/d/e/f", parents=True)
    assert await box.files.read("/d/e/f") == b"x"


async def test_upload_where_a_name_cannot_be_replaced_writes_the_content(box):
    """A mount on a single file refuses rename; so does one that is busy (reports 41 and 42)."""
    before = await box.files.stat("/etc/hostname")
    await box.files.write("/dev/shm/single", "old")
    await box.files.write("/dev/shm/single", "new")
    assert await box.files.read("/dev/shm/single") == b"new"
    mounted = (await box.run("awk '$2 == \"/etc/hostname\"' /proc/mounts")).stdout
    await box.files.write("/etc/hostname", "other\n")
    assert (await box.run("cat /etc/hostname")).stdout == b"other\n"
    assert mounted or before.type == "f"


async def test_growing_file_has_an_end(box):
    """A read without a length ends where the file ended when it was opened."""
    await box.run("setsid sh -c 'while :; do head -c 100000 /dev/zero; done > /root/grows' &")
    await asyncio.sleep(0.3)
    size = (await box.files.stat("/root/grows")).size
    assert size <= len(await box.files.read("/root/grows")) < size + 4096 * MIB
    assert len(await box.files.read("/root/grows", length=1000)) == 1000
    await box.files.copy("/root/grows", "/root/copy")
    names = [chunk async for chunk in box.files.get_tree("/root/copy")]
    assert sum(map(len, names)) >= size


async def test_fifo_device_and_directory_as_a_file_are_refused_at_once(box):
    await box.run("mkfifo /root/fifo; mkdir /root/d")
    for path in ("/root/fifo", "/dev/zero", "/dev/tty", "/root/d"):
        for call in (
            box.files.read(path),
            box.files.write(path, "x"),
            box.files.append(path, "x"),
            box.files.write_at(path, 0, "x"),
            box.files.copy(path, "/root/x"),
            box.files.truncate(path),
        ):
            async with asyncio.timeout(60):
                with pytest.raises(FileRefused):
                    await call
    for path in (
        "/proc/self/status",
        "/proc/cpuinfo",
    ):
        assert await box.files.read(path)  # they have no size, but an end


async def test_rights_and_full_disk_have_names_of_their_own(node_client):
    async with await node_client.sandboxes.create(disk="64MiB") as box:
        await box.files.write("/root/secret", "x", mode=0o600)
        for call in (
            box.files.read("/root/secret", user="nobody"),
            box.files.chown("/tmp", "nobody", user="nobody"),
            box.files.copy("/etc/shadow", "/tmp/s", user="nobody"),
            box.files.remove("/etc", recursive=True, user="nobody"),
        ):
            with pytest.raises(FileDenied) as caught:
                await call
            assert caught.value.fault == "caller"
        with pytest.raises(DiskFull) as full:
            await box.files.write("/root/big", os.urandom(96 * MIB))
        assert (full.value.fault, full.value.fields["errno"] in (28, 122)) == ("sandbox", True)
        assert not await box.files.exists("/root/big")


async def test_owners_by_name_and_number_and_for_root_only(box, tmp_path):
    """Owners are right for users that are not root (report 40)."""
    (tmp_path / "f").write_text("x")
    await box.run("useradd -u 1500 worker && install -d -o worker /srv/w")
    await box.files.upload(tmp_path, "/srv/w/t", user="worker")
    info = await box.files.stat("/srv/w/t/f")
    assert (info.uid, info.gid) == (1500, 1500)
    await box.files.chown("/srv/w/t", "root:worker", recursive=True)
    info = await box.files.stat("/srv/w/t/f")
    assert (info.uid, info.gid) == (0, 1500)
    await box.files.chown("/srv/w/t/f", "1500")
    assert (await box.files.stat("/srv/w/t/f")).uid == 1500
    assert (await box.run("test -t 0 < /srv/w/t/f; echo $?")).stdout == b"1\n"  # no terminal


async def test_walk_of_a_huge_directory_streams(live_node, box):
    line = "mkdir /srv/many && cd /srv/many && seq -f 'entry-%0100.0f' 60000 | xargs touch"
    made = await box.run(line, timeout=300)
    assert made.ok, made
    # One walk before: what a first one takes for good is no part of the answer.
    assert len(await box.files.find("/srv/many", "entry-*7777")) == 6
    before = peak_kib(live_node.pid)
    count = 0
    async with aclosing(box.files.walk("/srv/many")) as entries:
        async for _ in entries:
            count += 1
    assert count == 60_000
    assert peak_kib(live_node.pid) - before < 24 * 1024
    with pytest.raises(InvalidRequest, match="more than 100"):
        await box.files.find("/srv/many", limit=100)


async def test_thousands_of_operations_leak_no_descriptor(live_node, box):
    """5,000 operations; the node, the launcher and the agent hold what they held (report 39)."""

    def agents() -> list[int]:
        launcher = live_node.launcher()
        text = Path(f"/proc/{launcher}/task/{launcher}/children").read_text()
        return [launcher, live_node.pid, *(int(pid) for pid in text.split())]

    def count() -> dict[int, int]:
        return {pid: len(os.listdir(f"/proc/{pid}/fd")) for pid in agents()}

    async def work(number: int) -> None:
        name = f"/srv/n{number}"
        for turn in range(50):
            await box.files.write(name, "x")
            await box.files.list("/srv")
            if turn % 5 == 0:
                await box.files.copy(name, f"{name}.copy")
                with pytest.raises(NotFound):
                    await box.files.read("/none")
                async with aclosing(box.files.watch("/srv")) as events:
                    assert (await anext(events)).kind == "ready"
            await box.files.remove(name)

    await work(0)
    before = count()
    for start in range(1, 31, 6):
        await asyncio.gather(*(work(number) for number in range(start, start + 6)))
    for _ in range(100):
        after = count()
        if all(after[pid] <= before[pid] + 4 for pid in before):
            break
        await asyncio.sleep(0.1)
    # Connections of this client to the node stay open for a while: a few, not thousands.
    assert all(after[pid] <= before[pid] + 16 for pid in before), (before, after)


async def test_sandbox_without_its_user_files_still_knows_root_and_names_who_it_does_not(box):
    """What an agent deleted, or an image never had, takes nobody the sandbox."""
    await box.run("rm -f /etc/passwd /etc/group")
    assert (await box.run("id -u")).stdout == b"0\n"
    assert (await box.files.write("/f", "x")).uid == 0
    with pytest.raises(FileRefused, match="/f: unknown user"):
        await box.files.write("/f", "x", user="bob")


async def test_error_about_a_name_that_is_no_utf8_is_that_error(box):
    with pytest.raises(NotFound, match="/none"):
        await box.files.read("/none\udcff")
