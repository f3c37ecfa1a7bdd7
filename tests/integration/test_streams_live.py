"""Streams of output on a real node: over its kills, and at the pace of who reads."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from pathlib import Path

import pytest

from live_node import LiveNode

pytestmark = pytest.mark.root

MIB = 1 << 20
LINE = "i=0; while [ $i -lt 50 ]; do seq $((i*500)) $((i*500+499)); i=$((i+1)); sleep 0.04; done"
EXPECTED = "".join(f"{n}\n" for n in range(25_000)).encode()


@pytest.fixture
def node(layer_store):
    """A node of its own; the census after its end is part of the test."""
    with LiveNode(layer_store, options="lease_s = 20").running() as made:
        yield made


async def collect(events):
    out, err = bytearray(), bytearray()
    async for event in events:
        out += event.stdout or b""
        err += event.stderr or b""
        result = event.result
    return bytes(out), bytes(err), result


@pytest.mark.parametrize("shell", [None, "dash"])
async def test_stream_goes_on_where_it_was_when_the_node_was_killed(node, shell):
    async with node.client() as client, await client.sandboxes.create() as sandbox:
        owner = sandbox if shell is None else await sandbox.session(shell=shell)
        reading = asyncio.create_task(collect(owner.stream(f"echo x >> /ran; {LINE}; exit 3")))
        for _ in range(3):
            await asyncio.sleep(0.5)
            node.kill()
            node.start()
        out, err, result = await reading
        assert (out, err) == (EXPECTED, b"")
        assert (result.exit_code, result.cancelled) == (3, False)
        assert await sandbox.files.read("/ran") == b"x\n"


async def test_stream_that_is_asked_for_while_the_node_is_away_begins_when_it_is_back(node):
    async with node.client() as client, await client.sandboxes.create() as sandbox:
        node.kill()
        reading = asyncio.create_task(collect(sandbox.stream("echo out; echo err >&2")))
        await asyncio.sleep(0.3)
        assert not reading.done()
        node.start()
        out, err, result = await reading
        assert (out, err, result.exit_code) == (b"out\n", b"err\n", 0)


async def test_stream_that_is_left_after_it_was_repaired_ends_its_command(node):
    async with node.client() as client, await client.sandboxes.create() as sandbox:
        events = sandbox.stream("echo begun; while :; do echo more; sleep 0.1; done")
        async with aclosing(events):
            async for event in events:
                if event.stdout == b"begun\n":
                    node.kill()
                    node.start()
                elif event.stdout:
                    break
        (command,) = await sandbox.commands()
        assert (await command.wait(timeout=20)).cancelled


def resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


async def test_slow_reader_slows_the_command_and_fills_no_memory(live_node, node_client):
    """Nothing is lost: the program stands still until there is room again."""
    async with await node_client.sandboxes.create() as sandbox:
        before = resident(live_node.pid), resident(os.getpid())
        total, peak = 0, [0, 0]
        async for event in sandbox.stream("exec head -c 200000000 /dev/zero"):
            total += len(event.stdout or b"")
            if total < 4 * MIB:
                await asyncio.sleep(0.01)
            for at, pid in enumerate((live_node.pid, os.getpid())):
                peak[at] = max(peak[at], resident(pid) - before[at])
            result = event.result
    assert (total, result.stdout_total, result.exit_code) == (200_000_000, 200_000_000, 0)
    assert max(peak) < 32 * MIB
