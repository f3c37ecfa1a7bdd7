"""Jobs on a real node: a trainer that is killed, and one that comes back knowing only the name."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys

import pytest

from live_node import LiveNode
from skerry.backends.shared import proc
from waiting import until

pytestmark = pytest.mark.root

TRAINER = """
import json, sys, time
import skerry
client = skerry.connect(sys.argv[1])
job = client.jobs.create("train", lease=3, grace=1)
with job:
    busy, idle = job.sandboxes.create_many(2)
    for one in (busy, idle):
        one.files.write("/srv/state", one.id.encode())
    counter = busy.start("i=0; while :; do echo $((i += 1)); sleep 0.05; done", timeout=60)
    print(json.dumps([busy.id, idle.id, counter.op_id]), flush=True)
    time.sleep(1000)
"""

RETURN = """
import json, sys
import skerry
with skerry.connect(sys.argv[1]) as client, client.jobs.attach("train") as job:
    found = {}
    for info in job.sandboxes.list():
        sandbox = client.sandboxes.get(info.id)
        found[info.id] = sandbox.files.read("/srv/state").decode()
    print(json.dumps([found, job.info().state]))
"""


def trainer(code: str, url: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", code, url]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd="/")


@pytest.fixture
def node(layer_store):
    with LiveNode(layer_store).running() as made:
        yield made


async def test_killed_trainer_is_waited_for_over_a_killed_node_and_nothing_is_lost(node):
    process = trainer(TRAINER, node.url)
    assert process.stdout is not None
    try:
        busy, idle, op = json.loads(await asyncio.to_thread(process.stdout.readline))
        async with node.client() as client:
            job = await client.jobs.get("train")
            first = (await job.info()).lease_expires
            assert first is not None

            async def renewed_often() -> bool:
                info = await job.info()
                return info.lease_expires is not None and info.lease_expires > first + 3

            await until(renewed_often)  # beyond its first term: by heartbeats
            assert (await job.info()).state == "active"
            process.send_signal(signal.SIGKILL)
            process.wait()

            async def all_paused() -> bool:
                info = await job.info()
                return info.paused_by == "loss" and info.sandboxes == {"paused": 2}

            await until(all_paused, within_s=60)
        node.kill()
        await asyncio.sleep(1.0)
        node.start()
        async with node.client() as client:
            job = await client.jobs.get("train")
            info = await job.info()
            assert (info.state, info.sandboxes) == ("paused", {"paused": 2})
            done = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-c", RETURN, node.url],
                check=True,
                capture_output=True,
                text=True,
                cwd="/",
            )
            assert json.loads(done.stdout) == [{busy: busy, idle: idle}, "active"]
            command = await (await client.sandboxes.get(busy)).command(op)
            await command.kill()
            result = await command.wait(timeout=60)
            counted = [int(line) for line in result.stdout.split()]
            assert counted == list(range(1, len(counted) + 1))  # nothing twice, nothing lost
            assert (result.timed_out, len(counted) > 20) == (False, True)
            await job.end()
            assert await client.sandboxes.list() == []
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def test_lazy_return_lets_go_on_what_has_work_and_the_rest_when_it_is_needed(node):
    async with node.client() as client:
        job = await client.jobs.create("lazy", lease=1, grace=0)
        busy, idle = await job.sandboxes.create_many(2)
        await busy.start("sleep 1000")

        async def paused() -> bool:
            return (await job.info()).sandboxes == {"paused": 2}

        await until(paused, within_s=60)
        async with await client.jobs.attach("lazy") as back:

            async def busy_runs() -> bool:
                return (await busy.info()).state == "running"

            await until(busy_runs)
            assert (await idle.info()).state == "paused"
            assert (await idle.run("echo hi")).text == "hi\n"
            await back.end()


async def test_node_that_is_killed_in_a_pause_of_all_goes_on_with_it(node):
    async with node.client() as client:
        job = await client.jobs.create("many", lease=600)
        made = await job.sandboxes.create_many(40)
        for one in made[:5]:
            await one.start("sleep 1000")
        told: list[int] = []
        pausing = asyncio.create_task(job.pause(lambda step: told.append(step.done)))
        await until(lambda: bool(told) and told[-1] >= 3)
        node.kill()
        node.start()
        end = await pausing
        assert (end.done, end.failures) == (end.total, 0)
        assert (await job.info()).sandboxes == {"paused": 40}
        back = await job.resume()
        assert (back.done, back.failures) == (back.total, 0)
        assert (await job.info()).sandboxes == {"running": 40}
        for one in made[::8]:
            assert (await one.run("true")).ok
        await job.end()
        assert await client.sandboxes.list() == []


async def test_job_on_an_embedded_node_outlives_its_client_and_ends_with_its_removal(
    layer_store,
):
    """Nobody holds the node between two trainers but the job's sandbox."""
    with LiveNode(layer_store, options="embedded = true\nexit_grace_s = 0.2").running() as node:
        async with node.client() as client:
            job = await client.jobs.create("train", lease=1, grace=0)
            made = await job.sandboxes.create()
            await made.files.write("/srv/state", b"here")
            await client.sandboxes.create()  # goes with the client
        async with node.client() as client:

            async def paused() -> bool:
                jobs = await client.jobs.list()
                return [info.sandboxes for info in jobs] == [{"paused": 1}]

            await until(paused, within_s=60)
        await asyncio.sleep(1.0)  # longer than the grace of its exit
        async with node.client() as client:
            job = await client.jobs.attach("train")
            (info,) = await client.sandboxes.list()
            assert info.id == made.id
            assert await (await client.sandboxes.get(info.id)).files.read("/srv/state") == b"here"
            await job.end()
        await until(lambda: not proc.runs(node.pid), within_s=60)


def test_trainer_that_ends_without_leaving_its_job_ends_quietly(node):
    code = (
        "import skerry, sys\n"
        "client = skerry.connect(sys.argv[1])\n"
        "job = client.jobs.create('left')\n"
        "job.__enter__()\n"
        "print('over')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, node.url],
        check=True, capture_output=True, text=True, cwd="/", timeout=60,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("over\n", "")
