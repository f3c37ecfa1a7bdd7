"""One connection to the fake agent: HELLO, frames in, frames out."""

from __future__ import annotations

import asyncio

from skerry.testing.fake_agent import FakeAgent
from skerry.testing.fake_wire import Code, Frame, Splitter, Tag, pack_fields, parse_fields


class AgentConnection(asyncio.Protocol):
    """One connection to the fake agent; `drop_after` closes it after that many frames sent."""

    def __init__(self, agent: FakeAgent, drop_after: int | None = None) -> None:
        self.agent = agent
        self.generation = 0
        self.drop_after = drop_after
        self.transport: asyncio.Transport | None = None
        self.splitter = Splitter()
        self.more = bytearray()
        self.more_size = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Waits for HELLO."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Leaves every operation running: a lost connection is not a cancel."""
        del exc
        self.transport = None
        if self.agent.connection is self:
            self.agent.connection = None

    def close(self) -> None:
        """Closes the connection."""
        if self.transport is not None:
            self.transport.close()

    def transmit(self, data: bytes) -> None:
        """Sends bytes, or drops the channel if its knob says so."""
        if self.drop_after is not None:
            self.drop_after -= 1
            if self.drop_after < 0:
                if self.transport is not None:
                    self.transport.abort()
                return
        if self.transport is not None:
            self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        """Serves frames; a malformed one closes the connection."""
        try:
            for frame in self.splitter.feed(data):
                self._serve(frame)
        except (ValueError, KeyError, IndexError):
            self.close()

    def _serve(self, frame: Frame) -> None:
        if self.agent.never_answer:
            return
        if frame.type == Code.HELLO:
            nonce = parse_fields(frame.payload)[Tag.NONCE][0]
            self.generation = self.agent.connected(self)
            self._welcome(nonce)
        elif self.generation == 0 or frame.generation != self.generation:
            return
        elif frame.type == Code.PING:
            token = parse_fields(frame.payload)[Tag.TOKEN][0]
            self.agent.send(Code.PONG, 0, [(Tag.TOKEN, token)])
        elif frame.type == Code.HOLD:
            self.agent.held = bool(int.from_bytes(parse_fields(frame.payload)[Tag.HELD][0]))
            self.agent.held_frames += 1
        elif frame.type == Code.CELL:
            self.agent.cells.take(parse_fields(frame.payload))
        elif (whole := self._whole(frame)) is not None:
            self.agent.control(whole)

    def _whole(self, frame: Frame) -> Frame | None:
        """Returns the frame; a START of several only when its last MORE has come."""
        if frame.type == Code.MORE:
            self.more += frame.payload
            if len(self.more) < self.more_size:
                return None
            return Frame(Code.START, frame.generation, frame.stream, bytes(self.more))
        announced = frame.type == Code.START and frame.payload[:1] == bytes([Tag.MORE])
        if not announced:
            return frame
        self.more = bytearray(frame.payload)
        self.more_size = len(self.more) + int.from_bytes(frame.payload[5:13], "little")
        return None

    def _welcome(self, nonce: bytes) -> None:
        pairs: list[tuple[int, int | bytes]] = [
            (Tag.NONCE, nonce),
            (Tag.GENERATION, self.generation),
            (Tag.VERSION, self.agent.version),
        ]
        for operation in self.agent.operations.values():
            about: list[tuple[int, int | bytes]] = [
                (Tag.HANDLE, operation.handle),
                (Tag.OP_ID, operation.op_id),
                (Tag.STATE, int(operation.done is not None)),
                (Tag.STDOUT_TOTAL, operation.output[2].total),
                (Tag.STDERR_TOTAL, operation.output[3].total),
                (Tag.STDIN_TOTAL, operation.stdin_end),
                (Tag.STDIN_EOF, int(operation.stdin_eof)),
            ]
            pairs.append((Tag.OP, pack_fields(about)))
        self.agent.send(Code.WELCOME, 0, pairs)
