"""More is asked of a real node than fits: nothing hangs, nobody starves, nothing is left."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from live_node import LiveNode
from skerry.errors import Overloaded, SkerryError
from skerry.spec.limits import MIB
from skerry.spec.sandbox import SandboxSpec

SPEC = SandboxSpec(memory_bytes=64 * MIB, pids=32)
SMALL = {"memory": "64MiB", "pids": 32}

# Runs lives in a process of its own: argv is the node's address, a name, and how many.
LIVES = """
import asyncio, sys
from skerry.sdk.client import connect

async def life(number):
    async with connect(sys.argv[1]) as client:
        async with await client.sandboxes.create(memory="64MiB", pids=32, wait=120) as sandbox:
            done = await sandbox.run(["echo", sys.argv[2]])
            assert done.text == sys.argv[2] + "\\n", done

async def main():
    await asyncio.gather(*map(life, range(int(sys.argv[3]))))

asyncio.run(main())
"""


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no VmRSS")


@pytest.fixture(scope="module")
def full_node(layer_store):
    """A node on which forty sandboxes fit."""
    with LiveNode(layer_store, options="[limits]\nsandboxes_max = 40").running() as node:
        yield node


async def test_two_hundred_clients_at_once_each_have_their_life(full_node) -> None:
    """(reports 69, 72, 74)"""
    argv = [sys.executable, "-c", LIVES, full_node.url]
    others = [subprocess.Popen([*argv, f"process-{n}", "20"]) for n in range(2)]  # noqa: ASYNC220
    outputs: Counter[str] = Counter()

    async def life(number: int) -> None:
        async with full_node.client() as client:
            labels = {"job": f"job-{number % 16}"}
            async with await client.sandboxes.create(labels=labels, wait=120, **SMALL) as sandbox:
                outputs[(await sandbox.run(["echo", str(number)])).text.strip()] += 1

    try:
        await asyncio.gather(*map(life, range(160)))
        for other in others:
            assert await asyncio.to_thread(other.wait, 120) == 0
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert outputs == Counter(str(number) for number in range(160))
    async with full_node.client() as client:
        assert await client.sandboxes.list() == []


async def test_ten_times_what_fits_is_refused_by_name_or_waits_its_turn(full_node) -> None:
    """(reports 71, 72)"""
    async with full_node.client() as client, full_node.client() as other:
        before = resident_bytes(full_node.pid)
        items = await client.sandboxes.create_batch(SPEC, 400)
        made = [item.info.id for item in items if item.info is not None]
        refused = [item.error for item in items if item.error is not None]
        assert (len(made), len(refused)) == (40, 360)
        assert {error.fields["limit"] for error in refused} == {"sandboxes"}
        with pytest.raises(Overloaded):
            await other.sandboxes.create(wait=0, **SMALL)
        assert (await other.health()).live == 40
        await client.sandboxes.destroy_many(made)

        ended, failures = 0, {}
        stream = client.sandboxes.create_each(SPEC, 160, wait=120, failed=failures.__setitem__)
        async with asyncio.TaskGroup() as group:
            async for sandbox in stream:
                group.create_task(sandbox.destroy())
                ended += 1
                assert (await other.health()).live <= 40
        assert (ended, failures) == (160, {})
        assert resident_bytes(full_node.pid) - before < 100 * MIB
        assert await client.sandboxes.list() == []


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def test_no_daemon_holds_six_descriptors_a_sandbox(full_node) -> None:
    async with full_node.client() as client:
        one = await client.sandboxes.create(**SMALL)
        daemons = {"node": full_node.pid, "launcher": full_node.launcher()}
        before = {name: descriptors(pid) for name, pid in daemons.items()}
        made = await client.sandboxes.create_many(38, **SMALL)
        for name, pid in daemons.items():
            # The pool may have made slots in advance meanwhile: they count as they are.
            assert descriptors(pid) - before[name] < 6 * 38, name
        await client.sandboxes.destroy_many([one, *made])


async def test_greedy_job_does_not_starve_a_modest_one(full_node) -> None:
    async with full_node.client() as greedy, full_node.client() as modest:
        spec = SandboxSpec(memory_bytes=64 * MIB, pids=32, labels={"job": "greedy"})
        made = 0

        async def all_of_it() -> None:
            nonlocal made
            async with asyncio.TaskGroup() as group:
                async for sandbox in greedy.sandboxes.create_each(spec, 150, wait=120):
                    made += 1
                    group.create_task(sandbox.destroy())

        running = asyncio.create_task(all_of_it())
        while made < 5:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for _ in range(3):
            labels = {"job": "modest"}
            sandbox = await modest.sandboxes.create(wait=120, labels=labels, **SMALL)
            await sandbox.destroy()
        assert made < 150
        await running


async def test_killed_clients_of_a_group_leave_nothing(full_node) -> None:
    """(report 48)"""
    program = """
import asyncio, sys
from skerry.sdk.client import connect

async def main():
    async with connect(sys.argv[1]) as client:
        print("begun", flush=True)
        await client.sandboxes.create_many(40, memory="64MiB", pids=32, labels={"job": "killed"})
        await asyncio.sleep(60)

asyncio.run(main())
"""
    async with full_node.client() as client:
        process = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-c", program, full_node.url], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        await asyncio.to_thread(process.stdout.readline)
        while not await client.sandboxes.list(labels={"job": "killed"}):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        process.kill()
        process.wait()
        process.stdout.close()
        async with asyncio.timeout(60):
            while left := await client.sandboxes.list(labels={"job": "killed"}):
                if len(left) == 40 and all(one.state == "running" for one in left):
                    await client.sandboxes.destroy_many([one.id for one in left])  # it was too late
                await asyncio.sleep(0.05)
        try:
            async with await client.sandboxes.create(wait=0, **SMALL) as sandbox:
                assert (await sandbox.run("true")).ok
        except SkerryError as error:
            raise AssertionError("the node is not free again") from error
