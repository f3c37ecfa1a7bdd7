"""Who of a job waits for room: positions and estimates, of single creates and of batches."""

from __future__ import annotations

from typing import Final

from skerry.node.admission.lineup import Line
from skerry.node.admission.shortage import Claim
from skerry.node.jobs.job import Job
from skerry.node.life.batch import Batch
from skerry.node.node import Node
from skerry.wire.jobs import JobQueue, JobWaiting

ITEMS_MAX: Final = 1000


def queue_of(node: Node, job: Job) -> JobQueue:
    """Returns who waits, in the order of being let in."""
    line = node.admission.line(job.holder)
    items = _single(node, line)
    batches = [one for one in node.batches.running if one.holder == job.holder and one.expected]
    batches.sort(key=lambda one: one.number)
    items += [_batch(line, batches, one) for one in batches]
    items.sort(key=lambda one: one.position)
    waiting = len(line.waits) + sum(batch.expected for batch in batches)
    short = node.admission.find(Claim("", job.holder)) if waiting else None
    last = line.position(waiting) if waiting else 0
    return JobQueue(
        job=job.id,
        waiting=waiting,
        items=tuple(items[:ITEMS_MAX]),
        per_second=round(line.per_second, 3),
        estimate_s=line.seconds(last) if waiting else 0.0,
        limit=None if short is None else short.limit,
        message=None if short is None else short.message,
    )


def _single(node: Node, line: Line) -> list[JobWaiting]:
    items = []
    for number, wait in enumerate(line.waits[:ITEMS_MAX], 1):
        at = line.position(number)
        sandbox = node.sandboxes.by_id.get(wait.claim.sandbox)
        item = JobWaiting(
            position=at,
            last=at,
            key=None if sandbox is None else sandbox.spec.key,
            since=0.0 if sandbox is None else sandbox.created,
            estimate_s=line.seconds(at),
        )
        items.append(item)
    return items


def _batch(line: Line, batches: list[Batch], batch: Batch) -> JobWaiting:
    """Batches of one job take turns, behind what has asked already."""
    asked = len(line.waits)
    before = sum(min(1, other.expected) for other in batches if other.number < batch.number)
    until = sum(min(other.expected, batch.expected) for other in batches)
    first, last = line.position(asked + before + 1), line.position(asked + until)
    return JobWaiting(
        position=first,
        last=max(first, last),
        count=batch.expected,
        key=batch.body.spec.key,
        since=batch.asked,
        estimate_s=line.seconds(max(first, last)),
    )
