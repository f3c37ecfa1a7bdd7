"""A session's shell as the host sees it, and the one command that it runs at a time.

Both are operations in the sense of `RunningOperation`: what they say is checked against what was said
before, output flows with credit, `wait` tells the end. A session lives as long as its connection;
after a new one, `attach_session` gives another object for the same shell.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from skerry.errors import Bug, Conflict, NotFound, OutcomeUnknown, SkerryError
from skerry.guest.api import Outcome, OutputSink, Stream
from skerry.guest.channel import Channel, same_error
from skerry.guest.operation import RunningOperation
from skerry.guest.outcomes import outcome_of
from skerry.guest.outlet import Outlet
from skerry.guest.output import MemorySink
from skerry.wire import guest, streams
from skerry.wire.frames import DATA_BYTES_MAX, WINDOW, ProtocolError, data_offset, encode_data
from skerry.wire.guest_sessions import LINE_BYTES_MAX, SCRIPT_BYTES_MAX, Exec, Ran

PIECE_BYTES: Final = min(32_768, DATA_BYTES_MAX)
_EEXIST: Final = 17


class _Slice:
    """The part of the session's output from `bases` on, as a sink of its own."""

    __slots__ = ("_bases", "_sink")

    def __init__(self, sink: OutputSink, bases: tuple[int, int]) -> None:
        self._sink = sink
        self._bases = bases

    def write(self, stream: Stream, offset: int, data: bytes) -> None:
        """Passes on what belongs to it."""
        at = offset - self._bases[stream - Stream.STDOUT]
        if at < 0:
            at, data = 0, data[-at:]
        if data:
            self._sink.write(stream, at, data)

    def safe_offset(self, stream: Stream) -> int:
        """Returns how much of the session's stream need not be sent again."""
        return self._bases[stream - Stream.STDOUT] + self._sink.safe_offset(stream)

    async def drain(self) -> None:
        """Waits for the sink."""
        await self._sink.drain()


class SessionCommand(RunningOperation):
    """One command of a session; `wait` returns at RAN, or when the session has ended."""

    __slots__ = ("_bases", "_session", "seq")

    def __init__(self, session: RunningSession, seq: int, sink: OutputSink) -> None:
        super().__init__(
            session.channel,
            session.generation,
            session.handle,
            _Slice(sink, session.bases),
            spawn=session.spawn,
            on_end=session.command_ended,
        )
        self.seq = seq
        self._session = session
        self._bases = session.bases
        self._outlets = session.outlets

    def check_begin(self, channel: int, offset: int) -> None:
        """The agent sends again from this offset on; ProtocolError if what came before is missing."""
        if self._sink is not None and offset > self._sink.safe_offset(Stream(channel)):
            raise ProtocolError(f"output again from {offset} on, behind what is known of it")

    def signal(self, number: int) -> None:
        """Sends a signal to what the command started, not to the shell."""
        self._tell(guest.Signal(number, self.seq))

    def cancel(self) -> None:
        """Ends what the command started, and its script; `wait` then returns with `cancelled`."""
        self._tell(guest.Cancel(self.seq))

    def cancel_inside(self) -> None:
        """Sends what ends it; raises the channel's error."""
        self._send(guest.Cancel(self.seq), streams.CONTROL)

    def resize(self, rows: int, cols: int) -> None:
        """Raises Conflict: there is no terminal."""
        del rows, cols
        raise Conflict("a command of a session has no terminal")

    def acknowledge(self) -> None:
        """Tells the agent that the result is recorded, so that it forgets it."""
        if self._outcome is not None:
            self._session.acknowledge_command(self.seq)

    def take_ran(self, ran: Ran) -> None:
        """It has ended; raises ProtocolError."""
        self._outcome = self._ended(ran.stdout_total, ran.stderr_total, ran)
        self._finish()

    def take_end(self, done: guest.Done) -> None:
        """The session has ended under it; raises ProtocolError."""
        out, err = self._outlets
        end = Ran(
            seq=self.seq,
            signal=9,
            cancelled=True,
            reset=True,
            start_ns=done.start_ns,
            end_ns=done.end_ns,
            stdout_total=out.received,
            stderr_total=err.received,
        )
        self._outcome = self._ended(out.received, err.received, end)
        self._finish()

    def take_refusal(self, error: guest.Error) -> None:
        """EXEC was refused."""
        text = f"the session refused the command: errno {error.errno}"
        refused = OutcomeUnknown if error.errno == _EEXIST else Bug
        self._error = self._error or refused(text, errno=error.errno, step=error.step)
        self._finish()

    def _ended(self, stdout_total: int, stderr_total: int, ran: Ran) -> Outcome:
        out, err = self._outlets
        if stdout_total < self._bases[0] or stderr_total < self._bases[1]:
            raise ProtocolError("RAN with totals before the beginning of the command's output")
        if (stdout_total, stderr_total) != (out.received, err.received):
            raise ProtocolError(
                f"RAN with {stdout_total} and {stderr_total} bytes of output"
                f" after {out.received} and {err.received}"
            )
        dropped = (ran.stdout_dropped, ran.stderr_dropped)
        return outcome_of(
            ran,
            stdout_total - self._bases[0] + dropped[0],
            stderr_total - self._bases[1] + dropped[1],
            reset=ran.reset,
            dropped=sum(dropped),
        )


