"""Routes of jobs: made, found, kept alive, paused and resumed as a whole, ended."""

from __future__ import annotations

import asyncio

from skerry.guest.files import STALL_S
from skerry.node.jobs.moves import Move
from skerry.node.jobs.queues import queue_of
from skerry.node.node import Node
from skerry.node.server.bodies import JOB, JOB_CHANGE
from skerry.node.server.commands import frame
from skerry.node.server.exchange import Exchange
from skerry.node.server.sandboxes import labels_of
from skerry.spec.ids import check_job_id
from skerry.spec.job import JobInfo, JobSpec, JobState
from skerry.wire.http import STREAM


async def create(node: Node, exchange: Exchange) -> None:
    """POST /v1/jobs."""
    job = node.keeping.make(await exchange.body(JOB), owner=exchange.tenant)
    await exchange.reply(node.keeping.info(job))


async def list_all(node: Node, exchange: Exchange) -> None:
    """GET /v1/jobs."""
    exchange.allow("label", "all")
    labels, everything = labels_of(exchange), exchange.flag("all")
    found = [
        node.keeping.info(job)
        for job in node.jobs
        if (everything or not job.ended)
        and all(job.spec.labels.get(name) == value for name, value in labels.items())
    ]
    await exchange.reply(found)


async def get(node: Node, exchange: Exchange) -> None:
    """GET /v1/jobs/ID."""
    await exchange.reply(node.keeping.info(node.jobs.get(exchange.path("job"))))


async def change(node: Node, exchange: Exchange) -> None:
    """PATCH /v1/jobs/ID."""
    job = node.jobs.get(exchange.path("job"))
    node.keeping.change(job, await exchange.body(JOB_CHANGE))
    await exchange.reply(node.keeping.info(job))


async def delete(node: Node, exchange: Exchange) -> None:
    """DELETE /v1/jobs/ID."""
    name = check_job_id(exchange.path("job"))
    job = node.jobs.by_id.get(name)
    if job is None:
        spec = JobSpec(id=name)
        await exchange.reply(JobInfo(id=name, state=JobState.ENDED, spec=spec))
        return
    # It goes on also if this client does not wait for it.
    await asyncio.shield(node.tasks.spawn(node.keeping.end(job, "it was removed", delete=True)))
    await exchange.reply(node.keeping.info(job))


async def heartbeat(node: Node, exchange: Exchange) -> None:
    """POST /v1/jobs/ID/heartbeat."""
    job = node.jobs.get(exchange.path("job"))
    node.keeping.heartbeat(job)
    await exchange.reply(node.keeping.info(job))


async def pause(node: Node, exchange: Exchange) -> None:
    """POST /v1/jobs/ID/pause."""
    await _tell(exchange, await node.keeping.pause(node.jobs.get(exchange.path("job"))))


async def resume(node: Node, exchange: Exchange) -> None:
    """POST /v1/jobs/ID/resume."""
    await _tell(exchange, await node.keeping.resume(node.jobs.get(exchange.path("job"))))


async def cancel_pause(node: Node, exchange: Exchange) -> None:
    """DELETE /v1/jobs/ID/pause."""
    job = node.jobs.get(exchange.path("job"))
    node.keeping.cancel(job, pausing=True)
    await exchange.reply(node.keeping.info(job))


async def cancel_resume(node: Node, exchange: Exchange) -> None:
    """DELETE /v1/jobs/ID/resume."""
    job = node.jobs.get(exchange.path("job"))
    node.keeping.cancel(job, pausing=False)
    await exchange.reply(node.keeping.info(job))


async def queue(node: Node, exchange: Exchange) -> None:
    """GET /v1/jobs/ID/queue."""
    await exchange.reply(queue_of(node, node.jobs.get(exchange.path("job"))))


async def _tell(exchange: Exchange, move: Move) -> None:
    """Tells how it goes on. A client that goes, or takes nothing, ends nothing."""
    await exchange.open_stream(STREAM)
    async for step in move.listen():
        await exchange.send_within(STALL_S, frame(step))
    await exchange.close_stream()
