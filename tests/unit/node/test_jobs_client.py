"""Jobs through the client: heartbeats that nothing holds up, pauses over a lost node, both faces."""

from __future__ import annotations

import asyncio
import threading

import pytest

import skerry
from skerry.aio import connect
from skerry.errors import Conflict, InvalidRequest, NotFound
from skerry.spec.job import JobState
from skerry.testing.fake import FakeInstance
from waiting import soon, until


def url(node) -> str:
    return f"unix://{node.config.socket_path}"


async def test_trainer_in_a_new_process_goes_on_with_the_name_alone(stand) -> None:
    async with stand.serving() as (node, _):
        async with connect(url(node)) as client:
            job = await client.jobs.create("train", lease=30, labels={"a": "b"})
            first = await job.sandboxes.create(labels={"n": "1"})
            more = await job.sandboxes.create_many(2)
            assert {info.spec.job for info in await job.sandboxes.list()} == {"train"}
            await client.sandboxes.create()
        async with connect(url(node)) as client:  # knows nothing but the name
            job = await client.jobs.attach("train")
            found = {info.id for info in await job.sandboxes.list()}
            assert found == {first.id, *(one.id for one in more)}
            assert [info.id for info in await client.jobs.list(labels={"a": "b"})] == ["train"]
            ended = await job.end()
            assert (ended.state, await job.sandboxes.list()) == (JobState.ENDED, [])
            assert (await job.end()).state is JobState.ENDED
            assert len(await client.sandboxes.list()) == 1
            with pytest.raises(NotFound):
                await client.jobs.attach("train")
            assert await client.jobs.list(ended=True) == []


async def test_heartbeats_go_on_while_the_trainers_loop_is_busy(stand) -> None:
    beats = threading.Event()
    started = asyncio.Event()
    over = asyncio.Event()

    def node_thread() -> None:
        async def serve() -> None:
            async with stand.serving():
                loop.call_soon_threadsafe(started.set)
                await asyncio.to_thread(beats.wait)
            loop.call_soon_threadsafe(over.set)

        asyncio.run(serve())

    loop = asyncio.get_running_loop()
    thread = threading.Thread(target=node_thread)
    thread.start()
    try:
        await started.wait()
        async with connect(f"unix://{stand.config().socket_path}") as client:
            job = await client.jobs.create("train", lease=1)
            async with job:
                heart = job._heart
                assert heart is not None
                before = heart.beats
                # A training step: nothing else of this loop runs until then.
                assert soon(lambda: heart.beats > before + 2)
            assert not heart._thread.is_alive()
    finally:
        beats.set()
        await over.wait()
        thread.join()


async def test_heartbeats_survive_a_restart_of_the_node(stand) -> None:
    async with stand.serving() as (node, _):
        client = connect(url(node))
        await client.__aenter__()
        job = await client.jobs.create("train", lease=3)
        await job.__aenter__()
    await asyncio.sleep(0.7)
    async with stand.serving() as (node, _):
        assert job._heart is not None
        before = job._heart.beats
        await until(lambda: job._heart.beats > before + 1)
        assert node.jobs.get("train").state is JobState.ACTIVE
        assert job.lost is None
        await job.__aexit__()
        await client.__aexit__()


async def test_job_that_ended_stops_the_heartbeats_and_says_why(stand) -> None:
    async with stand.serving() as (node, _), connect(url(node)) as client:
        async with await client.jobs.create("train", lease=1) as job:
            await node.keeping.end(node.jobs.get("train"), "its ttl is over", delete=False)
            await until(lambda: job.lost is not None)
            assert isinstance(job.lost, Conflict)
            with pytest.raises(Conflict, match="its ttl is over"):
                await job.heartbeat()
        with pytest.raises(Conflict, match="its ttl is over"):
            await client.jobs.attach("train")
        assert (await client.jobs.get("train")).created_as.reason == "its ttl is over"


async def test_job_is_changed_through_the_client_and_its_heart_beats_as_it_says(stand) -> None:
    async with stand.serving() as (node, _), connect(url(node)) as client:
        async with await client.jobs.create("train", lease=3) as job:
            info = await job.update(lease=600, ttl=1000, labels={"a": "b"}, on_lost="keep")
            assert (info.spec.lease_s, info.spec.labels, info.spec.on_lost) == (
                600,
                {"a": "b"},
                "keep",
            )
            await until(lambda: job._heart._every_s == 200)
            for wrong in ({"ttl": "x"}, {"on_lost": "x"}, {"priority": 99}):
                with pytest.raises(InvalidRequest):
                    await job.update(**wrong)
        await job.end()


async def test_pause_is_found_again_after_a_restart_of_the_node(stand, monkeypatch) -> None:
    gate = asyncio.Event()
    before = FakeInstance.pause

    async def pause(self):
        await gate.wait()
        return await before(self)

    monkeypatch.setattr(FakeInstance, "pause", pause)
    told: list[int] = []
    async with stand.serving() as (node, _):
        client = connect(url(node))
        await client.__aenter__()
        job = await client.jobs.create("train")
        await job.sandboxes.create_many(4)
        pausing = asyncio.create_task(job.pause(lambda step: told.append(step.done)))
        await until(lambda: bool(told))
    gate.set()
    async with stand.serving() as (node, _):
        end = await pausing
        assert (end.total, end.done) == (4, 4)
        assert (await job.info()).sandboxes == {"paused": 4}
        assert (await job.resume()).done == 4
        await job.end()
        await client.__aexit__()


async def test_cancelled_pause_is_ended_on_the_node(stand, monkeypatch) -> None:
    gate = asyncio.Event()
    before = FakeInstance.pause

    async def pause(self):
        await gate.wait()
        return await before(self)

    monkeypatch.setattr(FakeInstance, "pause", pause)
    async with stand.serving() as (node, _), connect(url(node)) as client:
        job = await client.jobs.create("train")
        await job.sandboxes.create_many(40)
        begun = asyncio.Event()
        pausing = asyncio.create_task(job.pause(lambda _step: begun.set()))
        await begun.wait()
        pausing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pausing
        gate.set()
        move = node.jobs.get("train").move
        assert move is None or move.cancelled
        assert (await job.info()).state is JobState.ACTIVE
        await job.end()


@pytest.mark.parametrize(
    "wish",
    [{"on_lost": "explode"}, {"resume": "x"}, {"lease": "long"}, {"ttl": -1}, {"grace": None}],
)
async def test_wrong_wish_is_told_where_it_was_made(stand, wish) -> None:
    async with stand.serving() as (node, _), connect(url(node)) as client:
        with pytest.raises(InvalidRequest):
            await client.jobs.create("train", **wish)
        with pytest.raises(InvalidRequest):
            await client.jobs.get("../x")
        assert len(node.jobs) == 0


def test_sync_face_has_jobs_too(stand) -> None:
    ready, over = threading.Event(), threading.Event()

    def node_thread() -> None:
        async def serve() -> None:
            async with stand.serving():
                ready.set()
                await asyncio.to_thread(over.wait)

        asyncio.run(serve())

    thread = threading.Thread(target=node_thread)
    thread.start()
    try:
        assert ready.wait(20)
        with skerry.connect(f"unix://{stand.config().socket_path}") as client:
            with client.jobs.create("train", lease=2) as job:
                job.sandboxes.create()
                steps: list[object] = []
                assert job.pause(steps.append).done == 1
                assert len(steps) == 3
                assert job.resume().done == 1
                assert job.queue().waiting == 0
                assert job.lost is None
            assert client.jobs.attach("train").info().sandboxes == {"running": 1}
            job.end()
    finally:
        over.set()
        thread.join()
