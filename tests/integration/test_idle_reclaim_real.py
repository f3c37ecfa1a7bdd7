"""Idle sandboxes give real memory back under a simulated shortage; one that reads it back is spared."""

from __future__ import annotations

import asyncio

import pytest

from live_node import LiveNode
from skerry.density.zram import offered
from waiting import until

pytestmark = pytest.mark.root

MIB = 1 << 20
PATIENCE_S = 60.0
# Memory is always short here: available_below = 1.
OPTIONS = """
zram = "256MiB"
[idle_reclaim]
available_below = 1.0
idle_s = 0.5
still_s = 0.5
look_s = 0.2
backoff_s = 600.0
"""
HOLDER = """
import os, signal, sys, time
held = bytearray()
while len(held) < 24 << 20:
    held += os.urandom(2048) + bytes(2048)
signal.signal(signal.SIGUSR1, lambda *_: sum(held[::4096]))
print(os.getpid(), flush=True)
while True:
    time.sleep(0.3 if sys.argv[1] == "used" else 1000)
    if sys.argv[1] == "used":
        sum(held[::4096])
"""
READY = "until grep -q . /tmp/ready; do sleep 0.05; done"


@pytest.fixture(scope="module")
def short_node(layer_store):
    if not offered():
        pytest.skip("this kernel has no zram")
    with LiveNode(layer_store, options=OPTIONS).running() as node:
        yield node


async def hold(sandbox, kind):
    await sandbox.files.write("/tmp/holder.py", HOLDER.encode())
    await sandbox.run(f"setsid python3 /tmp/holder.py {kind} > /tmp/ready 2>&1 & {READY}")


async def test_idle_gives_back_and_running_does_not(short_node):
    async with (
        short_node.client() as client,
        await client.sandboxes.create() as idle,
        await client.sandboxes.create() as used,
    ):
        await hold(idle, "idle")
        await hold(used, "used")

        async def given() -> bool:
            seen = await idle.usage()
            return seen.memory_swapped > 15 * MIB and seen.memory_bytes < 12 * MIB

        await until(given, PATIENCE_S, 0.1)
        assert (await used.usage()).memory_swapped < 2 * MIB
        assert (await idle.info()).state == "running"
        assert (await idle.run("echo here")).text == "here\n"


async def test_one_that_reads_back_is_left_alone(short_node):
    async with short_node.client() as client, await client.sandboxes.create() as sandbox:
        await hold(sandbox, "idle")

        async def given() -> bool:
            return (await sandbox.usage()).memory_swapped > 15 * MIB

        await until(given, PATIENCE_S, 0.1)
        # A request makes its program read all of it back; then it is idle again.
        await sandbox.run("kill -USR1 $(cat /tmp/ready)")

        async def back() -> bool:
            return (await sandbox.usage()).memory_bytes > 20 * MIB

        await until(back, PATIENCE_S, 0.1)
        await asyncio.sleep(5.0)  # many looks of the node
        assert (await sandbox.usage()).memory_bytes > 20 * MIB
