"""What a call leaves is gone before the next one begins in its place."""

from __future__ import annotations

import asyncio

import pytest
from left_behind import TRACES

from live_node import LiveNode
from skerry.spec.function import CallSpec, Environment, PythonCall
from skerry.spec.function_result import CallResult

# Modules that a call would like to change for the next.
ENVIRONMENT = Environment(modules=("json", "random", "ctypes", "signal", "socket"))
TURNS = 3


@pytest.fixture(scope="module")
def lone_node(layer_store):
    """A node whose pools have one container: all calls follow each other in it."""
    with LiveNode(
        layer_store, options="[functions]\ncontainers_per_pool_max = 1"
    ).running() as node:
        yield node


@pytest.fixture
async def run(lone_node):
    """Runs the code of a call and returns its result."""
    async with lone_node.client() as client:

        async def one(code: str) -> CallResult:
            call = CallSpec(kind=PythonCall(code=code), environment=ENVIRONMENT, wait_s=120)
            result = await client.functions.call(call)
            assert result.ok, result
            return result

        yield one


@pytest.mark.parametrize("trace", TRACES, ids=[trace.name for trace in TRACES])
async def test_what_a_call_leaves_the_next_does_not_find(run, trace) -> None:
    # There is something to find: within the call that leaves it, it is found.
    assert (await run(trace.both())).value != trace.nothing
    workers = set()
    for _ in range(TURNS):
        workers.add((await run(trace.leaving())).worker)
        found = await run(trace.looking())
        workers.add(found.worker)
        assert found.value == trace.nothing
    assert len(workers) == 1, "the calls were to follow each other in one container"


async def test_every_place_is_clean_when_many_leave_at_once(run) -> None:
    leaving = [run(trace.leaving()) for trace in TRACES for _ in range(3)]
    await asyncio.gather(*leaving)
    looked = [(trace, run(trace.looking())) for trace in TRACES for _ in range(3)]
    found = await asyncio.gather(*(call for _, call in looked))
    for (trace, _), result in zip(looked, found, strict=True):
        assert result.value == trace.nothing, trace.name


async def test_calls_at_once_do_not_see_each_other(run) -> None:
    code = """
import os, socket, time
def main():
    open('/tmp/mine', 'x').write('x')
    s = socket.socket(); s.bind(('127.0.0.1', 4243)); s.listen()
    time.sleep(0.3)
    others = [pid for pid in os.listdir('/proc') if pid.isdigit() and int(pid) not in (1, os.getpid())]
    return others, sorted(os.listdir('/tmp'))
"""
    for result in await asyncio.gather(*(run(code) for _ in range(8))):
        assert result.value == [[], ["mine"]]


async def test_random_numbers_are_of_each_call_its_own(run) -> None:
    code = """
import os, random, uuid
def main(): return [random.random(), str(uuid.uuid4()), os.urandom(8).hex()]
"""
    seen = [(await run(code)).value for _ in range(8)]
    for numbers in zip(*seen, strict=True):
        assert len(set(numbers)) == len(seen)
