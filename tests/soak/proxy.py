"""A TCP relay in front of a node's unix socket, whose connections can be cut at any byte."""

from __future__ import annotations

import asyncio
import random
import socket
import struct

CHUNK = 65_536


class Relay:
    """Listens on a port of 127.0.0.1; `cut` resets a share of its connections."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def open(self) -> None:
        """Listens."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Ends every connection."""
        self._flowing.set()
        if self._server is not None:
            self._server.close()
        for pair in tuple(self._pairs):
            _reset(pair)
        await asyncio.sleep(0)

    def cut(self, chance: random.Random, share: float) -> int:
        """Resets about that share of the connections; returns how many."""
        doomed = [pair for pair in self._pairs if chance.random() < share]
        for pair in doomed:
            _reset(pair)
        return len(doomed)

    def hold(self) -> None:
        """Lets no byte through until `flow`."""
        self._flowing.clear()

    def flow(self) -> None:
        """Lets bytes through again."""
        self._flowing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner, outer = await asyncio.open_unix_connection(self._target)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, outer)
        self._pairs.add(pair)
        try:
            await asyncio.gather(self._pump(reader, outer), self._pump(inner, writer))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._pairs.discard(pair)
            for end in pair:
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            await self._flowing.wait()
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


def _reset(pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter]) -> None:
    """Ends both sides, that of the client by RST: what is under way is lost."""
    client, node = pair
    sock = client.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.transport.abort()
    node.transport.abort()
