"""What a client sees of one command: the output kept so far, what comes, and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Self

import msgspec

from skerry.errors import Bug
from skerry.guest.api import Stream
from skerry.guest.operation import RunningOperation
from skerry.guest.output import Tee
from skerry.node.operation import Op
from skerry.node.results import Answer, unwrap, wrap
from skerry.spec.command import RunResult
from skerry.wire.http import ErrorBody, StreamEvent

PIECE_BYTES = 64 * 1024


class View:
    """A command under way or its answer. Leave it (`with`), or a slow view slows the command.

    Invariant: exactly one of `_op` and `_answer` is set at first; the answer follows at the end.
    """

    def __init__(self, op_id: str, seen: Op | Answer, *, watch: bool) -> None:
        self.op_id = op_id
        self._op = seen if isinstance(seen, Op) else None
        self._answer = None if isinstance(seen, Op) else seen
        self._tee: Tee | None = None
        self._kept: tuple[bytes, bytes, int] = (b"", b"", 0)
        self.closed = False
        if watch:
            self._look()

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
        stdout, stderr, cut = self._kept
        for piece in _pieces(stdout):
            yield StreamEvent(stdout=piece)
        for piece in _pieces(stderr):
            yield StreamEvent(stderr=piece)
        if cut:
            yield StreamEvent(log=f"{cut} bytes in the middle of the output before were not kept")
        if self._tee is not None:
            async for stream, data in self._tee:
                if stream is Stream.STDOUT:
                    yield StreamEvent(stdout=data)
                else:
                    yield StreamEvent(stderr=data)

    def _look(self) -> None:
        if self._op is not None:
            sink = self._op.sink
            self._tee = Tee()
            sink.tee_to(self._tee)
            total = sink.total(Stream.STDOUT) + sink.total(Stream.STDERR)
            if not total:
                return
            stdout, stderr = sink.output(Stream.STDOUT), sink.output(Stream.STDERR)
            self._kept = (stdout, stderr, total - len(stdout) - len(stderr))
        elif isinstance(self._answer, RunResult):
            seen = self._answer
            kept = len(seen.stdout) + len(seen.stderr)
            cut = seen.stdout_total + seen.stderr_total - kept
            self._kept = (seen.stdout, seen.stderr, cut)


def _pieces(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), PIECE_BYTES):
        yield data[start : start + PIECE_BYTES]
