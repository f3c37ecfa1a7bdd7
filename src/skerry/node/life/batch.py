"""Many sandboxes in one request: all or none, or as many as work, each with its outcome."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from skerry.errors import InvalidRequest, Overloaded, SkerryError, Unavailable
from skerry.node.admission.holders import Holder
from skerry.node.admission.shortage import Claim
from skerry.node.life.creation import Origin
from skerry.node.life.lives import Lives
from skerry.node.life.sandbox import Sandbox
from skerry.node.parts import Parts
from skerry.spec import ids
from skerry.spec.limits import BATCH_MAX, CREATE_WAIT_MAX_S
from skerry.spec.sandbox import SandboxSpec
from skerry.wire.batch import BatchCreate, BatchEnd, BatchItem, BatchResult
from skerry.wire.http import ErrorBody

DELETES_AT_ONCE = 64
BREATHE_EVERY = 256  # claims counted between two turns of the event loop

Tell = Callable[[int, BatchItem], Awaitable[None]]


class Batch:
    """One batch under way.

    `leave` stops it: members that wait leave the queue, no further one is begun. What was made is
    undone if all or nothing was asked for, or if there is no key by which it could be found.
    """

    def __init__(
        self,
        body: BatchCreate,
        holder: Holder,
        *,
        owner: str | None,
        tenant: str,
        deadline: float,
        number: int,
        asked: float,
    ) -> None:
        self.body = body
        self.owner = owner
        self.tenant = tenant
        self.holder = holder
        self.asked = asked  # wall clock
        self.expected = 0  # members that have not asked for room yet
        self.deadline = deadline  # for waiting
        self.number = number
        self.origin: Origin | None = None  # of a fork: what its members begin with
        self.stopped = asyncio.Event()
        self.finished = asyncio.Event()
        self.stop: SkerryError | None = None  # why no further member is begun
        self.made: dict[int, Sandbox] = {}
        self.failed = 0
        self._told: dict[str, ErrorBody] = {}

    @property
    def keyed(self) -> bool:
        """Whether a repeat would find its members."""
        return self.body.spec.key is not None

    def leave(self) -> None:
        """Its client has gone."""
        self.end(Unavailable("the client that asked for the batch has gone", retry_after_s=0.1))

    def end(self, error: SkerryError) -> None:
        """Stops it; the first reason counts."""
        if self.stop is None:
            self.stop = error
            self.stopped.set()

    def check(self) -> None:
        """Raises why it was stopped, if it was."""
        if self.stop is not None:
            raise self.stop

    async def until_stopped(self) -> None:
        """Returns once it was stopped."""
        await self.stopped.wait()

    def spec(self, index: int) -> SandboxSpec:
        """Returns what one member is made from."""
        spec = self.body.spec
        if spec.key is None:
            return spec
        return msgspec.structs.replace(spec, key=f"{spec.key}/{index}")

    def told(self, error: SkerryError) -> ErrorBody:
        """Returns an error's body; thousands that were refused by one limit share one."""
        if not isinstance(error, Overloaded):
            return ErrorBody.of(error)
        return self._told.setdefault(str(error.fields.get("limit")), ErrorBody.of(error))


