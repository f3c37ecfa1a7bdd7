"""A handle on one command: any client gets it, at any time, while it runs or after its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec

from skerry.errors import InvalidRequest, SkerryError
from skerry.sdk.follow import follow
from skerry.sdk.stream import LiveCommand
from skerry.sdk.transport import Transport
from skerry.sdk.typed import typed
from skerry.spec.command import CommandSpec, RunResult, Terminal
from skerry.wire.http import OpStatus, SignalBody, StdinTaken, StreamEvent

ASK_AGAIN_S = 30.0  # one request of `wait` takes no longer
SEND_BYTES = 1 << 20  # of one request of `send`


class AsyncCommandHandle:
    """A command in a sandbox, under way or ended. Losing the handle does nothing to the command.

    `status` is what was last heard of it; `op_id` finds it again from any client.
    """

    def __init__(self, transport: Transport, root: str, status: OpStatus) -> None:
        self._transport = transport
        self._sandbox = root
        self._root = f"{root}/ops/{status.op_id}"
        self.op_id = status.op_id
        self.status = status
        self._offset: int | None = None  # of the input that is sent next; None: to be asked for
        self._turn: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    def __repr__(self) -> str:
        return f"<Command {self.op_id} {self.status.state}: {self.status.command}>"

    async def refresh(self) -> OpStatus:
        """Asks how it stands, and returns that; NotFound once it was forgotten."""
        return await self._ask(0.0)

    async def poll(self) -> RunResult | None:
        """Returns its result, or None while it runs; raises the error of one that was lost."""
        return _result(await self._ask(0.0))

    async def wait(self, timeout: float | None = None) -> RunResult:  # noqa: ASYNC109
        """Returns its result when it has ended; raises the error of one that was lost.

        Raises TimeoutError after `timeout` seconds; the command goes on.
        """
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        while True:
            left = ASK_AGAIN_S if until is None else min(ASK_AGAIN_S, until - loop.time())
            result = _result(await self._ask(max(0.0, left)))
            if result is not None:
                return result
            if until is not None and loop.time() >= until:
                raise TimeoutError(f"the command {self.op_id} still runs after {timeout:g} s")

    async def signal(self, number: int) -> None:
        """Sends a signal to every process of it; nothing if it has ended."""
        await self._transport.call("POST", f"{self._root}/signal", body=typed(SignalBody(number)))

    async def kill(self) -> None:
        """Ends every process of it, however they were started; its result then says cancelled."""
        await self._transport.call("POST", f"{self._root}/cancel", repeatable=True)

    async def send(self, data: bytes | str) -> None:
        """Sends to its standard input; returns when all has left, as fast as the command reads.

        Nothing is lost or doubled by lost connections. Raises Conflict when nobody reads any more.
        One handle is the only writer: another one would begin where this one has come to.
        """
        raw = data.encode() if isinstance(data, str) else data
        if not isinstance(raw, bytes | bytearray | memoryview):
            raise InvalidRequest("input is bytes or a text")
        async with self._lock():
            for at in range(0, len(raw), SEND_BYTES):
                await self._feed(raw[at : at + SEND_BYTES], eof=False)

    async def close_stdin(self) -> None:
        """Ends its standard input; harmless afterwards and twice."""
        async with self._lock():
            await self._feed(b"", eof=True)

    async def resize(self, rows: int, cols: int) -> None:
        """Sets the size of its terminal; Conflict if it has none."""
        await self._transport.call(
            "POST", f"{self._root}/resize", body=Terminal(rows, cols), repeatable=True
        )

    async def output(
        self, *, stdout: int = 0, stderr: int = 0, pace: bool = True
    ) -> AsyncIterator[StreamEvent]:
        """Yields its output from these offsets on: what was kept, then what comes, then its result.

        Each piece says `at` which offset of its stream it begins; a jump means that the middle of
        long output was not kept. A lost connection is repaired. With `pace`, nothing is skipped
        from here on and a slow reader slows the command; without, a slow reader skips.
        """
        events = follow(self._transport, self._root, stdout=stdout, stderr=stderr, pace=pace)
        async with contextlib.aclosing(events):
            async for event in events:
                yield event

    @contextlib.asynccontextmanager
    async def attach(
        self,
        *,
        terminal: Terminal | None = None,
        takeover: bool = False,
        watch: bool = False,
        who: str = "",
    ) -> AsyncIterator[LiveCommand]:
        """Joins it for a block, its input and output live; it goes on after the block.

        `terminal` is the size of ours, to which its terminal is set, and redrawn. A terminal has one
        writer: Conflict if another client (`holder` in the error's fields) has it, unless `takeover`
        takes it, or `watch` only looks; of who is taken over, the iteration raises it.
        """
        params = {"op": self.op_id, "takeover": str(int(takeover)), "watch": str(int(watch))}
        if who:
            params["who"] = who
        socket = await self._transport.socket(f"{self._sandbox}/attach", params)
        live = LiveCommand(socket)
        try:
            await socket.send_bytes(msgspec.msgpack.encode(CommandSpec(terminal=terminal)))
            await live.opened()
            yield live
        finally:
            await live.close()

    async def _ask(self, wait_s: float) -> OpStatus:
        self.status = await self._transport.call(
            "GET", self._root, OpStatus, repeatable=True, params={"wait": f"{wait_s:.3f}"}
        )
        return self.status

    async def _feed(self, data: bytes, *, eof: bool) -> None:
        if self._offset is None:
            self._offset = (await self.refresh()).stdin_total
        query = f"offset={self._offset}" + ("&eof=1" if eof else "")
        try:
            taken = await self._transport.call(
                "POST", f"{self._root}/stdin?{query}", StdinTaken, content=data, repeatable=True
            )
        except (SkerryError, asyncio.CancelledError):
            self._offset = None  # how much of it arrived is not known here
            raise
        self._offset = taken.offset

    def _lock(self) -> asyncio.Lock:
        """Returns the lock of the running loop: a client may be used on several in turn."""
        loop = asyncio.get_running_loop()
        if self._turn is None or self._turn[0] is not loop:
            self._turn = (loop, asyncio.Lock())
        return self._turn[1]


def _result(status: OpStatus) -> RunResult | None:
    if status.error is not None:
        raise status.error.to_error()
    return status.result
