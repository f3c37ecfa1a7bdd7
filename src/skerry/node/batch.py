"""Many sandboxes in one request: all or none, or as many as work, each with its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence

import msgspec

from skerry.errors import Bug, InvalidRequest, SkerryError
from skerry.node.admission import Admission
from skerry.node.lives import Lives
from skerry.node.sandbox import Sandbox
from skerry.node.sandboxes import Sandboxes
from skerry.spec import ids
from skerry.spec.limits import BATCH_MAX
from skerry.spec.sandbox import SandboxSpec
from skerry.wire.http import BatchCreate, BatchItem, BatchResult, ErrorBody

DELETES_AT_ONCE = 64


class Batches:
    """Creates and deletes in bulk, with as many hands as the node has places for creates."""

    def __init__(self, lives: Lives, sandboxes: Sandboxes, admission: Admission) -> None:
        self._lives = lives
        self._sandboxes = sandboxes
        self._admission = admission

    async def create(self, body: BatchCreate, *, owner: str | None) -> BatchResult:
        """Returns every member's outcome in order.

        With `all_or_nothing` the first failure stops the rest, what was made is destroyed, and
        the members that were not tried or were undone carry that failure. Raises InvalidRequest,
        and Overloaded if not even the first (or not all, if all are wanted) can fit.
        """
        if not 1 <= body.count <= BATCH_MAX:
            raise InvalidRequest(f"count must be between 1 and {BATCH_MAX}, not {body.count}")
        self._admission.check(body.count if body.all_or_nothing else 1)
        specs = [_member(body.spec, index) for index in range(body.count)]
        outcomes: list[Sandbox | SkerryError | None] = [None] * body.count
        failed: SkerryError | None = None

        async def one(index: int) -> None:
            nonlocal failed
            if failed is not None and body.all_or_nothing:
                return
            try:
                outcomes[index] = await self._lives.create(specs[index], owner=owner, queued=False)
            except SkerryError as error:
                outcomes[index] = error
                if failed is None:
                    failed = error

        await _spread(one, range(body.count), self._admission.limits.creates_in_flight_max)
        if failed is not None and body.all_or_nothing:
            await self._undo([one for one in outcomes if isinstance(one, Sandbox)])
            outcomes = [one if isinstance(one, SkerryError) else failed for one in outcomes]
        return BatchResult(tuple(_item(one) for one in outcomes))

    async def delete(self, wanted: Sequence[str]) -> BatchResult:
        """Destroys all of them; those that are unknown count as destroyed."""
        if len(wanted) > BATCH_MAX:
            raise InvalidRequest(f"ids: at most {BATCH_MAX}")
        for sandbox_id in wanted:
            ids.check_sandbox_id(sandbox_id)
        items = [BatchItem()] * len(wanted)

        async def one(index: int) -> None:
            sandbox = self._sandboxes.find(wanted[index])
            if sandbox is None:
                return
            try:
                await self._lives.delete(sandbox)
            except SkerryError as error:
                items[index] = BatchItem(error=ErrorBody.of(error))
            else:
                items[index] = BatchItem(info=sandbox.info())

        await _spread(one, range(len(wanted)), DELETES_AT_ONCE)
        return BatchResult(tuple(items))

    async def _undo(self, made: list[Sandbox]) -> None:
        async def one(index: int) -> None:
            await self._lives.delete_quietly(made[index])

        await _spread(one, range(len(made)), DELETES_AT_ONCE)


async def _spread(one: Callable[[int], Awaitable[None]], work: range, hands: int) -> None:
    """Does every piece of work, `hands` at a time; the pieces raise nothing that is expected."""
    left: Iterator[int] = iter(work)

    async def hand() -> None:
        for index in left:
            await one(index)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(hands, len(work))):
            group.create_task(hand())


def _member(spec: SandboxSpec, index: int) -> SandboxSpec:
    if spec.key is None:
        return spec
    return msgspec.structs.replace(spec, key=f"{spec.key}/{index}")


def _item(outcome: Sandbox | SkerryError | None) -> BatchItem:
    if isinstance(outcome, Sandbox):
        return BatchItem(info=outcome.info())
    if isinstance(outcome, SkerryError):
        return BatchItem(error=ErrorBody.of(outcome))
    raise Bug("a member of a batch has no outcome")
