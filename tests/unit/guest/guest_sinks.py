"""Sinks for tests."""

from __future__ import annotations

import asyncio

from skerry.guest.api import Operation, Stream

OP_ID = bytes(range(16))


class ListSink:
    """Keeps everything; what counts as safe and whether it takes more is up to the test."""

    def __init__(self, *, safe: bool = True) -> None:
        self.held = {stream: bytearray() for stream in Stream}
        self.safe = safe
        self.welcome = asyncio.Event()
        self.welcome.set()

    def write(self, stream: Stream, offset: int, data: bytes) -> None:
        assert offset == len(self.held[stream])
        self.held[stream] += data

    def safe_offset(self, stream: Stream) -> int:
        return len(self.held[stream]) if self.safe else 0

    async def drain(self) -> None:
        await self.welcome.wait()


def operation(handle: int = 1, **fields) -> Operation:
    return Operation(**({"handle": handle, "op_id": OP_ID, "argv": (b"true",)} | fields))
