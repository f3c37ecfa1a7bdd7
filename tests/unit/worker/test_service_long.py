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


async def test_while_a_long_answer_is_read_others_are_answered(tmp_path: Path) -> None:
    world = World(tmp_path, turns=1)
    async with world.worker() as service, world.trainer() as job, asyncio.timeout(60):
        service.submit(world.submit())
        asked = job.requests()
        waiting = sorted([await anext(asked), await anext(asked)], key=lambda one: one.rollout)
        pid = await service.aside.call(BYTES_MAX + 1, os.getpid)
        os.kill(pid, signal.SIGSTOP)
        giving = asyncio.ensure_future(waiting[0].answer(LONG))
        await waiting[1].answer("short")
        results = job.results()
        assert (await anext(results)).rollout == "j-0001"
        assert not giving.done()
        os.kill(pid, signal.SIGCONT)
        await giving
        assert (await anext(results)).rollout == "j-0000"
        await results.aclose()
        await asked.aclose()
    assert world.witness.seen[f"act j-0000 0 {LONG}"] == 1
    assert world.refused == []


class BothLongWorld(World):
    """All that is asked is long."""

    async def ask(self, sandbox: str, token: str, text: str) -> dict[str, Any] | None:
        return await super().ask(sandbox, token, text + LONG)


async def test_while_long_bodies_are_read_or_wait_for_that_no_agent_acts(tmp_path: Path) -> None:
    world = BothLongWorld(tmp_path, turns=1)
    async with world.worker() as service, world.trainer() as job, asyncio.timeout(60):
        pid = await service.aside.call(BYTES_MAX + 1, os.getpid)
        os.kill(pid, signal.SIGSTOP)
        service.submit(world.submit(n=4))  # more than are read at once
        while len(lines := service.lines.all()) < 4 or not all(one._readings for one in lines):  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.005)
        before = [one.active_s for one in lines]
        await asyncio.sleep(0.05)
        assert [one.active_s for one in lines] == before
        os.kill(pid, signal.SIGCONT)
        await world.sample(job)
        assert len([one async for one in job.results()]) == 4
        assert [one._readings for one in lines] == [0] * 4


async def test_a_long_body_that_is_refused_holds_no_clock_afterwards(tmp_path: Path) -> None:
    world = World(tmp_path, turns=1)
    async with world.worker() as service, world.trainer() as job, asyncio.timeout(60):
        service.submit(world.submit(n=1))
        asked = job.requests()
        request = await anext(asked)
        (line,) = service.lines.all()
        headers = {"X-Skerry-Sandbox": line.sandbox_id, "X-Skerry-Request": "0" * 32}
        headers["Authorization"] = f"Bearer {line.token}"
        connector = aiohttp.UnixConnector(str(world.socket))
        path = "/model/v1/chat/completions"
        async with (
            aiohttp.ClientSession("http://worker", connector=connector) as session,
            session.post(path, data="[" * (BYTES_MAX + 1), headers=headers) as reply,
        ):
            assert reply.status == 400
        assert line._readings == 0
        await request.answer("1")
        await asked.aclose()
        assert len([one async for one in job.results()]) == 1
