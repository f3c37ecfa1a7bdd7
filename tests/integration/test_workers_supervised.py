"""The node keeps its workers: the real `skerry worker`, killed, taken over, and ended."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import aiohttp
import pytest

from live_node import LiveNode
from skerry.cli import clean, holdings
from waiting import ended, until

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture
def session() -> Any:
    """Asks a node, whichever process it is, on a connection of its own each time."""

    async def ask(node: LiveNode, path: str) -> Any:
        connector = aiohttp.UnixConnector(node.url.removeprefix("unix://"))
        async with (
            aiohttp.ClientSession(connector=connector) as client,
            client.get(f"http://node/v1/workers{path}") as answer,
        ):
            assert answer.status == 200, await answer.text()
            return await answer.json()

    return ask


async def worker(session: Any, node: LiveNode) -> int:
    """Returns the process that serves as worker 0, started if need be."""
    await session(node, "/0/jobs")
    (info,) = await session(node, "")
    assert info["state"] == "ready"
    return int(info["pid"])


async def test_a_worker_is_started_again_taken_over_and_ended(
    layer_store: str, session: Any
) -> None:
    node = LiveNode(layer_store)
    with node.running():
        assert await session(node, "") == [{"worker": 0, "state": "unused"}]
        first = await worker(session, node)
        kinds = {thing.kind: thing for thing in holdings.take().things if str(first) in thing.what}
        assert kinds["worker"].node
        os.kill(first, signal.SIGKILL)

        async def another() -> bool:
            return await worker(session, node) != first

        await until(another, 60.0)
        second = await worker(session, node)
        await asyncio.to_thread(node.kill)
        assert not ended(second, 0.5)
        await asyncio.to_thread(node.start)
        assert await worker(session, node) == second
    assert ended(second)


async def test_a_worker_whose_node_never_comes_back_ends_by_itself(
    layer_store: str, session: Any
) -> None:
    node = LiveNode(layer_store, options="orphan_after_s = 2")
    with node.running():
        pid = await worker(session, node)
        await asyncio.to_thread(node.kill)
        assert ended(pid, 60.0)
        await asyncio.to_thread(node.start)
        assert await worker(session, node) != pid


async def test_what_is_left_of_a_node_that_is_gone_is_cleaned(
    layer_store: str, session: Any
) -> None:
    node = LiveNode(layer_store)
    with node.running():
        pid = await worker(session, node)
        found = holdings.take()
        (name,) = {thing.node for thing in found.things if thing.what.startswith(f"{pid} ")}
        assert clean.clean(found, name, "/nonexistent") == [f"node {name}: not an orphan"]
        await asyncio.to_thread(node.kill)
        found.running.clear()
        found.waiting.clear()
        found.launchers.clear()  # the next start needs what else there is
        found.run_dirs.clear()
        assert not [line for line in clean.clean(found, name, "/nonexistent") if "worker" in line]
        assert ended(pid)
        await asyncio.to_thread(node.start)
