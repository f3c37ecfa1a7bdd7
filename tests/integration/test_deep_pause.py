"""Pause gives memory back to compressed swap, resume brings it again; on a node with zram."""

# ruff: noqa: ASYNC110 - what runs inside sends no events

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from live_node import LiveNode
from skerry.density.zram import Kernel, Zram, label_of, offered

pytestmark = pytest.mark.root

MIB = 1 << 20
# Holds half-random content; each line on its socket is answered by a digest of all of it.
HOLDER = """
import hashlib, os, socket, sys
held = bytearray()
while len(held) < int(sys.argv[1]) << 20:
    held += os.urandom(2048) + bytes(2048)
server = socket.socket(socket.AF_UNIX)
server.bind("/tmp/ask")
server.listen(8)
print(os.getpid(), flush=True)
while True:
    asked, _ = server.accept()
    asked.sendall(hashlib.sha256(held).hexdigest().encode())
    asked.close()
"""
HOSTILE = r"""
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
place = "/tmp/x 00:00 0/"
os.makedirs(place, exist_ok=True)
for name in ("1000-2000 rw-p 0 00:00 0", "\n7f0000000000-7fffffffffff rw-p 0 00:00 0", "[vdso]"):
    with open(place + name, "w+b") as f:
        f.truncate(1 << 20)
        ctypes.memset(libc.mmap(None, 1 << 20, 3, 2, f.fileno(), 0), 1, 1 << 20)
libc.mmap(None, ctypes.c_size_t(1 << 45), 3, 0x4022, -1, ctypes.c_size_t(0))
n = 0
while n < 70000:
    if libc.mmap(None, 4096, 1 + 2 * (n % 2), 0x22, -1, ctypes.c_size_t(0)) == 2**64 - 1:
        break
    n += 1
print(os.getpid(), n, flush=True)
time.sleep(1000)
"""
ASK = """
import socket
s = socket.socket(socket.AF_UNIX)
s.connect("/tmp/ask")
print(s.recv(99).decode())
"""
READY = "until grep -q . /tmp/ready; do sleep 0.05; done; cat /tmp/ready"


@pytest.fixture(scope="module")
def swap_node(layer_store):
    if not offered():
        pytest.skip("this kernel has no zram")
    with LiveNode(layer_store, options='zram = "256MiB"').running() as node:
        yield node


async def begin(sandbox, program, *words) -> str:
    """Starts a program that lives as long as the sandbox; returns the first that it says."""
    await sandbox.files.write("/tmp/program.py", program.encode())
    line = f"setsid python3 /tmp/program.py {' '.join(words)} > /tmp/ready 2>&1 &"
    done = await sandbox.run(f"{line} {READY}")
    return done.text.strip()


async def hold(sandbox, mib) -> int:
    """Starts the holder and returns its process id once it holds."""
    return int(await begin(sandbox, HOLDER, str(mib)))


async def ask(sandbox) -> str:
    return (await sandbox.run(["python3", "-c", ASK])).text


async def test_pause_gives_memory_back_and_resume_loses_none(swap_node):
    async with swap_node.client() as client, await client.sandboxes.create() as sandbox:
        await hold(sandbox, 25)
        before, digest = await sandbox.usage(), await ask(sandbox)
        info = await sandbox.pause()
        assert info.state == "paused"
        assert info.pause_freed_bytes > 20 * MIB
        paused = await sandbox.usage()
        assert paused.memory_swapped > 20 * MIB
        assert paused.memory_bytes < before.memory_bytes - 20 * MIB
        again = await sandbox.pause()
        assert again.pause_freed_bytes == info.pause_freed_bytes
        assert await ask(sandbox) == digest  # any request resumes
        assert (await sandbox.usage()).memory_bytes > paused.memory_bytes + 15 * MIB


