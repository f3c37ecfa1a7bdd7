"""The host's end of one guest channel: operations, forwards, pings over one connection.

A client lives as long as its connection. When that is lost, everything that waits raises
Unavailable, and `lost` is done; the operations go on inside. The owner connects again, finds them
in `live`, and attaches. What comes from inside is hostile: whatever the protocol forbids ends the
channel, and everything that waits raises SandboxFailed ("the guest agent broke the protocol: ...").
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, TypeVar

from skerry.errors import (
    InvalidRequest,
    NotFound,
    Overloaded,
    SandboxFailed,
    SkerryError,
    Unavailable,
)
from skerry.guest.api import Kind, OpenChannel, Operation, OutputSink
from skerry.guest.cells import Cells
from skerry.guest.channel import Channel, same_error
from skerry.guest.forward import Connection, Forwards, Listener, OnConnection, listen_error
from skerry.guest.inlet import Inlet
from skerry.guest.operation import RunningOperation
from skerry.guest.pings import Pings
from skerry.guest.session import RunningSession
from skerry.guest.starting import start_frames
from skerry.guest.tasks import Tasks
from skerry.wire import guest, streams
from skerry.wire.frames import (
    Frame,
    GuestFrame,
    ProtocolError,
)
from skerry.wire.starts import takes_long

_DATA: Final = int(GuestFrame.DATA)
R = TypeVar("R", bound=RunningOperation)
_log = logging.getLogger("skerry.guest")


class GuestClient:
    """One connection to a guest agent. Made by `connect`, ended by `close` or by its loss."""

    def __init__(self, loop: asyncio.AbstractEventLoop, nonce: bytes) -> None:
        self._channel = Channel(loop, self._take_first, self._lose)
        self._nonce = nonce
        self._welcomed: asyncio.Future[None] = loop.create_future()
        self._operations: dict[int, RunningOperation] = {}
        self._pings = Pings(lambda token: self._say(guest.Ping(token)))
        self.cells = Cells(self._say, self.start)  # of a function container
        self._tasks = Tasks()
        self._forwards: Forwards | None = None
        self.generation = 0
        self.live: tuple[
            guest.KnownOperation, ...
        ] = ()  # what the agent knew when this was connected
        self.agent_version = ""

    @classmethod
    async def connect(
        cls,
        open_channel: OpenChannel,
        *,
        nonce: bytes,
        timeout: float,  # noqa: ASYNC109  closing what was half opened is part of the promise
    ) -> GuestClient:
        """Returns a client that the agent has welcomed; `nonce` is 16 fresh random bytes.

        The agent closes an older connection of the same instance. Raises Unavailable if there is
        no welcome within `timeout` seconds, SandboxFailed if the agent breaks the protocol.
        """
        client = cls(asyncio.get_running_loop(), nonce)
        hello = guest.encode(guest.Hello(nonce), 0, 0)
        try:
            async with asyncio.timeout(timeout):
                await open_channel(lambda: client._channel)
                client._channel.send(hello)
                await client._welcomed
        except TimeoutError:
            await client.close()
            raise Unavailable(f"the guest agent did not answer within {timeout:g} s") from None
        except OSError as error:
            raise Unavailable(f"the guest agent cannot be reached: {error}") from error
        except BaseException:
            await client.close()
            raise
        return client

    @property
    def lost(self) -> asyncio.Future[SkerryError]:
        """Done when the channel has ended; its result says why."""
        return self._channel.lost

    def start(
        self, operation: Operation, sink: OutputSink, *, result: OutputSink | None = None
    ) -> RunningOperation:
        """Sends START; the operation runs, or will be refused, and `wait` tells.

        With `result` it finds a pipe at descriptor 4, and what it writes there is that sink's stdout.
        Raises InvalidRequest if it is longer than a START can be, Overloaded while the agent does
        not keep up with reading, and the channel's error if that is lost: then nothing was sent.
        """
        self._send_start(operation, result=result is not None)
        inlet = None
        if operation.stdin:
            stream = streams.operation_stream(operation.handle, streams.STDIN)
            # What feeds a file helper ends with its connection: nothing is held for another one.
            resumable = operation.kind is Kind.COMMAND
            inlet = Inlet(self._channel, self.generation, stream, resumable=resumable)
        return self._enter(operation.handle, sink, inlet=inlet, result=result)

    def attach(
        self,
        handle: int,
        op_id: bytes,
        sink: OutputSink,
        stdout_offset: int,
        stderr_offset: int,
        *,
        stdin: bool = False,
        resume: RunningOperation | None = None,
    ) -> RunningOperation:
        """Takes an operation of an earlier connection over: output comes again from the offsets.

        The offsets are the sink's safe ones: the agent drops everything below them. `resume` is the
        operation as it ran over the earlier connection: what of its standard input the agent did
        not get is sent again, and `stdin_sent` bytes count as written. Without it (another process
        fed it) and with `stdin`, that goes on behind what has come inside. Raises NotFound if the
        agent does not know the operation.
        """
        self._check_handle(handle)
        known = next((live for live in self.live if live.handle == handle), None)
        if known is None or known.op_id != op_id:
            raise NotFound("the guest agent does not know this operation")
        inlet = resume.inlet if resume is not None else None
        if inlet is not None:
            inlet.resume(self._channel, self.generation)
        elif stdin and known.stdin_total is not None:
            stream = streams.operation_stream(handle, streams.STDIN)
            inlet = Inlet.adopt(
                self._channel, self.generation, stream, known.stdin_total, eof=known.stdin_eof
            )
        self._send(guest.Attach(stdout_offset, stderr_offset), handle)
        offsets = (stdout_offset, stderr_offset)
        for channel, offset in zip((streams.STDOUT, streams.STDERR), offsets, strict=True):
            if offset:
                stream = streams.operation_stream(handle, channel)
                self._channel.send(guest.encode(guest.Credit(offset), self.generation, stream))
        return self._enter(handle, sink, offsets=offsets, inlet=inlet, attached=True)

    def open_session(self, operation: Operation) -> RunningSession:
        """Starts the shell of a session; `started` tells whether it runs. Raises as `start` does."""
        self._send_start(operation)
        return self._enter_session(operation.handle, attached=False)

    def attach_session(
        self, handle: int, op_id: bytes, pending: tuple[int, OutputSink] | None
    ) -> RunningSession:
        """Takes over a session of an earlier connection; NotFound if the agent does not know it.

        When `started` is done, its `seq` says which command came inside last, and `resumed` is the
        command that is `pending` (its number, and where its output goes), if it came inside.
        """
        self._check_handle(handle)
        if not any(live.handle == handle and live.op_id == op_id for live in self.live):
            raise NotFound("the guest agent does not know this session")
        self._send(guest.Attach(0, 0), handle)
        return self._enter_session(handle, attached=True, pending=pending)

    def _enter_session(
        self, handle: int, *, attached: bool, pending: tuple[int, OutputSink] | None = None
    ) -> RunningSession:
        session = RunningSession(
            self._channel,
            self.generation,
            handle,
            spawn=self._tasks.spawn,
            on_end=self._forget,
            attached=attached,
            pending=pending,
        )
        return self._keep(handle, session)

    def acknowledge(self, handle: int) -> None:
        """Lets the agent forget an operation of `live` that is done and needs no attaching."""
        self._send(guest.Ack(), handle)

    async def hold(self, *, held: bool) -> None:
        """The timers of operations stand still from here on, or go on; returns once they do.

        The caller sets the timeout. Holds over a lost connection, until it is said otherwise.
        """
        self.say_held(held=held)
        await self.ping()

    def say_held(self, *, held: bool) -> None:
        """The same, without waiting: it holds for every frame that is sent afterwards."""
        if takes_long(self.agent_version):
            self._say(guest.Hold(held))

    async def listen(self, port: int, on_connection: OnConnection, *, handle: int) -> Listener:
        """Returns once the agent listens on 127.0.0.1 and ::1 inside.

        `on_connection` runs for each connection, as a task of this client that is cancelled when
        the channel is lost; a connection that it leaves open is reset. `handle` is as new as that
        of an operation. Raises Conflict if the port is taken, SandboxFailed for other reasons.
        """
        self._check_handle(handle)
        listener = self._forwarding().listen(handle, port, on_connection)
        try:
            await listener.ready
        except asyncio.CancelledError:
            listener.close()
            raise
        return listener

    async def open_port(self, port: int) -> Connection:
        """Returns a connection to a port of the sandbox's loopback; `reset` it when done.

        Raises PortRefused if nothing answers there, Overloaded if too many are open, InvalidRequest
        if the sandbox is older than this.
        """
        if not takes_long(self.agent_version):  # an agent of before would not even answer
            raise InvalidRequest(
                f"the sandbox was made by an earlier version (agent {self.agent_version}), which "
                "takes no connections from outside"
            )
        return await self._forwarding().connect(port)

    async def ping(self) -> None:
        """Returns when the agent has answered; the caller sets the timeout."""
        await self._pings.ask()

    async def close(self, error: SkerryError | None = None) -> None:
        """Ends the connection and every task of the client, each with `error`; safe to call twice."""
        self._channel.end(
            error or Unavailable("the channel to the guest agent was closed by the host")
        )
        await self._tasks.end()

    # --- frames ------------------------------------------------------------------------------------

    def _take_first(self, frame: Frame) -> None:
        """Takes WELCOME. What comes before it belongs to an earlier connection."""
        if frame.type != GuestFrame.WELCOME:
            return
        welcome = guest.from_agent(frame)
        if not isinstance(welcome, guest.Welcome) or welcome.nonce != self._nonce:
            return
        self.live = welcome.operations()
        self.agent_version = welcome.version[:64].decode("ascii", "replace")
        if not guest.speaks(self.agent_version):
            self._channel.end(
                SandboxFailed(
                    f"its guest agent is version {self.agent_version!r}, and this node speaks "
                    f"{guest.AGENT_MAJOR}.x",
                    agent=self.agent_version,
                )
            )
            return
        self.generation = welcome.generation
        self._channel.on_frame = self._take
        if not self._welcomed.done():
            self._welcomed.set_result(None)

    def _take(self, frame: Frame) -> None:
        type_, generation, stream, payload = frame
        if generation != self.generation:
            return
        if type_ == _DATA and stream < streams.FORWARD and stream & 2:
            operation = self._operations.get(stream >> 2)
            if operation is None:
                raise ProtocolError(f"output on stream {stream:#x}, which is not attached")
            operation.take_data(stream & 3, payload)
            return
        message = guest.from_agent(frame)
        if stream >= streams.FORWARD:
            if self._forwards is not None:
                self._forwards.take(message, stream)
        elif stream == 0:
            self._take_connection(message)
        elif not self._take_listener(message, stream >> 2):
            self._take_operation(message, stream >> 2, stream & 3)

    def _take_operation(self, message: guest.Message, handle: int, channel: int) -> None:
        operation = self._operations.get(handle)
        if operation is None:
            # Both may be under way when an operation ends or is acknowledged.
            if not isinstance(message, guest.Credit | guest.Error):
                raise ProtocolError(f"{message.CODE.name} for handle {handle}, not attached")
        else:
            operation.take(message, channel)

    def _take_listener(self, message: guest.Message, handle: int) -> bool:
        if self._forwards is None:
            return False
        if isinstance(message, guest.Started):
            return self._forwards.take_answer(handle, None)
        if isinstance(message, guest.Done | guest.Error):
            return self._forwards.take_answer(handle, listen_error(message.errno or 0))
        return False

    def _take_connection(self, message: guest.Message) -> None:
        if isinstance(message, guest.Pong):
            self._pings.answered(message.token)
        elif not self.cells.take(message):
            raise ProtocolError(f"{message.CODE.name} on the connection itself")

    # --- inside --------------------------------------------------------------------------------

    def _forwarding(self) -> Forwards:
        if self._forwards is None:
            self._forwards = Forwards(self._channel, self.generation, self._tasks.serve)
        return self._forwards

    def _send_start(self, operation: Operation, *, result: bool = False) -> None:
        if self._channel.congested:
            raise Overloaded("the guest agent is busy reading", limit="channel", retry_after_s=0.1)
        self._check_handle(operation.handle)
        version = self.agent_version
        self._channel.send(start_frames(operation, self.generation, version, result=result))

    def _check_handle(self, handle: int) -> None:
        if not 0 < handle <= streams.HANDLE_MAX or handle in self._operations:
            raise InvalidRequest(f"handle {handle} is out of bounds or in use")

    def _send(self, message: guest.Message, handle: int) -> None:
        stream = streams.operation_stream(handle, streams.CONTROL)
        self._channel.send(guest.encode(message, self.generation, stream))

    def _say(self, message: guest.Message) -> None:
        self._channel.send(guest.encode(message, self.generation, 0))

    def _enter(
        self,
        handle: int,
        sink: OutputSink,
        *,
        offsets: tuple[int, int] = (0, 0),
        inlet: Inlet | None,
        result: OutputSink | None = None,
        attached: bool = False,
    ) -> RunningOperation:
        operation = RunningOperation(
            self._channel,
            self.generation,
            handle,
            sink,
            spawn=self._tasks.spawn,
            on_end=self._forget,
            offsets=offsets,
            inlet=inlet,
            result=result,
            attached=attached,
        )
        return self._keep(handle, operation)

    def _keep(self, handle: int, operation: R) -> R:
        """Takes it into the table; the frame that began it may have ended the channel."""
        if self._channel.lost.done():
            operation.lose(self._channel.lost.result())
        else:
            self._operations[handle] = operation
        return operation

    def _forget(self, handle: int) -> None:
        self._operations.pop(handle, None)

    def _lose(self, error: SkerryError) -> None:
        """The channel has ended: whatever waits is told."""
        if not self._welcomed.done():
            self._welcomed.set_exception(same_error(error))
            self._welcomed.exception()
        self.cells.lose(error)
        operations, self._operations = self._operations, {}
        for operation in operations.values():
            operation.lose(error)
        self._pings.lose(error)
        if self._forwards is not None:
            self._forwards.lose(error)
        self._tasks.cancel()
