"""Sandboxes that cannot be left behind: made and destroyed even when the job is cancelled meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, TypeVar

from skerry.errors import DiskFull, SandboxError, SkerryError, Unavailable
from skerry.spec.task import TaskSpec
from skerry.worker.memory import Standstill
from skerry.worker.ports import Client, Sandbox

T = TypeVar("T")
TTL_MARGIN_S = 120.0


def is_lost(error: SkerryError) -> bool:
    """Returns whether the host lost the sandbox: then nobody inside is to blame for the error."""
    return "lost" in error.fields


def is_host_full(error: SkerryError) -> bool:
    """Returns whether the host's disk is full, not a quota: then nobody inside is to blame."""
    return isinstance(error, DiskFull) and error.fields.get("errno") == errno.ENOSPC


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
    **options: Any,
) -> AsyncIterator[Sandbox]:
    """A sandbox for a block, without network unless it is given; nothing of it is left afterwards.

    An error while it is destroyed is not raised: its time to live, and the end of the owner's
    connection, remove it anyway, and the block's result stands.
    """
    ttl = seconds + TTL_MARGIN_S
    wanted = options_of(task, image=image, layers=layers, labels=labels) | {"ttl": ttl} | options
    async with passing_sandbox(client, wanted) as sandbox:
        yield sandbox


async def _made(client: Client, wanted: dict[str, Any]) -> Sandbox:
    """Returns a new sandbox; one who stops waiting leaves none behind."""
    making = asyncio.ensure_future(client.sandboxes.create("container", **wanted))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        await asyncio.wait({making})
        if not making.cancelled() and making.exception() is None:
            await destroy(making.result())
        raise
    except SandboxError as error:
        raise nobody_acted(error) from error


@contextlib.asynccontextmanager
async def lasting_sandbox(
    client: Client, known: str | None, wanted: dict[str, Any]
) -> AsyncIterator[Sandbox]:
    """The sandbox of that id, or else the one that the key in `wanted` names, made if there is none.

    Destroyed at the end of the block, unless that is a Standstill or a cancellation: then it stays,
    to be found again. Raises NotFound if the known one is gone, Unavailable for what the image does.
    """
    try:
        if known is not None:
            sandbox = await client.sandboxes.get(known)
        else:
            sandbox = await client.sandboxes.create("container", **wanted)
    except SandboxError as error:
        raise nobody_acted(error) from error
    try:
        yield sandbox
    except (Standstill, asyncio.CancelledError):
        raise
    except BaseException:
        await finish(destroy(sandbox))
        raise
    else:
        await finish(destroy(sandbox))


@contextlib.asynccontextmanager
async def passing_sandbox(client: Client, wanted: dict[str, Any]) -> AsyncIterator[Sandbox]:
    """A new sandbox for a block; nothing of it is left after the block, however that ends."""
    sandbox = await _made(client, wanted)
    try:
        yield sandbox
    finally:
        await finish(destroy(sandbox))


def options_of(
    task: TaskSpec, *, image: str, layers: tuple[str, ...], labels: dict[str, str]
) -> dict[str, Any]:
    """Returns what a sandbox of a task is made with."""
    return {
        "image": image,
        "layers": layers,
        "cpu": task.limits.cpu,
        "memory": task.limits.memory,
        "pids": task.limits.pids,
        "disk": task.limits.disk,
        "workdir": task.workdir,
        "user": "root",  # whatever the image says: who runs the tests sees to their user
        "labels": labels,
    }


def nobody_acted(error: SandboxError) -> Unavailable:
    """Returns the error as one of the platform: nobody has acted yet who could be to blame."""
    return Unavailable(f"no sandbox: {error.message}")


async def destroy_key(client: Client, key: str) -> None:
    """Destroys what a key names, if there is anything; raises what the node says."""
    for info in await client.sandboxes.list(key=key):
        await (await client.sandboxes.get(info.id)).destroy()


async def destroy_labelled(client: Client, labels: dict[str, str]) -> None:
    """Destroys what has these labels; raises what the node says."""
    for info in await client.sandboxes.list(labels=labels):
        await (await client.sandboxes.get(info.id)).destroy()


async def destroy(sandbox: Sandbox) -> None:
    """Destroys it as well as that can be done."""
    with contextlib.suppress(SkerryError):
        await sandbox.destroy()
