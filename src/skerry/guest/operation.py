"""An operation under way: its output with credit, its input, its end.

Everything that the agent says of it is checked against what was said before; what does not fit
raises ProtocolError, which ends the channel.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

from skerry.errors import Bug, Conflict, InvalidRequest, SkerryError
from skerry.guest.api import Outcome, OutputSink, Stream
from skerry.guest.channel import Channel, same_error
from skerry.guest.inlet import Inlet
from skerry.guest.outcomes import outcome_of_done, refusal_of
from skerry.guest.outlet import GRANT_STEP, Outlet
from skerry.guest.result import ResultFlow
from skerry.wire import guest, streams
from skerry.wire.frames import ProtocolError, data_offset

_ESRCH, _EBUSY = 3, 16


class RunningOperation:
    """Made by the client only; in its table until DONE, an error, or a lost channel."""

    __slots__ = (
        "_attached",
        "_callback",
        "_channel",
        "_error",
        "_generation",
        "_granting",
        "_on_end",
        "_outcome",
        "_outlets",
        "_over",
        "_pid",
        "_result",
        "_sink",
        "_spawn",
        "_started",
        "_waiters",
        "handle",
        "inlet",
    )

    def __init__(
        self,
        channel: Channel,
        generation: int,
        handle: int,
        sink: OutputSink,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        on_end: Callable[[int], None],
        offsets: tuple[int, int] = (0, 0),
        inlet: Inlet | None = None,
        result: OutputSink | None = None,
        attached: bool = False,
    ) -> None:
        self.handle = handle
        self.inlet = inlet  # None: standard input was closed from the start
        self._channel = channel
        self._generation = generation
        self._sink: OutputSink | None = sink
        self._spawn = spawn
        self._on_end = on_end
        self._attached = attached
        self._outlets: tuple[Outlet, Outlet] = (Outlet(offsets[0]), Outlet(offsets[1]))
        self._result: ResultFlow | None = None
        if result is not None:
            send = functools.partial(self._send, channel=streams.RESULT)
            self._result = ResultFlow(result, send, self._fail, spawn)
        self._granting = False
        self._over = False  # the agent will say no more of it
        self._pid: int | None = None
        self._outcome: Outcome | None = None
        self._error: SkerryError | None = None
        self._started: asyncio.Future[int] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._callback: Callable[[], None] | None = None

    # --- what callers use -------------------------------------------------------------------------

    @property
    def started(self) -> asyncio.Future[int]:
        """Its process id inside, once exec was reached; cancelled if it never was."""
        if self._started is None:
            self._started = asyncio.get_running_loop().create_future()
            self._settle_started()
        return self._started

    @property
    def ended(self) -> bool:
        """Whether `wait` would return or raise at once."""
        return self._outcome is not None or self._error is not None

    @property
    def stdin_sent(self) -> int:
        """How many bytes of standard input were taken; they survive a lost channel by `attach`."""
        return self.inlet.sent if self.inlet is not None else 0

    @property
    def lost(self) -> bool:
        """Whether the channel was lost before its end: it goes on inside, and may be attached to."""
        return self._outcome is None and self._channel.lost.done()

    @property
    def reads(self) -> bool:
        """Whether what is written to its standard input now may still be read."""
        return not self.ended and self.inlet is not None and self.inlet.open

    async def wait(self) -> Outcome:
        """Returns when the agent said DONE and all output was given to the sink.

        Raises Unavailable if the channel is lost first (the operation goes on inside), Conflict,
        Overloaded, NotFound or Unavailable if the agent refused it, and what the sink raised.
        """
        while not self.ended:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        if self._outcome is not None:
            return self._outcome
        raise same_error(self._error or Bug("an operation ended without a reason"))

    async def write_stdin(self, data: bytes) -> None:
        """Sends bytes, within the agent's credit; thrown away once nobody reads them."""
        if not self.ended:
            await self._stdin().write(data)

    async def close_stdin(self) -> None:
        """Ends standard input."""
        if not self.ended:
            await self._stdin().end()

    def on_ended(self, callback: Callable[[], None]) -> None:
        """Calls back, with no arguments, as soon as `wait` would not wait; at most one is kept."""
        if self.ended:
            callback()
        else:
            self._callback = callback

    def signal(self, number: int) -> None:
        """Sends a signal to every process of the operation; nothing if it has ended."""
        if not 1 <= number <= 64:
            raise InvalidRequest(f"{number} is no signal")
        self._tell(guest.Signal(number))

    def cancel(self) -> None:
        """Ends every process of the operation; `wait` then returns with `cancelled`."""
        self._tell(guest.Cancel())

    def resize(self, rows: int, cols: int) -> None:
        """Sets the size of its terminal."""
        if not (0 <= rows <= guest.PTY_MAX and 0 <= cols <= guest.PTY_MAX):
            raise InvalidRequest(f"a terminal of {rows} rows and {cols} columns")
        self._tell(guest.Resize(rows, cols))

    def acknowledge(self) -> None:
        """Tells the agent, soon, that the result is recorded, so that it forgets it.

        Does nothing without a result, or when the channel is lost: the agent then names the
        operation again in the next WELCOME.
        """
        if self._outcome is not None:
            self._send_late(guest.Ack())

    def fail(self, error: SkerryError) -> None:
        """Cancels it and throws away what is left of it: `wait` raises the error."""
        self._fail(error)

    def abandon(self) -> None:
        """Cancels it and throws away what is left of it; the agent forgets it at its end."""
        self._fail(Conflict("the operation was abandoned"))

    # --- what the client tells ---------------------------------------------------------------------

    def take(self, message: guest.Message, channel: int) -> None:
        """Takes what the agent says of it, output excepted; raises ProtocolError."""
        if isinstance(message, guest.Started):
            self.take_started(message.pid)
        elif isinstance(message, guest.Done):
            self.take_done(message)
        elif isinstance(message, guest.Credit):
            self.take_credit(message.offset)
        elif isinstance(message, guest.Error):
            self.take_error(channel, message)
        elif isinstance(message, guest.Data | guest.Eof):
            self.take_flow(message, channel)

    def take_flow(self, message: guest.Data | guest.Eof, channel: int) -> None:
        """The end of output, or anything of a result; raises ProtocolError."""
        if channel == streams.RESULT:
            if self._result is None:
                raise ProtocolError("a result that was not asked for")
            self._result.take(message)
        elif isinstance(message, guest.Eof):
            self.take_eof(channel, message.total)

    def take_data(self, channel: int, payload: bytes) -> None:
        """Output came; raises ProtocolError."""
        offset = data_offset(payload)
        outlet = self._outlets[channel - streams.STDOUT]
        end = outlet.take(offset, len(payload) - 8)
        sink = self._sink
        if sink is None:
            self._grant_all()
            return
        try:
            sink.write(Stream(channel), offset, payload[8:])
        except SkerryError as error:
            self._fail(error)
            return
        if end - outlet.granted >= GRANT_STEP and not self._granting:
            self._granting = True
            self._spawn(self._grant())

    def take_eof(self, channel: int, total: int) -> None:
        """A stream ended; raises ProtocolError."""
        self._outlets[channel - streams.STDOUT].end(total)

    def take_started(self, pid: int) -> None:
        """exec was reached; raises ProtocolError."""
        if self._pid is not None or pid < 1:
            raise ProtocolError(f"STARTED twice, or with pid {pid}")
        self._pid = pid
        self._settle_started()

    def take_done(self, done: guest.Done) -> None:
        """It has ended; raises ProtocolError."""
        out, err = self._outlets
        if (done.stdout_total, done.stderr_total) != (out.received, err.received):
            raise ProtocolError(
                f"DONE with {done.stdout_total} and {done.stderr_total} bytes of output"
                f" after {out.received} and {err.received}"
            )
        result = 0 if self._result is None else self._result.received
        if (done.result_total or 0) != result:
            raise ProtocolError(f"DONE with a result of {done.result_total} bytes after {result}")
        if done.pid is not None and done.pid != self._pid:
            if self._pid is not None:
                raise ProtocolError(f"DONE of pid {done.pid}, STARTED with {self._pid}")
            self._pid = done.pid
        if self._sink is None:
            self._send_late(guest.Ack())
        else:
            self._outcome = outcome_of_done(done, self._pid)
        self._finish()

    def take_credit(self, offset: int) -> None:
        """The agent takes more standard input; raises ProtocolError."""
        if self.inlet is not None:
            self.inlet.credit(offset)
        elif offset and not self._attached:
            raise ProtocolError("credit for a standard input that was never open")

    def take_error(self, channel: int, error: guest.Error) -> None:
        """A frame was refused. What came too late to matter (ESRCH, EBUSY) is no failure."""
        if channel == streams.STDIN:
            if self.inlet is not None:
                self.inlet.close()
        elif channel == streams.CONTROL and error.errno not in (_ESRCH, _EBUSY):
            self._error = self._error or refusal_of(error, self.handle)
            self._finish()

    def lose(self, error: SkerryError) -> None:
        """The channel is lost; called by the client, which has forgotten the operation."""
        if not self.ended:
            self._error = error
        if self.inlet is not None:
            self.inlet.lose(error)
        if self._result is not None:
            self._result.close()
        self._over = True
        self._wake()

    def cancel_inside(self) -> None:
        """Sends what ends it; raises the channel's error."""
        self._send(guest.Cancel(), streams.CONTROL)

    # --- inside --------------------------------------------------------------------------------

    def _stdin(self) -> Inlet:
        if self.inlet is None:
            raise Conflict("the command was started without standard input")
        return self.inlet

    def _send(self, message: guest.Message, channel: int) -> None:
        stream = streams.operation_stream(self.handle, channel)
        self._channel.send(guest.encode(message, self._generation, stream))

    def _send_late(self, message: guest.Message) -> None:
        """Sends a control frame that nothing inside waits for; see `Channel.send_late`."""
        stream = streams.operation_stream(self.handle, streams.CONTROL)
        self._channel.send_late(guest.encode(message, self._generation, stream))

    def _tell(self, message: guest.Message) -> None:
        """Sends a control frame, unless the operation has ended; raises if the channel has."""
        if self._outcome is None and self._error is None:
            self._send(message, streams.CONTROL)
        elif self._error is not None and self._channel.lost.done():
            raise same_error(self._error)

    async def _grant(self) -> None:
        """Grants credit for what is safe, whenever the sink takes more."""
        try:
            while self._sink is not None and not self._over:
                await self._sink.drain()
                if not self._grant_safe():
                    return
        except SkerryError as error:
            self._fail(error)
        finally:
            self._granting = False

    def _grant_safe(self) -> bool:
        """Sends credit for safe bytes; True if more may be due at once."""
        moved = False
        for stream, outlet in zip(Stream, self._outlets, strict=True):
            if self._over or self._sink is None:
                return False
            if outlet.received - outlet.granted < GRANT_STEP:
                continue
            if outlet.grant(self._sink.safe_offset(stream)):
                self._send(guest.Credit(outlet.granted), stream)
                moved = True
        return moved

    def _grant_all(self) -> None:
        for stream, outlet in zip(Stream, self._outlets, strict=True):
            if outlet.received - outlet.granted >= GRANT_STEP and outlet.grant(outlet.received):
                self._send(guest.Credit(outlet.granted), stream)

    def _fail(self, error: SkerryError) -> None:
        """The host cannot or will not record it: it is ended inside, the rest is thrown away."""
        if self.ended or self._over:
            return
        self._error = error
        self._sink = None
        self.cancel_inside()
        if self.inlet is not None:
            self.inlet.close()
        if self._result is not None:
            self._result.discard()
        self._grant_all()
        self._wake()

    def _finish(self) -> None:
        self._over = True
        if self._result is not None:
            self._result.close()
        self._on_end(self.handle)
        if self.inlet is not None:
            self.inlet.close()
        self._wake()

    def _wake(self) -> None:
        self._settle_started()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    def _settle_started(self) -> None:
        future = self._started
        if future is None or future.done():
            return
        if self._pid is not None:
            future.set_result(self._pid)
        elif self._outcome is not None:
            future.cancel()
        elif self._error is not None:
            future.set_exception(same_error(self._error))
            future.exception()  # nobody has to ask
