"""Sandboxes that cannot be left behind: made and destroyed even when the job is cancelled meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, TypeVar

from skerry.errors import SandboxError, SkerryError, Unavailable
from skerry.spec.task import TaskSpec
from skerry.worker.ports import Client, Sandbox

T = TypeVar("T")
TTL_MARGIN_S = 120.0


def is_lost(error: SkerryError) -> bool:
    """Returns whether the host lost the sandbox: then nobody inside is to blame for the error."""
    return "lost" in error.fields


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Runs work to its end even if the caller is cancelled, and raises the cancellation then."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


async def together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Returns the results in order; the first error ends the others and is raised by itself."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except ExceptionGroup as errors:
        first = errors.exceptions[0]
        raise first from first.__cause__
    return [task.result() for task in tasks]


@contextlib.asynccontextmanager
async def sandbox_of(
    client: Client,
    task: TaskSpec,
    *,
    image: str,
    layers: tuple[str, ...],
    seconds: float,
    labels: dict[str, str],
) -> AsyncIterator[Sandbox]:
    """A sandbox without network for a block; nothing of it is left after the block.

    An error while it is destroyed is not raised: its time to live, and the end of the owner's
    connection, remove it anyway, and the block's result stands.
    """
    making = asyncio.ensure_future(
        client.sandboxes.create(
            "container",
            image=image,
            layers=layers,
            cpu=task.limits.cpu,
            memory=task.limits.memory,
            pids=task.limits.pids,
            disk=task.limits.disk,
            workdir=task.workdir,
            user="root",  # whatever the image says: who runs the tests sees to their user
            ttl=seconds + TTL_MARGIN_S,
            labels=labels,
        )
    )
    try:
        sandbox = await asyncio.shield(making)
    except asyncio.CancelledError:
        await asyncio.wait({making})
        if not making.cancelled() and making.exception() is None:
            await _destroy(making.result())
        raise
    except SandboxError as error:
        # Nobody has acted in it yet, so it is not the fault of whoever would have.
        raise Unavailable(f"no sandbox: {error.message}") from error
    try:
        yield sandbox
    finally:
        await finish(_destroy(sandbox))


async def _destroy(sandbox: Sandbox) -> None:
    with contextlib.suppress(SkerryError):
        await sandbox.destroy()