class RunningSession(RunningOperation):
    """The shell over one connection. `started` is done when it may be used; `wait` tells its end."""

    __slots__ = (
        "_closing",
        "_command",
        "_pending",
        "_untold",
        "bases",
        "channel",
        "generation",
        "outlets",
        "resumed",
        "seq",
        "spawn",
    )

    def __init__(
        self,
        channel: Channel,
        generation: int,
        handle: int,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        on_end: Callable[[int], None],
        attached: bool = False,
        pending: tuple[int, OutputSink] | None = None,
    ) -> None:
        super().__init__(
            channel,
            generation,
            handle,
            MemorySink(0),
            spawn=spawn,
            on_end=on_end,
            attached=attached,
        )
        self.channel = channel
        self.generation = generation
        self.spawn = spawn
        self.outlets: tuple[Outlet, Outlet] = self._outlets
        self.bases = (0, 0)  # where the output of the command `seq` begins, or of the next one
        self.seq = 0  # the last command that came inside
        # Channels of which nothing was heard since an attach: the agent says from where it sends.
        self._untold = {streams.STDOUT, streams.STDERR} if attached else set()
        self._closing = False
        self._command: SessionCommand | None = None
        self._pending = pending
        self.resumed: SessionCommand | None = None  # the one that was pending, if it came inside

    async def execute(
        self, seq: int, script: bytes, sink: OutputSink, *, timeout_ms: int, no_output_ms: int
    ) -> SessionCommand:
        """Sends a script, which is the command `seq` from here on; its `wait` tells the rest.

        Raises Conflict while another one runs, NotFound if the session has ended, and the channel's
        error if that is lost.
        """
        if self._command is not None or seq <= self.seq:
            raise Conflict("the session runs a command")
        if len(script) > SCRIPT_BYTES_MAX:
            raise Bug(f"a script of {len(script)} bytes was not refused before")
        line = script if len(script) <= LINE_BYTES_MAX else None
        if line is None:
            stream = streams.operation_stream(self.handle, streams.STDIN)
            for at in range(0, len(script), PIECE_BYTES):
                await self.channel.writable()
                piece = script[at : at + PIECE_BYTES]
                self.channel.send(encode_data(self.generation, stream, at, piece))
        if self.ended:  # nobody would answer it
            raise same_error(self._error or NotFound("the session has ended"))
        self._send(
            Exec(
                seq=seq,
                size=len(script),
                timeout_ms=timeout_ms or None,
                no_output_ms=no_output_ms or None,
                line=line,
            ),
            streams.CONTROL,
        )
        self.seq = seq
        self._forgotten()  # EXEC acknowledges what was before
        command = self._enter(sink)
        if self.channel.lost.done():  # by this very frame, which was one too many unread
            command.lose(self.channel.lost.result())
        return command

    def close(self) -> None:
        """Asks the shell to end; what still runs in it after two seconds is ended."""
        if not self.ended:
            self._closing = True
            self._send(guest.Eof(0), streams.STDIN)

    def acknowledge_end(self) -> None:
        """The end of the whole session was heard: the agent forgets it."""
        RunningOperation.acknowledge(self)

    def acknowledge_command(self, seq: int) -> None:
        """The command's result is recorded: the agent forgets it and its output."""
        self._send_late(guest.Ack(seq))
        if seq == self.seq and self._command is None:
            self._forgotten()

    def command_ended(self, handle: int) -> None:
        """Called by the command: the next one begins where it ended."""
        del handle
        self._command = None
        self.bases = (self.outlets[0].received, self.outlets[1].received)

    def take(self, message: guest.Message, channel: int) -> None:
        """Takes what the agent says of it; raises ProtocolError."""
        command = self._command
        if isinstance(message, Ran):
            self._take_ran(message)
        elif isinstance(message, guest.Started):
            if message.seq is None or message.stdout_total is None or message.stderr_total is None:
                raise ProtocolError("a session STARTED without SEQ or totals")
            if self._pid is None:
                self.seq = max(self.seq, message.seq)
                self.bases = (message.stdout_total, message.stderr_total)
                if self._pending is not None and self._pending[0] == message.seq:
                    self.resumed = self._enter(self._pending[1])
                    for told in {streams.STDOUT, streams.STDERR} - self._untold:
                        offset = self.outlets[told - streams.STDOUT].received
                        self.resumed.check_begin(told, offset)
            self.take_started(message.pid)
        elif isinstance(message, guest.Done):
            self.take_done(message)
        elif isinstance(message, guest.Data | guest.Eof):
            if isinstance(message, guest.Eof):
                self._hear(channel, message.total)
            self.take_flow(message, channel)
        elif isinstance(message, guest.Error):
            if message.step == "exec" and command is not None:
                command.take_refusal(message)
            else:
                self.take_error(channel, message)

    def take_data(self, channel: int, payload: bytes) -> None:
        """Output came; raises ProtocolError."""
        self._hear(channel, data_offset(payload))
        if self._command is not None:
            self._command.take_data(channel, payload)
            return
        # What was answered already may come again after an attach; and what jobs in the background
        # wrote since the last command comes, for nobody, at the end.
        end = self.outlets[channel - streams.STDOUT].take(data_offset(payload), len(payload) - 8)
        if self._closing:
            self._grant_all()
        elif end > self.bases[channel - streams.STDOUT] and not self._attached:
            raise ProtocolError("output of a session without a command")

    def take_done(self, done: guest.Done) -> None:
        """The session has ended; raises ProtocolError."""
        if self._command is not None:
            self._command.take_end(done)
        super().take_done(done)

    def lose(self, error: SkerryError) -> None:
        """The channel is lost."""
        if self._command is not None:
            self._command.lose(error)
        super().lose(error)

    def _enter(self, sink: OutputSink) -> SessionCommand:
        self._command = SessionCommand(self, self.seq, sink)
        return self._command

    def _forgotten(self) -> None:
        """The agent holds no output any more, and the window is open."""
        for outlet in self.outlets:
            outlet.granted = outlet.received
            outlet.limit = outlet.received + WINDOW

    def _take_ran(self, ran: Ran) -> None:
        self._hear(streams.STDOUT, ran.stdout_total)
        self._hear(streams.STDERR, ran.stderr_total)
        command = self._command
        if ran.seq < self.seq and self._attached:
            return  # said again after an attach, before EXEC of the next one acknowledged it
        if ran.seq != self.seq:
            raise ProtocolError(f"RAN of command {ran.seq}, not {self.seq}")
        if command is not None:
            command.take_ran(ran)
        elif self._attached:  # recorded by an earlier process, whose ACK was lost
            self.command_ended(self.handle)
            self.acknowledge_command(ran.seq)
        else:
            raise ProtocolError(f"RAN of command {ran.seq} twice")

    def _hear(self, channel: int, offset: int) -> None:
        """The first offset after an attach is where the agent's memory begins."""
        if channel in self._untold:
            self._untold.discard(channel)
            if self._command is not None:
                self._command.check_begin(channel, offset)
            outlet = self.outlets[channel - streams.STDOUT]
            outlet.received = outlet.granted = offset
            outlet.limit = offset + WINDOW
