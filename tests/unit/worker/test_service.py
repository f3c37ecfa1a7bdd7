"""A worker's service through its socket: jobs, requests, answers, and what a restart changes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from job_world import CORE, FakeSandbox
from service_world import World
from yarl import URL

from skerry.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    SandboxFailed,
    Unavailable,
)
from skerry.sdk.rollout_job import combined
from skerry.spec.command import RunResult
from skerry.spec.job import JobState
from skerry.spec.worker import Signal
from skerry.trajectory.rollouts.reader import verify_job


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_agents_ask_the_trainer_answers_and_all_is_graded(world: World) -> None:
    async with world.worker() as service, world.trainer() as job:
        service.submit(world.submit(policies=("noop",)))
        await world.sample(job)
        records = [record async for record in job.results()]
        found = sorted((record.policy, record.reward) for record in records)
        assert found == [("noop", 0.0)] * 2 + [("scaffold", 1.0)] * 2
        assert set(world.witness.sampled.values()) == {1}
        status = (await job.status())[0]
        assert status.ended
        assert status.counts == {"ended": 4}
        lines = [line async for line in job.lines()]
        assert [line.kind for line in lines].count("rollout") == 4
        assert verify_job(service.book.state / "jobs", "j").sound
    assert world.client.left() == []
    assert world.refused == []


async def asked(world: World, count: int) -> list[str]:
    """Returns the requests that wait, once there are so many, held by nobody."""
    async with world.trainer() as job:
        version = 0
        while (signal := await job.signal(version=version, wait=5.0)).waiting < count:
            version = signal.version
        return [one.rollout async for one in job.rollouts() if one.asked > one.answered]


async def test_another_trainer_is_given_what_the_first_one_held(world: World) -> None:
    async with world.worker() as service:
        service.submit(world.submit())
        await asked(world, 2)
        async with world.trainer() as first:
            held = first.requests()
            request = await anext(held)
            await held.aclose()
            assert (await first.signal()).waiting == 0
        async with world.trainer() as second:
            again = [request.id async for request in _first(second.requests(), 2)]
            assert request.id in again
            await world.sample(second)
            assert [one.reward async for one in second.results()] == [1.0, 1.0]


async def _first(requests: Any, count: int) -> AsyncIterator[Any]:
    for _ in range(count):
        yield await anext(requests)
    await requests.aclose()


async def test_the_first_answer_wins_and_the_same_again_is_fine(world: World) -> None:
    async with world.worker() as service, world.trainer() as job:
        service.submit(world.submit(n=1))
        request = await anext(job.requests())
        assert (await request.answer("1")).first
        assert not (await job.answer(request.id, "1")).first
        with pytest.raises(Conflict, match="another answer"):
            await job.answer(request.id, "2")
        with pytest.raises(NotFound):
            await job.answer("0.0.99", "1")
        with pytest.raises(NotFound):
            await job.answer("7.0.0", "1")
        await world.sample(job)
        assert [one.reward async for one in job.results()] == [1.0]
        late = await job.answer(request.id, "3")
        assert (late.first, late.needed) == (False, False)


async def test_what_is_no_answer_is_refused_and_the_request_stays(world: World) -> None:
    async with world.worker() as service, world.trainer() as job:
        service.submit(world.submit(n=1))
        request = await anext(job.requests())
        for bad in (7, {}, {"choices": []}):
            with pytest.raises(InvalidRequest):
                await request.answer(bad)
        assert (await request.answer({"content": "1"})).first
        await world.sample(job)
        assert [one.reward async for one in job.results()] == [1.0]


async def test_the_same_submission_changes_nothing_and_another_is_refused(world: World) -> None:
    async with world.worker() as service:
        first = service.submit(world.submit())
        assert service.submit(world.submit()) is first
        with pytest.raises(Conflict, match="something else"):
            service.submit(world.submit(n=3))
        with pytest.raises(InvalidRequest):
            service.submit(world.submit(job="k", policies=("nobody",)))


async def test_the_signal_tells_of_waiting_requests_and_changes_with_them(world: World) -> None:
    async with world.worker() as service, world.trainer() as job:
        service.submit(world.submit(n=3, concurrency=2))
        await asked(world, 2)
        signal = await job.signal()
        assert (signal.waiting, signal.leased, signal.next_request_s) == (2, 0, 0.0)
        assert (signal.rollouts_running, signal.rollouts_waiting) == (2, 1)
        requests = job.requests()
        await anext(requests)
        changed = await job.signal(version=signal.version, wait=5.0)
        assert changed.version > signal.version
        assert (changed.waiting, changed.leased) == (0, 2)
        await requests.aclose()
        await world.sample(job)
        last = await job.signal()
        assert (last.waiting, last.leased, last.rollouts_ended) == (0, 0, 3)
        assert last.next_request_s is None


async def test_a_node_that_is_away_costs_no_attempt(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry.worker.service.runner.AGAIN_FIRST_S", 0.01)
    monkeypatch.setattr("skerry.worker.service.runner.AGAIN_MAX_S", 0.02)
    left = [6]

    def away(sandbox: FakeSandbox, what: str) -> None:
        if what in ("diff", "test") and left[0] > 0:
            left[0] -= 1
            world.client.away = left[0] % 3 != 0
            raise Unavailable("the node is away")

    world.client.on_call = away
    async with world.worker() as service, world.trainer() as job:
        service.submit(world.submit(n=1))
        await world.sample(job)
        (record,) = [one async for one in job.results()]
    # Twice the node answered, so that was its fault and not its absence: two attempts failed.
    assert record.reward == 1.0
    assert len(record.attempts) == 2
    assert world.client.left() == []


async def test_a_node_that_was_away_and_is_there_again_when_it_is_asked_costs_no_attempt(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry.worker.service.runner.AGAIN_FIRST_S", 0.01)
    monkeypatch.setattr("skerry.worker.service.runner.AGAIN_MAX_S", 0.02)
    left = {"diff": 4, "test": 4}

    def refused(sandbox: FakeSandbox, what: str) -> None:
        if left.get(what, 0) > 0:
            left[what] -= 1
            raise Unavailable("cannot reach the node") from ConnectionRefusedError(111, "refused")

    world.client.on_call = refused
    async with world.worker() as service, world.trainer() as job:
        service.submit(world.submit(n=1))
        await world.sample(job)
        (record,) = [one async for one in job.results()]
    assert left == {"diff": 0, "test": 0}
    assert (record.reward, record.attempts) == (1.0, ())
    assert world.client.left() == []


async def test_a_deleted_job_leaves_nothing(world: World) -> None:
    async with world.worker() as service:
        service.submit(world.submit())
        await asked(world, 2)
        async with world.trainer() as job:
            await job.forget()
            await job.forget()
            with pytest.raises(NotFound):
                await job.status()
        assert world.client.left() == []
        assert service.book.journal.subjects() == []
        assert not list((service.book.state / "jobs").iterdir())


async def test_a_bug_of_the_worker_is_told_to_the_caller_and_to_its_log(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.worker() as service:

        def broken(tenant: str) -> list[str]:
            raise KeyError(f"ours, for {tenant}")

        monkeypatch.setattr(service, "jobs_of", broken)
        connector = aiohttp.UnixConnector(str(world.socket))
        async with (
            aiohttp.ClientSession("http://worker", connector=connector) as session,
            session.get("/jobs", headers={"X-Skerry-Tenant": "t1"}) as reply,
        ):
            assert reply.status == 500
            assert "KeyError" in (await reply.json())["message"]
    assert any(record.exc_info and "/jobs" in record.getMessage() for record in caplog.records)


async def test_a_job_is_seen_by_its_own_tenant_only(world: World) -> None:
    async with world.worker() as service:
        service.submit(world.submit(), "t1")
        assert (service.jobs_of("t1"), service.jobs_of("t2")) == (["j"], [])
        connector = aiohttp.UnixConnector(str(world.socket))
        async with aiohttp.ClientSession("http://worker", connector=connector) as session:
            for path in ("/jobs/j", "/jobs/j/requests?consumer=c", "/jobs/j/results"):
                async with session.get(path, headers={"X-Skerry-Tenant": "t2"}) as reply:
                    assert reply.status == 404
                async with session.get(path, headers={"X-Skerry-Tenant": "t1"}) as reply:
                    assert reply.status == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/jobs", b"{", 422),
        ("POST", "/jobs", b"{}", 422),
        ("POST", "/jobs", b"[" * 100_000, 422),
        ("GET", "/jobs/none", b"", 404),
        ("GET", "/jobs/j?from=x", b"", 422),
        ("GET", "/jobs/j/requests", b"", 422),
        ("GET", "/jobs/j/requests?consumer=a/b", b"", 422),
        ("GET", "/jobs/j/events?wait=nan", b"", 422),
        ("GET", "/jobs/j/blobs/..%2f..%2fsubmit", b"", 404),
        ("POST", "/jobs/j/requests/x/answer", b'{"answer": "1"}', 422),
        ("POST", "/jobs/j/requests/0.0.0/answer", b"null", 422),
        ("PUT", "/jobs", b"", 404),
        ("GET", "/nothing", b"", 404),
    ],
)
async def test_what_makes_no_sense_is_refused_as_the_callers_fault(
    world: World, method: str, path: str, body: bytes, status: int
) -> None:
    async with world.worker() as service:
        service.submit(world.submit(n=1))
        connector = aiohttp.UnixConnector(str(world.socket))
        async with aiohttp.ClientSession("http://worker", connector=connector) as session:
            url = URL(path, encoded=True)
            async with session.request(method, url, data=body) as reply:
                assert reply.status == status
                assert (await reply.json())["fault"] == "caller"


@pytest.mark.slow
async def test_a_thousand_rollouts_ask_at_once(tmp_path: Path) -> None:
    world = World(tmp_path, turns=1)
    before = threading.active_count()
    async with world.worker() as service:
        service.submit(world.submit(n=1000, concurrency=1000))
        rollouts = await asked(world, 1000)
        assert len(rollouts) == 1000
        assert threading.active_count() - before < 64
        async with world.trainer() as job:
            await world.sample(job)
            assert [one.reward async for one in job.results()] == [1.0] * 1000
    assert set(world.witness.seen.values()) == {1}
    assert world.client.left() == []


async def test_an_agent_whose_sandbox_dies_under_it_has_failed_and_says_how(world: World) -> None:
    async def dies(sandbox: FakeSandbox, command: Any, **more: Any) -> Any:
        raise SandboxFailed("PID 1 was ended by signal 9")

    world.client.scaffold = dies
    async with world.worker() as service, world.trainer() as job:
        service.submit(world.submit(n=1))
        (record,) = [one async for one in job.results()]
    assert (record.reward, record.verdict, record.attempts) == (0.0, "failed", ())
    assert "PID 1" in record.detail
    assert world.client.left() == []


async def test_a_sandbox_that_its_host_lost_is_no_fault_of_the_agent(world: World) -> None:
    agent, lost = world.client.scaffold, [True]

    async def loses(sandbox: FakeSandbox, command: Any, **more: Any) -> Any:
        if lost:
            lost.clear()
            raise SandboxFailed("its host lost it", lost=True)
        return await agent(sandbox, command, **more)

    world.client.scaffold = loses
    async with world.worker() as service, world.trainer() as job:
        service.submit(world.submit(n=1))
        await world.sample(job)
        (record,) = [one async for one in job.results()]
    assert (record.reward, len(record.attempts), record.repercussion) == (1.0, 1, "")


async def test_an_agent_out_of_time_is_graded_as_it_stands(world: World) -> None:
    limits = msgspec.structs.replace(world.task.limits, act_timeout_s=0.2)
    world.task = msgspec.structs.replace(world.task, limits=limits)

    async def slow(sandbox: FakeSandbox, command: Any, **more: Any) -> Any:
        sandbox.files.content[f"/testbed/{CORE}"] = b"VALUE = 2\n"
        await asyncio.sleep(3600)

    world.client.scaffold = slow
    async with world.worker() as service, world.trainer() as job:
        service.submit(world.submit(n=1))
        (record,) = [one async for one in job.results()]
    assert (record.reward, record.attempts) == (1.0, ())


async def test_time_in_which_the_job_is_paused_does_not_count(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry.worker.service.service.LOOK_AT_JOBS_S", 0.02)
    limits = msgspec.structs.replace(world.task.limits, act_timeout_s=0.5)
    world.task = msgspec.structs.replace(world.task, limits=limits)
    world.client.jobs.state = JobState.PAUSED
    going_on = asyncio.Event()

    async def works(sandbox: FakeSandbox, command: Any, **more: Any) -> Any:
        if list(command)[:1] == ["agent"]:
            await going_on.wait()
            sandbox.files.content[f"/testbed/{CORE}"] = b"VALUE = 2\n"
            return RunResult(exit_code=0)
        return await FakeSandbox.run(sandbox, command, **more)

    world.client.scaffold = works
    async with world.worker() as service, world.trainer() as job:
        service.submit(world.submit(n=1))
        runner = service.runner("j")
        while not (runner.lines and runner.clocks.standing):
            await runner.pulse.wait(runner.pulse.version, 0.05)
        spent = runner.lines[0].active_s
        await asyncio.sleep(0.6)
        assert runner.lines[0].active_s == spent < 0.5
        world.client.jobs.state = JobState.ACTIVE
        going_on.set()
        (record,) = [one async for one in job.results()]
    assert record.reward == 1.0


def test_signals_of_several_workers_are_one() -> None:
    one = Signal(
        version=3, waiting=1, leased=2, oldest_s=4.0, sandboxes_busy=1, verifying=0,
        rollouts_waiting=5, rollouts_running=2, rollouts_ended=0, next_request_s=2.0,
    )  # fmt: skip
    other = msgspec.structs.replace(one, version=4, oldest_s=9.0, next_request_s=None)
    whole = combined([one, other])
    assert (whole.version, whole.waiting, whole.leased) == (7, 2, 4)
    assert (whole.oldest_s, whole.next_request_s, whole.rollouts_waiting) == (9.0, 2.0, 10)
