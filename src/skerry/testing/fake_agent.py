"""The fake guest agent: speaks the guest channel of native/PROTOCOL.md over any stream socket.

It keeps the protocol's promises (generations, credit, at most one start per operation id, results
kept until acknowledged) so that what drives it can be tested without privilege. Terminals are
plain pipes here; ports are in `fake_ports`.
"""

from __future__ import annotations

import asyncio
import errno
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from skerry.testing.fake_cells import CALL, FakeCells
from skerry.testing.fake_commands import Clock
from skerry.testing.fake_files import FakeFiles
from skerry.testing.fake_operation import CHUNK, WINDOW, FakeOperation, number
from skerry.testing.fake_ports import FakePorts
from skerry.testing.fake_sessions import FakeShell
from skerry.testing.fake_wire import Code, Frame, Tag, pack, pack_fields, parse_fields
from skerry.wire.streams import FORWARD

if TYPE_CHECKING:
    from skerry.testing.fake_connection import AgentConnection

_REMEMBERED = 1024


class FakeAgent:
    """The agent of one fake instance; it outlives connections."""

    def __init__(
        self,
        clock: Clock,
        files: FakeFiles,
        env: dict[str, str],
        on_operation: Callable[[], None] = lambda: None,
    ) -> None:
        self.clock = clock
        self.files = files
        self.env = env
        self.on_operation = on_operation
        self.generation = 0
        self.operations: dict[int, FakeOperation] = {}
        self.finished: OrderedDict[bytes, None] = OrderedDict()
        self.connection: AgentConnection | None = None
        self.never_answer = False
        self.version = b"0.4.0"
        self.held = False
        self.held_frames = 0
        self.running = asyncio.Event()  # cleared while paused
        self.running.set()
        self.ports = FakePorts(self)
        self.cells = FakeCells(self)

    def send(self, code: int, stream: int, pairs: list[tuple[int, int | bytes]]) -> None:
        """Sends a frame of fields to the newest connection, if there is one."""
        self.send_raw(code, stream, pack_fields(pairs))

    def send_raw(self, code: int, stream: int, payload: bytes) -> None:
        """Sends a frame to the newest connection, if there is one."""
        if self.connection is not None and not self.never_answer:
            self.connection.transmit(pack(code, self.generation, stream, payload))

    def pump(self, operation: FakeOperation) -> None:
        """Sends what credit allows, and DONE once all output went out."""
        if not operation.attached or self.connection is None or self.connection.generation == 0:
            return
        for channel, output in operation.output.items():
            while output.sent < min(output.total, output.limit):
                begin = output.sent - output.base
                upto = min(output.total, output.limit) - output.base
                piece = bytes(output.held[begin : min(upto, begin + CHUNK)])
                payload = output.sent.to_bytes(8, "little") + piece
                self.send_raw(Code.DATA, operation.handle << 2 | channel, payload)
                output.sent += len(piece)
        all_sent = all(output.sent == output.total for output in operation.output.values())
        if operation.shell is not None and all_sent:
            operation.shell.pump()
        if operation.done is not None and all_sent and not operation.done_sent:
            operation.done_sent = True
            for channel, output in operation.output.items():
                pairs: list[tuple[int, int | bytes]] = [(Tag.TOTAL, output.total)]
                self.send(Code.EOF, operation.handle << 2 | channel, pairs)
            self.send(Code.DONE, operation.handle << 2, operation.done)

    def ended(self, operation: FakeOperation) -> None:
        """Takes note of an operation's end."""
        self.finished[operation.op_id] = None
        while len(self.finished) > _REMEMBERED:
            self.finished.popitem(last=False)
        self.pump(operation)

    def connected(self, connection: AgentConnection) -> int:
        """Makes this connection the newest; returns its generation."""
        if self.connection is not None and self.connection is not connection:
            self.connection.close()
        self.connection = connection
        self.generation += 1
        self.ports.lose()
        for operation in self.operations.values():
            operation.attached = False
            operation.done_sent = False
        return self.generation

    def stop(self) -> None:
        """Ends every operation and the connection: the instance is gone."""
        self.ports.stop()
        self.cells.stop()
        for operation in self.operations.values():
            if operation.task is not None:
                operation.task.cancel()
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def start(self, handle: int, fields: dict[int, list[bytes]]) -> None:
        """Starts an operation, or answers ERROR."""
        op_id = fields[Tag.OP_ID][0]
        live = {operation.op_id for operation in self.operations.values()}
        if op_id in live or op_id in self.finished or handle in self.operations:
            self.fail(handle << 2, errno.EEXIST, "start")
            return
        self.on_operation()
        operation = FakeOperation(self, handle, fields)
        if operation.cell is not None and operation.cell not in self.cells.files:
            self.fail(handle << 2, errno.EAGAIN, "cell")
            return
        if operation.kind == CALL and self.cells.zygote is None:
            self.fail(handle << 2, errno.EAGAIN, "zygote")
            return
        self.operations[handle] = operation
        operation.task = asyncio.ensure_future(operation.run())

    def fail(self, stream: int, number: int, step: str) -> None:
        """Answers a frame that could not be served."""
        self.send(Code.ERROR, stream, [(Tag.ERRNO, number), (Tag.ERROR_STEP, step.encode())])

    def control(self, frame: Frame) -> None:
        """Serves a frame about one operation."""
        handle, channel = frame.stream >> 2, frame.stream & 3
        if frame.stream >= FORWARD:
            self.ports.take(frame)
            return
        if frame.type in (Code.LISTEN, Code.UNLISTEN):
            self.ports.listen(frame)
            return
        if frame.type == Code.START:
            self.start(handle, parse_fields(frame.payload))
            return
        operation = self.operations.get(handle)
        if operation is None:
            self.fail(frame.stream, errno.ENOENT, "handle")
        elif frame.type in (Code.DATA, Code.EOF) and channel == 1:
            self._stdin(operation, frame)
        else:
            self._steer(operation, frame, channel)

    def _stdin(self, operation: FakeOperation, frame: Frame) -> None:
        if operation.shell is not None:
            if frame.type == Code.EOF:
                operation.shell.close()
            else:
                operation.shell.data(int.from_bytes(frame.payload[:8], "little"), frame.payload[8:])
            return
        if frame.type == Code.EOF:
            operation.stdin_eof = True
            operation.stdin.put_nowait(b"")
            return
        offset = int.from_bytes(frame.payload[:8], "little")
        fresh = frame.payload[8 + max(0, operation.stdin_end - offset) :]
        if offset > operation.stdin_end:
            self.fail(frame.stream, errno.EPROTO, "offset")
        elif fresh:
            operation.stdin_end += len(fresh)
            operation.stdin.put_nowait(fresh)

    def _steer(self, operation: FakeOperation, frame: Frame, channel: int) -> None:
        fields = parse_fields(frame.payload)
        if operation.shell is not None and self._steer_session(operation.shell, frame, fields):
            self.pump(operation)
            return
        if frame.type == Code.CREDIT and channel in operation.output:
            self._credit(operation, channel, number(fields, Tag.OFFSET))
        elif frame.type == Code.ATTACH:
            for which, tag in ((2, Tag.STDOUT_TOTAL), (3, Tag.STDERR_TOTAL)):
                output = operation.output[which]
                output.sent = max(output.base, number(fields, tag))
                self._credit(operation, which, output.sent)
            operation.attached = True
            if operation.stdin_open:
                taken: list[tuple[int, int | bytes]] = [(Tag.OFFSET, operation.stdin_taken)]
                self.send(Code.CREDIT, frame.stream | 1, taken)
        elif frame.type in (Code.CANCEL, Code.SIGNAL) and operation.done is None:
            operation.cancelled = operation.cancelled or frame.type == Code.CANCEL
            operation.kill(number(fields, Tag.SIGNO) or 9)
        elif frame.type == Code.ACK and operation.done is not None:
            del self.operations[operation.handle]
            return
        self.pump(operation)

    def _steer_session(
        self, shell: FakeShell, frame: Frame, fields: dict[int, list[bytes]]
    ) -> bool:
        """Serves what is different for a session; False for what is not."""
        seq = number(fields, Tag.SEQ)
        if frame.type == Code.EXEC:
            shell.execute(fields)
        elif frame.type == Code.ATTACH:
            for output in shell.operation.output.values():
                output.sent = output.base
            shell.operation.attached = True
            shell.ran_sent = False
            shell.tell_started()
        elif frame.type == Code.ACK and seq:
            shell.acknowledge(seq)
        elif frame.type in (Code.CANCEL, Code.SIGNAL) and seq:
            shell.stop(seq, "cancel")
        else:
            return False
        return True

    def _credit(self, operation: FakeOperation, channel: int, offset: int) -> None:
        output = operation.output[channel]
        drop = min(max(0, offset - output.base), len(output.held))
        del output.held[:drop]
        output.base += drop
        output.sent = max(output.sent, output.base)
        output.limit = max(output.limit, offset + WINDOW)
        operation.moved.set()
