"""What is done to sandboxes beside commands: on record before it acts, and before it is answered.

    async with trail.act(sandbox, "file.mkdir", {"path": "/srv"}, op=op) as act:
        if act.known is not None:
            return act.known            # a repeat: nothing is done
        act.result = {"entries": [...]}

What changes something has an intent (`Doing`) on record before the block runs. What comes of the block
(`act.result`, or the error that leaves it) is on record, as durable as the sandbox asks for, when the
block is left; an error of the record itself is raised in place of the result.

An operation id runs once: a repeat waits for the one that runs, and gets what is on record if it asks
for the same, else Conflict. One that was under way when the node was killed is OutcomeUnknown. One whose
end could not be recorded, for the disk was full, is StorageFailed; its end is recorded with its repeat,
or before the next change, and it is not done again. What is remembered of a sandbox is bounded by the
chapters of its journal: the oldest are forgotten first.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from skerry.errors import (
    Bug,
    Conflict,
    OutcomeUnknown,
    SkerryError,
    StorageFailed,
    Unavailable,
)
from skerry.node import ledger
from skerry.node.clock import Clock
from skerry.node.commands.operation import Past
from skerry.node.ledger import Ledger
from skerry.node.life.sandbox import Acting, Sandbox
from skerry.node.trail.intake import Intake
from skerry.node.trail.levels import Levels
from skerry.spec import ids
from skerry.spec.sandbox import State
from skerry.spec.trajectory import is_content
from skerry.trajectory.journal.journal import Position
from skerry.trajectory.shipping.contents import Contents
from skerry.wire.asked import NOTHING_CHANGED
from skerry.wire.http import ErrorBody

log = logging.getLogger("skerry.node")

ACTS_MAX: Final = 65_536  # operation ids of one sandbox that are remembered
CLOSED_MAX: Final = 4  # chapters that hold nothing but such ids

_encode = msgspec.msgpack.Encoder(order="sorted").encode


class Act:
    """One operation between its intent and its record."""

    def __init__(self, trail: Trail, action: str, request: dict[str, Any], op: bytes) -> None:
        self.action, self.request, self.op = action, request, op
        self.result: dict[str, Any] = {}
        self.usage: dict[str, Any] = {}
        self.known: dict[str, Any] | None = None  # what is on record of an earlier one
        self.whole = False  # if the client breaks it off, nothing was changed
        self.started = trail.now()
        self._trail = trail
        self._intakes: list[Intake] = []

    def intake(self) -> Intake:
        """Returns what takes a content of this operation; it is closed with the block."""
        self._intakes.append(Intake(self._trail.contents))
        return self._intakes[-1]

    async def keep(self, data: bytes) -> Any:
        """Returns a content that is in memory, as it stands in a record; StorageFailed."""
        intake = self.intake()
        await intake.add(data)
        return await intake.end()

    async def close(self) -> None:
        """Lets go of its contents."""
        for intake in self._intakes:
            await intake.close()


class Trail:
    """Writes `Doing` and `Did`."""

    # Which segment a record stands in is asked of `mark` after it was written.
    def __init__(
        self,
        records: Ledger,
        contents: Contents,
        levels: Levels,
        mark: Callable[[], int],
        clock: Clock,
    ) -> None:
        self.contents, self.levels = contents, levels
        self._ledger, self._mark, self._clock = records, mark, clock

    def now(self) -> float:
        """Returns the time."""
        return self._clock.wall()

    @asynccontextmanager
    async def act(
        self,
        sandbox: Sandbox,
        action: str,
        request: dict[str, Any],
        *,
        op: str | None = None,
        changes: bool = False,
    ) -> AsyncIterator[Act]:
        """One operation; the module says what holds. Raises InvalidRequest for an op that is none.

        Without `changes` an operation id only names it: it is done again each time.
        """
        await _made(sandbox)
        raw = bytes.fromhex(ids.check_op_id(op)) if op is not None else b""
        if changes and not raw:
            raw = secrets.token_bytes(16)
        act = Act(self, action, request, raw)
        if changes:
            self._catch_up(sandbox)
        if changes and op is not None:
            act.known = await self._known(sandbox, op, act)
        if act.known is not None:
            try:
                yield act
                _check_same(self._did(sandbox.acts[act.op.hex()]), act.request)
                await self.levels.reach(sandbox.spec)
            finally:
                await act.close()
            return
        running = self._begin(sandbox, act) if changes else None
        try:
            async with self._ending(sandbox, act):
                yield act
            if not self.levels.at_once(sandbox.spec):
                await self.levels.reach(sandbox.spec)
        finally:
            if running is not None:
                sandbox.acting.pop(act.op.hex(), None)
                running.set_result(None)
            await act.close()

    @asynccontextmanager
    async def _ending(self, sandbox: Sandbox, act: Act) -> AsyncIterator[None]:
        """Records what comes of the block."""
        try:
            yield
        except SkerryError as error:
            self._end(sandbox, act, error)
            raise
        except Exception:
            if act.whole:
                self._end(sandbox, act, Unavailable(NOTHING_CHANGED), remember=False)
            else:
                self._end(sandbox, act, OutcomeUnknown("it was broken off"))
            raise
        except BaseException:
            text = "the client left, or the node ended, before the end"
            self._end(sandbox, act, OutcomeUnknown(text))
            raise
        self._end(sandbox, act, None)

    def mention(self, *values: Any) -> None:
        """The record that was just written names the contents in these values."""
        number = self._mark()
        for value in values:
            self.contents.mention(number, value)

    def note(self, sandbox: Sandbox, did: ledger.Did, *, remember: bool = True) -> None:
        """Records something that was done; nothing of a sandbox that is gone. StorageFailed."""
        if sandbox.gone:
            return
        position = self._ledger.append(sandbox.id, did)
        self.mention(did.request, did.result)
        if did.op and remember:
            sandbox.acts[did.op.hex()] = position
            if len(sandbox.acts) > ACTS_MAX:
                del sandbox.acts[next(iter(sandbox.acts))]
        self._turned(sandbox, position.subject)

    async def posted(
        self, sandbox: Sandbox, dids: Sequence[ledger.Did], *, op: str | None = None
    ) -> int:
        """Records what others say was done, all of it or none; returns the seq of the last record.

        With an operation id they are recorded once; a repeat is compared by its last one. Raises
        InvalidRequest, Conflict, StorageFailed, and why the sandbox is gone.
        """
        await _made(sandbox)
        known = None if op is None else sandbox.acts.get(ids.check_op_id(op))
        if op is not None:
            dids = (*dids[:-1], msgspec.structs.replace(dids[-1], op=bytes.fromhex(op)))
            if known is not None and not _is_same(self._did(known), dids[-1]):
                raise Conflict(f"operation {op} is another one")
        position = known or self._ledger.append_all(sandbox.id, dids)
        if op is not None:
            sandbox.acts[op] = position
        self._turned(sandbox, position.subject)
        await self.levels.reach(sandbox.spec)
        return position.seq

    # --- inner parts ---

    async def _known(self, sandbox: Sandbox, op: str, act: Act) -> dict[str, Any] | None:
        """Returns the result that is on record; raises the error that is; None if it is to be done."""
        while (running := sandbox.acting.get(op)) is not None:
            await asyncio.shield(running.ended)
        if op in sandbox.ops:
            raise Conflict(f"operation {op} is a command")
        if (untold := sandbox.untold.get(op)) is not None:
            self._tell(sandbox, untold)
        position = sandbox.acts.get(op)
        if position is None:
            return None
        did = self._did(position)
        if did.action != act.action:
            raise Conflict(f"operation {op} is another one: {did.action}")
        if did.error is not None:
            _check_same(did, did.request | act.request)  # contents are not read again
            raise did.error.to_error()
        return did.result if did.result is not None else {}

    def _did(self, position: Position) -> ledger.Did:
        entry = self._ledger.read(position)
        if not isinstance(entry, ledger.Did):
            raise Bug(f"record {position} is not the end of an operation")
        return entry

    def _begin(self, sandbox: Sandbox, act: Act) -> asyncio.Future[None]:
        """Records the intent."""
        doing = ledger.Doing(act.op, act.action, act.request, act.started)
        chapter = self._ledger.append(sandbox.id, doing).subject
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sandbox.acting[act.op.hex()] = Acting(chapter, ended)
        return ended

    def _end(
        self, sandbox: Sandbox, act: Act, error: SkerryError | None, *, remember: bool = True
    ) -> None:
        """Records what came of it; StorageFailed unless it is an error that could not be recorded."""
        did = ledger.Did(
            act.action,
            act.request,
            act.op,
            result=act.result if error is None else None,
            error=None if error is None else ErrorBody.of(error),
            started=act.started,
            ended=self.now(),
            usage=act.usage,
        )
        try:
            self.note(sandbox, did, remember=remember)
        except StorageFailed:
            if remember and act.op.hex() in sandbox.acting:
                sandbox.untold[act.op.hex()] = _without_kept(did)
            if error is None:
                raise  # nobody may hear what is not recorded

    def untold(self, sandbox: Sandbox, did: ledger.Did) -> None:
        """Records an end now or, if it cannot be, before the sandbox's next change; no error."""
        sandbox.untold[did.op.hex()] = _without_kept(did)
        self._catch_up(sandbox)

    def _catch_up(self, sandbox: Sandbox) -> None:
        """Records what was done while the disk was full, as far as there is room now."""
        for did in list(sandbox.untold.values()):
            try:
                self._tell(sandbox, did)
            except StorageFailed as error:
                log.warning("%s: not on record how %s ended: %s", sandbox.id, did.action, error)
                return

    def _tell(self, sandbox: Sandbox, did: ledger.Did) -> None:
        self.note(sandbox, did)
        del sandbox.untold[did.op.hex()]

    def _turned(self, sandbox: Sandbox, chapter: str) -> None:
        """Lets go of the oldest chapters when another one was begun."""
        if chapter == sandbox.chapter:
            return
        sandbox.chapter = chapter
        pinned = {sandbox.id, *(acting.chapter for acting in sandbox.acting.values())}
        for op in sandbox.ops.values():
            pinned.add(op.asked)
            if isinstance(op, Past):
                pinned.add(op.position.subject)
        for closed in self._ledger.closed(sandbox.id)[:-CLOSED_MAX]:
            if closed in pinned:
                continue
            try:
                self._ledger.let_go(sandbox.id, closed)
            except StorageFailed as error:  # what was done is on record all the same
                log.warning("the journal keeps more of %s for now: %s", sandbox.id, error)
                return
            sandbox.forget_acts(closed)


