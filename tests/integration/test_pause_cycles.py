"""Pause and resume again and again: nothing that was written is lost, and nothing that runs."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from live_node import LiveNode

pytestmark = pytest.mark.root

CYCLES = 6


async def test_what_was_written_survives_every_pause_and_a_kill_between(layer_store):
    """(report 55)"""
    with LiveNode(layer_store, options="lease_s = 20").running() as node:
        async with node.client() as client, await client.sandboxes.create() as box:
            session = await box.session()
            await session.run("n=0; mkdir /srv/d")
            counter = await box.start("i=0; while :; do echo $((i += 1)); sleep 0.02; done")
            for turn in range(CYCLES):
                await box.files.write(f"/srv/d/file{turn}", f"{turn}\n" * 1000)
                await session.run(
                    f"n=$((n + 1)); echo {turn} >> /srv/d/log; mv /srv/d/log /srv/d/l2"
                )
                await session.run("mv /srv/d/l2 /srv/d/log; rm -f /srv/d/none")
                assert (await box.pause()).state == "paused"
                if turn % 3 == 1:
                    node.kill()
                    node.start()
                    assert (await box.info()).state == "paused"
                if turn % 2:
                    await box.resume()  # else the next request does it
                for old in range(turn + 1):
                    assert await box.files.read(f"/srv/d/file{old}") == f"{old}\n".encode() * 1000
            log = "".join(f"{turn}\n" for turn in range(CYCLES))
            assert (await session.run("echo $n; cat /srv/d/log")).text == f"{CYCLES}\n{log}"
            await counter.kill()
            counted = [int(line) for line in (await counter.wait(timeout=30)).stdout.split()]
            assert counted == list(range(1, len(counted) + 1))


async def test_pause_in_the_middle_of_a_transfer_and_a_watch_only_delays_them(node_client):
    async def slowly():
        for _ in range(20):
            yield b"x" * 100_000
            await asyncio.sleep(0.02)

    async with (
        await node_client.sandboxes.create() as box,
        aclosing(box.files.watch("/srv")) as events,
    ):
        assert (await anext(events)).kind == "ready"
        writing = asyncio.create_task(box.files.write("/srv/x", slowly()))
        await asyncio.sleep(0.1)
        assert (await box.pause()).state == "paused"
        await asyncio.sleep(0.5)
        assert not writing.done()
        await box.resume()
        assert (await writing).size == 2_000_000
        async with asyncio.timeout(60):
            async for event in events:
                if event.path == "/srv/x":
                    break