class Batches:
    """Creates and deletes in bulk.

    A batch waits in the node's fair queues with at most as many hands as there are places for
    creates, so the largest one takes turns like everybody.

    Invariant: at most `batches_max` are under way, and at most one of those that want all or
    nothing waits for room: two could hold what the other needs.
    """

    def __init__(self, parts: Parts, lives: Lives) -> None:
        self._lives = lives
        self._clock = parts.clock
        self._sandboxes = parts.sandboxes
        self._admission = parts.admission
        self._jobs = parts.jobs
        self._running: set[Batch] = set()
        self._gathering = False
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._running)

    @property
    def running(self) -> tuple[Batch, ...]:
        """Those under way."""
        return tuple(self._running)

    def open(self, body: BatchCreate, *, owner: str | None, tenant: str = "") -> Batch:
        """Returns a batch to be run.

        Raises InvalidRequest, Overloaded (too many are under way), NotFound and Conflict (no such
        job, or it has ended).
        """
        if not 1 <= body.count <= BATCH_MAX:
            raise InvalidRequest(f"count must be between 1 and {BATCH_MAX}, not {body.count}")
        if not 0 <= body.wait_s <= CREATE_WAIT_MAX_S:
            raise InvalidRequest(f"wait_s must be between 0 and {CREATE_WAIT_MAX_S:g}")
        self._admission.check_batches(len(self._running))
        deadline = self._clock.monotonic() + body.wait_s
        holder = self._jobs.holder(body.spec, tenant=tenant, owner=owner)
        asked = self._clock.wall()
        number = next(self._numbers)
        batch = Batch(
            body, holder, owner=owner, tenant=tenant, deadline=deadline, number=number, asked=asked
        )
        self._running.add(batch)
        return batch

    async def create(
        self, body: BatchCreate, *, owner: str | None, tenant: str = ""
    ) -> BatchResult:
        """Returns every member's outcome in order."""
        return await self.collect(self.open(body, owner=owner, tenant=tenant))

    async def collect(self, batch: Batch) -> BatchResult:
        """Runs it and returns every member's outcome in order.

        If all or nothing was asked for and something failed, all carry that failure. Raises
        Overloaded if not even one (or not all, if all are wanted) can fit.
        """
        items: list[BatchItem] = [BatchItem()] * batch.body.count

        async def keep(index: int, item: BatchItem) -> None:
            items[index] = item

        try:
            await self.run(batch, keep)
        except SkerryError as error:
            if batch.stop is not error or not batch.failed:
                raise
            items = [BatchItem(error=ErrorBody.of(error))] * batch.body.count
        return BatchResult(tuple(items))

    async def run(self, batch: Batch, tell: Tell) -> BatchEnd:
        """Makes the members, telling of each outcome as it comes; a slow `tell` slows the batch.

        Raises what undid it. Nothing of it is under way afterwards.
        """
        try:
            await self._after_the_same(batch)
            self._expect(batch, batch.body.count)
            async with self._reserved(batch) as reserved:
                await self._make(batch, reserved, tell)
            batch.check()
            return BatchEnd(len(batch.made), batch.failed)
        except asyncio.CancelledError:
            raise  # the node is ending: what was made is found by its key, or goes with its owner
        except BaseException:
            whole = batch.body.all_or_nothing or not batch.keyed or batch.stop is None
            if whole and not any(other.stop is None for other in self._same(batch)):
                await self._undo(list(batch.made.values()))
            raise
        finally:
            self.close(batch)

    def close(self, batch: Batch) -> None:
        """Nothing of it is under way any more; idempotent."""
        self._running.discard(batch)
        self._expect(batch, 0)
        batch.finished.set()

    def _expect(self, batch: Batch, count: int) -> None:
        """So many of it have not asked for room yet."""
        expected = self._admission.expected
        expected[batch.holder] += count - batch.expected
        batch.expected = count
        if not expected[batch.holder]:
            del expected[batch.holder]

    async def after_earlier(self, batch: Batch) -> None:
        """Waits for all earlier requests for the same batch, given up or not."""
        for other in self._same(batch):
            if other.number < batch.number:
                await other.finished.wait()

    async def _after_the_same(self, batch: Batch) -> None:
        """Waits for an earlier try of the same batch that is being given up."""
        for other in self._same(batch):
            if other.stop is not None:
                await other.finished.wait()

    def _same(self, batch: Batch) -> list[Batch]:
        """Returns other requests for the same batch: what they made is this one's too."""
        key = batch.body.spec.key
        if key is None:
            return []
        same = [other for other in self._running if other.body.spec.key == key]
        return [other for other in same if other is not batch]

    async def _make(self, batch: Batch, reserved: list[str] | None, tell: Tell) -> None:
        if reserved is None and batch.body.wait_s <= 0 and not self._found(batch):
            self._admission.check(self._claim(batch, ""))

        async def one(index: int) -> None:
            if reserved is None:
                self._expect(batch, batch.body.count - index - 1)
            if batch.stop is not None:
                return
            try:
                sandbox = await self._lives.create(
                    batch.spec(index),
                    owner=batch.owner,
                    tenant=batch.tenant,
                    wait_s=max(0.0, batch.deadline - self._clock.monotonic()),
                    gone=batch.until_stopped,
                    bounded=False,
                    reserved=reserved,
                    origin=batch.origin,
                )
            except SkerryError as error:
                batch.failed += 1
                if batch.body.all_or_nothing:
                    batch.end(error)
                elif self._admission.closing:  # no answer of ours: the next start makes the rest
                    batch.end(error)
                    return
                await tell(index, BatchItem(error=batch.told(error)))
            else:
                batch.made[index] = sandbox
                await tell(index, BatchItem(info=sandbox.info()))

        hands = self._admission.limits.creates_in_flight_max
        await _spread(one, range(batch.body.count), hands)

    # -- all or nothing ---------------------------------------------------------------------------

    @asynccontextmanager
    async def _reserved(self, batch: Batch) -> AsyncIterator[list[str] | None]:
        """Holds room for all members, if all or nothing is wanted; what is left over is let go."""
        if not batch.body.all_or_nothing:
            yield None
            return
        names: list[str] = []
        try:
            await self._gather(batch, names)
            yield names
        finally:
            for name in names:
                self._admission.release(name, lived=False)

    async def _gather(self, batch: Batch, names: list[str]) -> None:
        """Collects claims in turns with everybody else, up to the batch's deadline."""
        body, number, waiting = batch.body, batch.number, False
        self._admission.check_possible(body.count, batch.holder)
        try:
            for index in range(body.count - self._found(batch)):
                self._expect(batch, body.count - index - 1)
                claim = self._claim(batch, f"batch {number}/{index}")
                wait_s = max(0.0, batch.deadline - self._clock.monotonic())
                wait = self._admission.ask(
                    claim,
                    wait_s=0.0 if self._gathering and not waiting else wait_s,
                    priority=body.spec.priority,
                )
                if wait is not None:
                    waiting = self._gathering = True
                    await self._admission.until_admitted(wait, batch.until_stopped)
                elif index % BREATHE_EVERY == BREATHE_EVERY - 1:
                    await asyncio.sleep(0)
                names.append(claim.sandbox)
        except Overloaded as error:
            fields = error.fields | {"wanted": body.count}
            raise Overloaded(
                f"{error.message}; all {body.count} of the batch, or none, were wanted", **fields
            ) from None
        finally:
            if waiting:
                self._gathering = False

    def _found(self, batch: Batch) -> int:
        """Returns how many members an earlier try has made: they have their room."""
        return len(self.members(batch))

    def members(self, batch: Batch) -> list[Sandbox]:
        """Returns the members that there are."""
        if not batch.keyed:
            return []
        by_key = self._sandboxes.by_key
        keys = (batch.spec(index).key for index in range(batch.body.count))
        return [by_key[key] for key in keys if key in by_key]

    def _claim(self, batch: Batch, name: str) -> Claim:
        spec = batch.body.spec
        return Claim(name, batch.holder, spec.memory_bytes, spec.pids)

    # -- the end ----------------------------------------------------------------------------------

    async def undo(self, key: str, keep: Sequence[str]) -> BatchResult:
        """Ends the batch of that key and destroys its members but for those to keep."""
        running = [batch for batch in self._running if batch.body.spec.key == key]
        for batch in running:
            batch.end(Unavailable("the batch was undone", retry_after_s=0.1))
        for batch in running:
            await batch.finished.wait()
        kept = frozenset(keep)
        prefix = f"{key}/"
        found = [
            sandbox.id
            for name, sandbox in self._sandboxes.by_key.items()
            if name.startswith(prefix)
            and name.removeprefix(prefix).isdecimal()
            and sandbox.id not in kept
        ]
        return await self.delete(found)

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