async def _made(sandbox: Sandbox) -> None:
    """Waits until it is made: what is done to it comes after its beginning, on record too."""
    while sandbox.state is State.CREATING and not sandbox.gone:
        await sandbox.changed()
    if sandbox.gone:
        raise sandbox.ended()


def _without_kept(did: ledger.Did) -> ledger.Did:
    """Returns an end that names no content which is kept only until its request is over."""
    request, result = _dropped(did.request), _dropped(did.result)
    return msgspec.structs.replace(did, request=request, result=result)


def _dropped(value: Any) -> Any:
    if is_content(value) and "blob" in value:
        return {"bytes": value["bytes"], "sha256": value["blob"], "dropped": True}
    if isinstance(value, dict):
        return {name: _dropped(inner) for name, inner in value.items()}
    return [_dropped(inner) for inner in value] if isinstance(value, list) else value


def _is_same(known: ledger.Did, asked: ledger.Did) -> bool:
    def told(did: ledger.Did) -> bytes:
        return _digest((did.action, did.request, did.result, did.error))

    return told(known) == told(asked)


def as_recorded(value: Any) -> Any:
    """Returns a message as a record holds it: dicts, lists and scalars, bytes as they are."""
    return msgspec.to_builtins(value, builtin_types=(bytes,))


def _check_same(known: ledger.Did, request: Mapping[str, Any]) -> None:
    """Raises Conflict unless the same is asked for; contents count by digest, however they were kept."""
    if _digest(_by_digest(known.request)) != _digest(_by_digest(request)):
        raise Conflict(f"operation {known.op.hex()} asks for something else")


def _by_digest(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _one_by_digest(value) for name, value in values.items()}


def _one_by_digest(value: Any) -> Any:
    if isinstance(value, bytes):
        return [hashlib.sha256(value).hexdigest(), len(value)]
    if isinstance(value, dict):
        digest = value.get("blob") or value.get("sha256")
        return [digest, value.get("bytes")] if digest else _by_digest(value)
    return value


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(_encode(value), digest_size=16).digest()
