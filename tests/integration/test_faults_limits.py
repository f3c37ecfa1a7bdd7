"""What runs inside takes all it can get: limits hold, the answer says which, neighbours work on."""

# ruff: noqa: ASYNC221, ASYNC230 - short, and its own loop

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from pathlib import Path

import pytest

from live_node import LiveNode
from skerry.errors import Overloaded, SandboxError, SkerryError, StorageFailed

pytestmark = pytest.mark.root

MIB = 1 << 20
QUICK_S = 30.0  # far more than it takes, far less than what it must not wait for


@pytest.fixture
async def neighbour(node_client):
    """A sandbox beside the one that misbehaves, and that works on."""
    async with await node_client.sandboxes.create() as made:
        yield made
        async with asyncio.timeout(QUICK_S):
            assert (await made.run("echo alive > /root/x && cat /root/x")).stdout == b"alive\n"


def rss_bytes(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) * 1024


async def test_a_full_disk_is_an_error_inside_only(node_client, neighbour):
    async with await node_client.sandboxes.create(disk=64 * MIB) as sandbox:
        done = await sandbox.run("head -c 200000000 /dev/urandom > /root/big; sync")
        assert re.search(r"quota|No space", done.error_text), done
        with pytest.raises(SandboxError):
            await sandbox.files.write("/root/more", os.urandom(72 * MIB))
        assert (await sandbox.run("rm -f /root/big /root/more*; sync; echo ok")).text == "ok\n"
        # Deleted space is given back when the file system next commits.
        for _ in range(50):
            if (await sandbox.run("head -c 1000000 /dev/urandom > /root/small && sync")).ok:
                return
            await asyncio.sleep(0.2)
        pytest.fail("the space of deleted files never came back")


