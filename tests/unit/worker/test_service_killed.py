"""A worker that is killed at each kind of record of its book, before and after it, and started again.

The process is real, and so is the kill. Its node is a fake one in the test's process, with agents that
ask through the worker's socket as a node's relay does; both live on, as does the trainer.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from far_world import NodeServer
from service_world import World

from skerry.errors import NotFound
from skerry.trajectory.rollouts.reader import verify_job

HERE = Path(__file__).parent
LIVES_MAX = 120
KINDS = {
    "taken",
    "begun",
    "placed",
    "asked",
    "given",
    "told",
    "handed",
    "acted",
    "submitted",
    "verifying",
}


async def life(
    world: World, number: int, moment: str, ended: asyncio.Event, wanted: Iterable[str] = ()
) -> str:
    """One life of the worker; returns where it died, "" if it came to the job's end.

    It dies at the n-th record, or at the first of a wanted kind.
    """
    died = world.top / "died"
    died.unlink(missing_ok=True)
    argv = [sys.executable, str(HERE / "killing_worker.py"), str(world.top), str(number), moment]
    argv += [",".join(wanted)] if wanted else []
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=subprocess.DEVNULL, env={"PYTHONPATH": str(HERE), "PATH": "/usr/bin:/bin"}
    )
    waits = [asyncio.ensure_future(one) for one in (process.wait(), ended.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if ended.is_set():
            return ""
        assert died.exists(), f"the worker ended by itself: {process.returncode}"
        return died.read_text()
    finally:
        for one in waits:
            one.cancel()
        if process.returncode is None:
            process.kill()
            await process.wait()


async def train(world: World) -> list[Any]:
    """A trainer that is never killed, and waits for a worker that is."""
    while True:
        try:
            async with world.trainer() as job:
                await job.submit([world.task], "gold", scaffold=["agent"])
                await world.sample(job)
                return [record async for record in job.results()]
        except NotFound:  # it was killed before it had the job
            continue


async def test_a_worker_killed_at_every_record_restarts_and_doubles_nothing(tmp_path: Path) -> None:
    world, ended = World(tmp_path), asyncio.Event()
    died: set[str] = set()
    async with NodeServer(world.client, tmp_path / "node.sock"):
        training = asyncio.ensure_future(train(world))
        training.add_done_callback(lambda _: ended.set())
        for number in range(LIVES_MAX):
            moment = "before" if number % 2 else "after"
            wanted = KINDS - {where.split()[1] for where in died}
            where = await life(world, 1 + number % 3, moment, ended, sorted(wanted))
            if not where:
                break
            died.add(where)
        records = await training
    assert {where.split()[1] for where in died} >= KINDS
    assert set(world.witness.seen.values()) == {1}, world.witness.seen
    assert set(world.witness.sampled.values()) == {1}, world.witness.sampled
    assert len(world.witness.seen) == 1 + world.turns
    roles = [sandbox.role for sandbox in world.client.made]
    assert roles.count("agent") == 2  # one for each rollout: none was restarted
    assert [record.reward for record in records] == [1.0] * 2
    assert [record.attempts for record in records] == [()] * 2
    assert world.client.left() == []
    told = [request["ordinal"] for _, action, request, _ in world.client.recorded.values()
            if action == "model.request"]  # fmt: skip
    assert told == list(range(world.turns))
    assert world.refused == []
    assert verify_job(tmp_path / "state" / "jobs", "j").sound


@pytest.mark.parametrize("job", ["j"])
async def test_a_worker_that_is_killed_while_it_deletes_a_job_deletes_it(
    tmp_path: Path, job: str
) -> None:
    world = World(tmp_path)
    async with NodeServer(world.client, tmp_path / "node.sock"):

        async def trainer() -> None:
            async with world.trainer() as trainer:
                await trainer.submit([world.task], scaffold=["agent"], n=2)
                version = 0
                while sum([one.asked async for one in trainer.rollouts()]) < 2:
                    version = (await trainer.signal(version=version, wait=1.0)).version
                await trainer.forget()

        ended = asyncio.Event()
        training = asyncio.ensure_future(trainer())
        training.add_done_callback(lambda _: ended.set())
        # The seventh record is the one of the deletion: taken, begun, placed, asked twice before it.
        assert await life(world, 8, "after", ended) == "after leaving"
        assert not ended.is_set()
        assert await life(world, 0, "after", ended) == ""
        await training
    assert world.client.left() == []
    assert not (tmp_path / "state" / "jobs" / job).exists()
