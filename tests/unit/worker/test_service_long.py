"""Long bodies: whoever sends one waits for it, and nobody else does."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import aiohttp
from service_world import World

from skerry.worker.aside import BYTES_MAX

LONG = "x" * (BYTES_MAX + 1)


class LongWorld(World):
    """What the first rollout asks is long."""

    async def ask(self, sandbox: str, token: str, text: str) -> dict[str, Any] | None:
        return await super().ask(sandbox, token, text + LONG * text.startswith("j-0000"))


async def test_while_a_long_body_is_read_others_ask_and_are_answered(tmp_path: Path) -> None:
    world = LongWorld(tmp_path)
    async with world.worker() as service, world.trainer() as job, asyncio.timeout(60):
        pid = await service.aside.call(BYTES_MAX + 1, os.getpid)
        os.kill(pid, signal.SIGSTOP)  # it reads for as long as we like
        service.submit(world.submit())
        sampling = asyncio.ensure_future(world.sample(job))
        results = job.results()
        first = await anext(results)
        assert (first.rollout, first.reward) == ("j-0001", 1.0)
        asked = {one.rollout: one.asked async for one in job.rollouts()}
        assert asked["j-0000"] == 0
        os.kill(pid, signal.SIGCONT)
        second = await anext(results)
        assert (second.rollout, second.reward) == ("j-0000", 1.0)
        await results.aclose()
        await sampling
    assert world.refused == []


async def test_a_long_body_reaches_the_trainer_whole_however_it_asks(tmp_path: Path) -> None:
    world = LongWorld(tmp_path)
    async with world.worker() as service, world.trainer() as job, asyncio.timeout(60):
        service.submit(world.submit(n=1))
        request = await anext(job.requests())
        message = {"role": "user", "content": f"j-0000 0{LONG}"}
        assert request.body == {"model": "m", "messages": [message]}
        connector = aiohttp.UnixConnector(str(world.socket))
        async with (
            aiohttp.ClientSession("http://worker", connector=connector) as session,
            session.post("/jobs/j/attach?consumer=other") as _,
            session.get("/jobs/j/requests?consumer=other&max=1&wait=5") as reply,
        ):
            page = await reply.json()
        assert page["requests"][0]["body"] == request.body
        await request.answer("1")
        await world.sample(job)
        assert [one.reward async for one in job.results()] == [1.0]
    told = [
        request for _, action, request, _ in world.client.recorded.values() if action != "verdict"
    ]
    assert [one["bytes"] > BYTES_MAX for one in told] == [True, True]


async def test_a_long_body_is_found_again_after_a_restart(tmp_path: Path) -> None:
    world = LongWorld(tmp_path)
    async with world.worker() as service, world.trainer() as job, asyncio.timeout(60):
        service.submit(world.submit(n=1))
        request = await anext(job.requests())
    async with world.worker(), world.trainer() as job, asyncio.timeout(60):
        again = await anext(job.requests())
        assert (again.id, again.body, again.asked.digest) == (
            request.id,
            request.body,
            request.asked.digest,
        )
        await world.sample(job)
        assert [one.reward async for one in job.results()] == [1.0]
    assert world.witness.sampled[f"j-0000 0{LONG}"] == 1
