"""What a client sees of one command: the output kept so far, what comes, and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

import msgspec

from skerry.errors import Bug
from skerry.guest.api import Stream
from skerry.guest.operation import RunningOperation
from skerry.guest.output import Tee
from skerry.node.commands.operation import Op
from skerry.node.commands.results import Answer, unwrap, wrap
from skerry.spec.command import RunResult
from skerry.spec.limits import split_limit
from skerry.wire.http import ErrorBody, StreamEvent

PIECE_BYTES = 64 * 1024


class View:
    """A command under way or its answer. Leave it (`with`), or a slow view slows the command.

    It begins at the offsets `since` of stdout and stderr, or with the last `tail` bytes of each, and
    with `positions` says where each piece begins. Without `paced` it never slows the command.
    Invariant: exactly one of `_op` and `_answer` is set at first; the answer follows at the end.
    """

    def __init__(
        self,
        op_id: str,
        seen: Op | Answer,
        *,
        watch: bool,
        since: tuple[int, int] = (0, 0),
        tail: int | None = None,
        positions: bool = False,
        paced: bool = True,
    ) -> None:
        self.op_id = op_id
        self._op = seen if isinstance(seen, Op) else None
        self._answer = None if isinstance(seen, Op) else seen
        self._tee: Tee | None = None
        self._next = dict(zip(Stream, since, strict=True))  # what follows: below it all was given
        self._positions = positions
        self._kept: list[tuple[Stream, int, bytes]] = []
        self._cut = 0
        self._at: dict[Stream, int] = {}  # where the next piece of the tee begins
        self.closed = False
        if watch:
            self._look(tail, paced=paced)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Looks away; the command goes on. Idempotent."""
        self.closed = True
        if self._tee is not None and self._op is not None:
            self._op.sink.untee(self._tee)

    def cancel(self) -> None:
        """Ends the command, if it has not ended yet."""
        if self._op is not None:
            self._op.cancel()

    async def running(self) -> RunningOperation | None:
        """Returns what drives the command, or None if it has ended."""
        if self._op is None or self._op.done.done():
            return None
        return await self._op.begun()

    async def answer(self) -> Answer:
        """Returns the answer when there is one."""
        if self._answer is None:
            if self._op is None:
                raise Bug("a view of nothing")
            self._answer = wrap(await asyncio.shield(self._op.done))
        return self._answer

    async def result(self) -> RunResult:
        """Returns the result, or raises the error, when there is one."""
        return unwrap(await self.answer())

    async def last(self) -> StreamEvent:
        """Returns the event that ends a stream: the result without the output, or the error."""
        answer = await self.answer()
        if isinstance(answer, ErrorBody):
            return StreamEvent(error=answer)
        return StreamEvent(result=msgspec.structs.replace(answer, stdout=b"", stderr=b""))

    async def __aiter__(self) -> AsyncIterator[StreamEvent]:
        """Gives what was kept, then output as it comes, until the command has ended."""
        kept, self._kept = self._kept, []
        for stream, at, data in kept:
            for start in range(0, len(data), PIECE_BYTES):
                yield self._event(stream, at + start, data[start : start + PIECE_BYTES])
        if self._cut:
            cut = f"{self._cut} bytes in the middle of the output before were not kept"
            yield StreamEvent(log=cut)
        if self._tee is None:
            return
        at_of = self._at
        async for stream, data in self._tee:
            at = at_of[stream]
            at_of[stream] += len(data)
            # A node that was restarted may get again what its predecessor had passed on.
            fresh = data[max(0, self._next[stream] - at) :]
            if fresh:
                yield self._event(stream, at + len(data) - len(fresh), fresh)

    def _event(self, stream: Stream, at: int, data: bytes) -> StreamEvent:
        where = at if self._positions else None
        if stream is Stream.STDOUT:
            return StreamEvent(stdout=data, at=where)
        return StreamEvent(stderr=data, at=where)

    def _look(self, tail: int | None, *, paced: bool) -> None:
        """Takes what was kept so far, and from here on what comes."""
        if self._op is not None:
            sink = self._op.sink
            self._tee = Tee(paced=paced)
            sink.tee_to(self._tee)
            self._at = {stream: sink.total(stream) for stream in Stream}
            for stream in Stream:
                if self._at[stream]:
                    self._keep(stream, sink.output(stream), self._at[stream], tail)
        elif isinstance(self._answer, RunResult):
            seen = self._answer
            self._keep(Stream.STDOUT, seen.stdout, seen.stdout_total, tail)
            self._keep(Stream.STDERR, seen.stderr, seen.stderr_total, tail)

    def _keep(self, stream: Stream, content: bytes, total: int, tail: int | None) -> None:
        since = self._next[stream] if tail is None else max(0, total - tail)
        for at, piece in kept_pieces(content, total):
            fresh = piece[max(0, since - at) :]
            if fresh:
                self._kept.append((stream, at + len(piece) - len(fresh), fresh))
        if tail is None and not self._positions:
            self._cut += total - len(content)


def kept_pieces(content: bytes, total: int) -> list[tuple[int, bytes]]:
    """Returns what was kept of a stream as (offset, bytes): all of it, or its head and its tail."""
    if len(content) == total:
        return [(0, content)]
    head, tail = split_limit(len(content))
    return [(0, content[:head]), (total - tail, content[head:])]
