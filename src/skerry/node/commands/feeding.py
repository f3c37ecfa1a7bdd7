"""Standard input that clients send to a command under way, over lost connections inside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from skerry.errors import Conflict, SkerryError
from skerry.guest.operation import RunningOperation
from skerry.node.commands.operation import Op
from skerry.wire.http import StdinTaken

ON_ITS_WAY_S = 1.0  # a body that is being sent when the command ends is read to its end for so long


class Feed:
    """One writer's turn at a command's standard input (`async with`); others wait for its end."""

    def __init__(self, op: Op) -> None:
        self._op = op

    async def __aenter__(self) -> Feed:
        await self._op.input_lock.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._op.input_lock.release()

    async def write(self, offset: int, data: bytes) -> None:
        """Passes bytes on that begin at the offset; those that were taken before are skipped.

        Returns when the last has left, as fast as the command reads. Raises Conflict for a gap,
        and when nobody reads any more.
        """
        while True:
            running = await self._now()
            if running is None:
                if not data:
                    return
                raise Conflict("the command has ended: it reads no more input")
            taken = running.stdin_sent
            if offset > taken:
                raise Conflict(
                    f"input at {offset}, but only {taken} bytes came before it", expected=taken
                )
            if offset + len(data) <= taken:
                return
            if not running.reads:
                raise Conflict("the command no longer reads its standard input", expected=taken)
            try:
                await running.write_stdin(data[taken - offset :])
            except SkerryError:
                if not running.lost:
                    raise
                continue  # over the next connection, from where this one came to
            if not running.ended and not running.reads:
                raise Conflict("the command has closed its standard input")

    async def end(self) -> None:
        """Ends standard input; harmless afterwards and twice."""
        while (running := await self._now()) is not None:
            try:
                await running.close_stdin()
            except SkerryError:
                if not running.lost:
                    raise
                continue
            return

    async def taken(self) -> StdinTaken:
        """Returns how far it has come."""
        running = await self._now()
        if running is None:
            return StdinTaken(0, open=False)
        return StdinTaken(running.stdin_sent, open=running.reads)

    async def _now(self) -> RunningOperation | None:
        """Returns what drives the command, on a connection that is not lost."""
        op = self._op
        if not op.spec.interactive:
            raise Conflict("the command was not started as interactive: its input is complete")
        running = await op.begun()
        while running is not None and running.lost and not op.done.done():
            running = await op.begun(after=running)
        return None if op.done.done() else running


async def feed(
    op: Op,
    offset: int,
    chunks: AsyncIterator[bytes],
    *,
    eof: bool,
    awake: Callable[[], Awaitable[None]],
) -> StdinTaken:
    """Passes a body on as it comes, in constant memory, and then ends the input if `eof`.

    It takes a turn for each piece that is there: a client that stands still holds up nobody, least
    of all its own next try. Nor is it waited for once the command has ended. `awake` is asked to see
    that its sandbox runs before something is passed on.
    """
    while (chunk := await _next_while_runs(op, chunks)) is not None:
        await awake()
        async with Feed(op) as turn:
            await turn.write(offset, chunk)
            offset += len(chunk)
    if eof:
        await awake()
    async with Feed(op) as turn:
        if eof:
            await turn.write(offset, b"")  # nothing was left out
            await turn.end()
        return await turn.taken()


async def _next_while_runs(op: Op, chunks: AsyncIterator[bytes]) -> bytes | None:
    """Returns the next piece, None at the end; Conflict if the command ends before it comes."""
    piece = asyncio.ensure_future(anext(chunks, None))
    try:
        either: set[asyncio.Future[Any]] = {piece, op.done}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not piece.done():
            await asyncio.wait({piece}, timeout=ON_ITS_WAY_S)
        if not piece.done():
            raise Conflict("the command has ended: it reads no more input")
        return piece.result()
    finally:
        piece.cancel()