async def test_destroy_overtakes_a_pause_and_slots_come_back_clean(swap_node):
    """Paused sandboxes can be deleted, and pause against delete leaks nothing (report 44)."""
    async with swap_node.client() as client:
        for _ in range(3):
            sandbox = await client.sandboxes.create()
            await hold(sandbox, 20)
            pausing = asyncio.create_task(sandbox.pause())
            await asyncio.sleep(0.02)
            await sandbox.destroy()
            await asyncio.gather(pausing, return_exceptions=True)
        async with await client.sandboxes.create() as fresh:
            used = await fresh.usage()
            assert used.memory_swapped == 0
            assert used.memory_bytes < 8 * MIB


async def test_slot_of_a_paused_sandbox_is_used_again(swap_node):
    """What was in swap is uncharged with the last process: no residue without an explanation."""
    async with swap_node.client() as client:
        refused = Path(swap_node.log).read_text().count("is not used again")
        swapped = sum(area_used())
        sandbox = await client.sandboxes.create()
        await hold(sandbox, 25)
        await sandbox.pause()
        assert sum(area_used()) > swapped + 20 * MIB
        await sandbox.destroy()
        assert sum(area_used()) < swapped + 5 * MIB
        assert Path(swap_node.log).read_text().count("is not used again") == refused


def area_used() -> list[int]:
    rows = [line.split() for line in Path("/proc/swaps").read_text().splitlines()[1:]]
    return [int(row[3]) << 10 for row in rows]


async def test_processes_that_end_during_a_reclaim_do_not_matter(swap_node):
    churn = (
        "for i in $(seq 400); do python3 -c 'x = bytes(3000000)' & "
        "[ $((i % 8)) = 0 ] && wait; done; wait"
    )
    async with swap_node.client() as client, await client.sandboxes.create(pids=200) as sandbox:
        running = asyncio.create_task(sandbox.run(churn, timeout=300))
        while not (await sandbox.info()).running_commands:
            await asyncio.sleep(0.01)
        for _ in range(4):
            await asyncio.sleep(0.2)
            await sandbox.pause()
            await sandbox.resume()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert (await sandbox.run("echo alive")).text == "alive\n"


async def test_hostile_maps_are_bounded(swap_node):
    """As many mappings as a process may have, names that look like lines, and terabytes of nothing."""
    async with swap_node.client() as client, await client.sandboxes.create() as sandbox:
        pid, mappings = (await begin(sandbox, HOSTILE)).split()
        assert int(mappings) > 60_000
        info = await sandbox.pause()
        assert info.pause_freed_bytes > 2 * MIB
        assert (await sandbox.run(f"kill -0 {pid} && echo alive")).text == "alive\n"


async def test_killed_launcher_and_node_find_a_deep_paused_sandbox_again(swap_node):
    async with swap_node.client() as client:
        sandbox = await client.sandboxes.create(detached=True)
        await hold(sandbox, 10)
        digest = await ask(sandbox)
        await sandbox.pause()
        name = sandbox.id
    os.kill(swap_node.launcher(), signal.SIGKILL)
    swap_node.kill()
    swap_node.start()
    async with swap_node.client() as client:
        sandbox = await client.sandboxes.get(name)
        assert (await sandbox.info()).state == "paused"
        assert (await sandbox.usage()).memory_swapped > 5 * MIB
        assert await ask(sandbox) == digest
        await sandbox.destroy()


async def test_orderly_end_removes_the_device_and_a_crash_leaves_it_to_the_next_start(layer_store):
    if not offered():
        pytest.skip("this kernel has no zram")
    node = LiveNode(layer_store, options='zram = "64MiB"').start()
    async with node.client() as client:
        health = await client.health()
    zram = Zram(health.node)
    (number,) = zram.found()
    assert f"/dev/zram{number}" in Kernel().areas()
    node.kill()
    node.start()
    assert zram.found() == [number]
    left = node.stop()
    assert not left
    assert zram.found() == []
    assert label_of(health.node) not in Path("/proc/swaps").read_text()