async def test_sandbox_after_one_that_filled_its_disk_has_all_of_its_own(node_client):
    """What was deleted counts until the file system commits: the next one must not be charged for it.

    It had a root that could only be read, and nobody was told.
    """
    many = "for n in 1 2 3 4; do dd if=/dev/zero of=/root/$n bs=1M count=30 & done; wait"
    for _ in range(3):
        async with await node_client.sandboxes.create(disk=64 * MIB) as full:
            done = await full.run(f"{many}; {many}; sync")
            assert "quota" in done.error_text, done
            await full.diff()  # its view holds what is deleted for a while longer
        async with await node_client.sandboxes.create(disk=64 * MIB) as after:
            fits = await after.run("mount | grep ' on / '; head -c 50000000 /dev/urandom > /root/x")
            assert fits.ok, fits


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 GiB, on a loop device."""
    image, place = tmp_path / "disk", str(tmp_path / "place")
    os.mkdir(place)
    with image.open("wb") as file:
        file.truncate(2200 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)
    os.rmdir(place)


async def test_a_full_host_disk_refuses_new_sandboxes_and_spares_the_old(small_disk, layer_store):
    node = LiveNode(layer_store, below=small_disk).start()
    ballast = f"{small_disk}/ballast"
    try:
        async with node.client() as client:
            old = await client.sandboxes.create()
            with open(ballast, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, 1300 * MIB)
            await asyncio.sleep(0.6)
            with pytest.raises((StorageFailed, Overloaded)) as caught:
                await client.sandboxes.create(wait=0)
            assert caught.value.retryable
            done = await old.run("echo still > /root/x; cat /root/x")
            assert done.stdout == b"still\n", (done, subprocess.getoutput(f"df -m {small_disk}"))
            os.unlink(ballast)
            subprocess.run(["sync", "-f", small_disk], check=True)
            await asyncio.sleep(0.6)
            async with await client.sandboxes.create() as fresh:
                assert (await fresh.run("true")).ok
            await old.destroy()
    finally:
        left = node.stop()
    assert not left


async def test_a_journal_that_cannot_be_written_is_a_storage_error(small_disk, layer_store):
    """To the last byte: a command that cannot be recorded is not run, and may be tried again."""
    node = LiveNode(layer_store, below=small_disk).start()
    ballast = f"{small_disk}/ballast"
    try:
        async with node.client() as client:
            sandbox = await client.sandboxes.create()
            fill(ballast)
            refused = ran = 0
            # The present segment of the journal has its room already; the next one gets none.
            while refused < 5 and ran < 2000:
                try:
                    done = await sandbox.run(["echo", str(ran)], env={"A": "x" * 58_000})
                    assert done.text == f"{ran}\n"
                    ran += 1
                except StorageFailed:
                    refused += 1
            assert refused, "the journal was never full"
            os.unlink(ballast)
            subprocess.run(["sync", "-f", small_disk], check=True)
            for _ in range(50):
                try:
                    assert (await sandbox.run("echo again")).stdout == b"again\n"
                    break
                except StorageFailed:
                    await asyncio.sleep(0.2)
            else:
                pytest.fail("the node never recovers from a full disk")
            await sandbox.destroy()
    finally:
        left = node.stop()
    assert not left


def fill(path):
    """Takes all that is left of a file system, down to single blocks."""
    with open(path, "wb", buffering=0) as file:
        for size in (MIB, 4096):
            block = os.urandom(size)
            try:
                while True:
                    file.write(block)
                    os.fsync(file.fileno()) if size == 4096 else None
            except OSError:
                continue


async def test_memory_limit_is_flagged_and_harms_nobody_else(node_client, neighbour):
    async with await node_client.sandboxes.create(memory="64MiB") as sandbox:
        done = await sandbox.run(["tail", "/dev/zero"], timeout=30)
        assert done.oom_killed
        assert done.signal == 9
        assert not done.timed_out
        after = await sandbox.run("echo alive")
        assert (after.stdout, after.oom_killed) == (b"alive\n", False)
        assert (await sandbox.usage()).oom_kills >= 1


async def test_a_fork_bomb_is_bounded_and_destroyed_quickly(node_client, neighbour):
    async with await node_client.sandboxes.create(pids=200, cpu=1.0) as sandbox:
        bomb = "f() { f | f & }; f; sleep 1000"
        running = asyncio.create_task(sandbox.run(bomb, timeout=60))
        await asyncio.sleep(3)
        assert (await sandbox.usage()).pids <= 200
        # There is no room for one more: an answer that says so, not silence.
        refused = await sandbox.run(["true"], timeout=5)
        assert refused.ok or refused.start_error or refused.timed_out, refused
        async with asyncio.timeout(QUICK_S):
            assert (await neighbour.run("echo alive")).stdout == b"alive\n"
            await sandbox.destroy()
        with pytest.raises(SkerryError):
            await running


async def test_flood_of_output_does_not_fill_the_node(node_client, neighbour, live_node):
    async with await node_client.sandboxes.create() as sandbox:
        before = rss_bytes(live_node.pid)
        highest = before

        async def watch():
            nonlocal highest
            while True:
                highest = max(highest, rss_bytes(live_node.pid))
                await asyncio.sleep(0.2)

        watching = asyncio.create_task(watch())
        done = await sandbox.run("yes | head -c 250M", output_limit=MIB)
        watching.cancel()
        assert done.ok
        assert done.truncated
        assert len(done.stdout) <= MIB + 4096
        assert done.stdout_total == 250 * MIB
        assert done.stdout.startswith(b"y\ny\n")
        assert highest - before < 64 * MIB
        spool = sum(p.stat().st_size for p in Path(live_node.state, "spool").glob("*"))
        assert spool < 8 * MIB


async def test_endless_files_and_links_inside_do_not_hold_up_destroy(node_client, neighbour):
    async with await node_client.sandboxes.create() as sandbox:
        line = """cd /root; i=0; while [ $i -lt 300 ]; do mkdir d && cd d && i=$((i+1)); done
            for i in $(seq 2000); do : > f$i; done; chattr +i f1 2>/dev/null; true"""
        assert (await sandbox.run(line, timeout=60)).ok
        async with asyncio.timeout(QUICK_S):
            await sandbox.destroy()


async def test_an_inode_flood_in_memory_is_bounded(node_client, neighbour):
    async with await node_client.sandboxes.create() as sandbox:
        line = (
            "cd /dev/shm; i=0; while : > f$i; do i=$((i+1)); [ $i -gt 80000 ] && exit 9; done 2>&1"
        )
        done = await sandbox.run(line, timeout=60)
        assert not done.ok
        assert b"space" in done.stdout
