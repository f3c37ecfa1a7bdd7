"""A thousand hostile calls: each is answered with the right limit, the pool lives, nothing is left."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest
from hostile_calls import ALL

from live_node import LiveNode
from skerry.spec.function import CallSpec, Environment, PythonCall
from waiting import until

COUNT = 1000
AT_ONCE = 16
SEED = 7
CONTAINERS = 3
MODULES = ("json", "ctypes", "socket")
ENVIRONMENT = Environment(modules=MODULES)


@pytest.fixture(scope="module")
def hostile_node(layer_store):
    """A node of its own: what its census finds is what these calls left."""
    options = f"[functions]\ncontainers_per_pool_max = {CONTAINERS}\npool_idle_s = 600"
    with LiveNode(layer_store, options=options).running() as node:
        yield node


def processes(launcher: int) -> int:
    """Returns how many there are below the launcher: agents, interpreters, places, and what they run."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended
    found, last = {launcher}, 0
    while len(found) > last:
        last = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return len(found)


async def rests(client) -> None:
    """Returns once no call runs and all containers stand."""

    async def still() -> bool:
        (pool,) = await client.functions.pools()
        busy = pool.running or pool.waiting or pool.starting
        return not busy and pool.containers == CONTAINERS

    await until(still, 60, 0.1)


async def good(client, number: int) -> int:
    kind = PythonCall(code="def main(x): return x * x", args=(number,))
    call = CallSpec(kind=kind, environment=ENVIRONMENT, wait_s=120)
    return (await client.functions.call(call)).value


@pytest.mark.timeout(600)
async def test_a_thousand_hostile_calls_are_each_answered_right(hostile_node) -> None:
    order = [ALL[number % len(ALL)] for number in range(COUNT)]
    random.Random(SEED).shuffle(order)
    places = asyncio.Semaphore(AT_ONCE)
    async with hostile_node.client() as client:
        await client.functions.prewarm(modules=MODULES, minimum=CONTAINERS, keep=3600)
        await rests(client)
        before = processes(hostile_node.launcher())

        async def one(hostile) -> str:
            async with places:
                return hostile.objection(await client.functions.call(hostile.call(ENVIRONMENT)))

        objections = [text for text in await asyncio.gather(*map(one, order)) if text]
        summary = Counter(text.partition(":")[0] for text in objections)
        assert not objections, f"{summary}\n" + "\n".join(objections[:20])

        # Healthy: calls are answered as on the first day, and there is no process more.
        squares = await asyncio.gather(*(good(client, number) for number in range(200)))
        assert squares == [number**2 for number in range(200)]
        await rests(client)
        (pool,) = await client.functions.pools()
        assert pool.calls >= COUNT
        # The last places are being cleaned.
        await until(lambda: processes(hostile_node.launcher()) <= before, 60)
