"""The process behind `skerry.testing.link`: a relay that is slow, far away, or broken, as it is told.

Reads orders from standard input, one JSON object a line, and answers each with one. In HTTP mode it
knows where messages begin and end, so that a fault can be given for one request; in TCP mode it relays
bytes. All connections share one link: its rate is that of all of them together, each way.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from skerry.testing.link_parts import LOG_MAX, SLICE, Message, Pipe, Rule


class Ended(Exception):
    """The connection is over: closed by a side, or by a fault."""


class Proxy:
    """The link and its faults."""

    def __init__(self, target: tuple[str, int], mode: str) -> None:
        self._target = target
        self._http = mode == "http"
        self.up, self.down = Pipe(), Pipe()
        self.latency_s = 0.0
        self.rules: list[Rule] = []
        self.gone = False
        self.injected: dict[str, int] = {}
        self.log: deque[dict[str, Any]] = deque(maxlen=LOG_MAX)
        self.requests = self.connections = self.in_flight = self.in_flight_max = 0
        self._chance = random.Random(1)  # noqa: S311 - faults are to be repeatable, not secret
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    # --- being there or not ---

    async def listen(self) -> None:
        """Takes connections, at the same port as before if there was one."""
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, backlog=1024, limit=4 * SLICE, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self.gone = False

    async def leave(self) -> None:
        """Refuses connections and resets those there are."""
        self.gone = True
        if self._server is not None:
            self._server.close()
        self.cut()
        await asyncio.sleep(0)

    def cut(self) -> None:
        """Resets all connections."""
        for writer in tuple(self._open):
            _reset(writer)

    # --- relaying ---

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        far: asyncio.StreamWriter | None = None
        try:
            await asyncio.sleep(self.latency_s)
            far_reader, far = await asyncio.open_connection(*self._target, limit=4 * SLICE)
            self._open.add(far)
            if self._http:
                while await self._exchange((reader, writer), (far_reader, far)):
                    pass
            else:
                await self._relay((reader, writer), (far_reader, far))
        except (OSError, Ended, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            for one in (writer, far):
                if one is not None:
                    self._open.discard(one)
                    one.close()

    async def _relay(self, near: Any, far: Any) -> None:
        async def pump(
            source: asyncio.StreamReader, sink: asyncio.StreamWriter, pipe: Pipe
        ) -> None:
            while data := await source.read(SLICE):
                await pipe.take(len(data))
                if self.latency_s:
                    await asyncio.sleep(self.latency_s / 2)
                sink.write(data)
                await sink.drain()
            if sink.can_write_eof():
                sink.write_eof()

        await asyncio.gather(pump(near[0], far[1], self.up), pump(far[0], near[1], self.down))

    async def _exchange(self, near: Any, far: Any) -> bool:
        """Passes one request and its answer; False when the connection ends after it."""
        reader, writer = near
        request = await _head(reader)
        if request is None:
            return False
        method, path, _ = request.first.split(" ", 2)
        self.requests += 1
        entry = {"method": method, "path": path, "range": request.header("range"), "bytes": 0}
        self.log.append(entry)
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            rule = self._fault(f"{method} {path}")
            if rule is not None and rule.kind == "cut" and rule.after == 0:
                raise _dead(writer)
            if rule is not None and rule.kind == "status":
                await self._swallow(reader, request, writer)
                await asyncio.sleep(self.latency_s)
                await self._refuse(writer, rule)
                return True
            await self._ask(request, reader, writer, far[1])
            return await self._answer(method, entry, far[0], writer, rule)
        finally:
            self.in_flight -= 1

    async def _ask(
        self,
        request: Message,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far: asyncio.StreamWriter,
    ) -> None:
        if (request.header("expect") or "").lower() == "100-continue":
            request.headers = [one for one in request.headers if one[0].lower() != "expect"]
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await self.up.take(0)
        far.write(request.encode())
        async for data in _body(reader, request):
            await self.up.take(len(data))
            far.write(data)
            await far.drain()
        await far.drain()

    async def _swallow(
        self, reader: asyncio.StreamReader, request: Message, writer: asyncio.StreamWriter
    ) -> None:
        if (request.header("expect") or "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        async for data in _body(reader, request):
            await self.up.take(len(data))

    async def _answer(
        self,
        method: str,
        entry: dict[str, Any],
        far: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        rule: Rule | None,
    ) -> bool:
        answer = await _head(far)
        if answer is None:
            raise Ended
        if self.latency_s:
            await asyncio.sleep(self.latency_s)
        status = answer.first.split(" ", 2)[1]
        empty = method == "HEAD" or status in ("204", "304")
        length = answer.header("content-length")
        if rule is not None and rule.kind == "short" and length is not None:
            length = str(max(0, int(length) - max(1, rule.after)))
            answer.put("content-length", length)
        if rule is not None and rule.kind == "stall" and rule.after == 0:
            await asyncio.sleep(rule.seconds)
        writer.write(answer.encode())
        if not empty:
            if length is None and answer.header("transfer-encoding") is None:
                async for data in _until_end(far):
                    await self._pass(data, writer)
                return False
            sent = 0
            async for piece in _body(far, answer):
                data = _damage(piece, sent, rule)
                if rule is not None and rule.kind in ("truncate", "cut", "stall"):
                    await self._break(data, sent, rule, writer)
                else:
                    await self._pass(data, writer)
                sent += len(data)
                entry["bytes"] = sent
            if rule is not None and rule.kind == "short":
                await writer.drain()
                return False  # bytes of the answer are left on the far side
        await writer.drain()
        return (answer.header("connection") or "").lower() != "close"

    async def _pass(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        await self.down.take(len(data))
        writer.write(data)
        await writer.drain()

    async def _break(
        self, data: bytes, sent: int, rule: Rule, writer: asyncio.StreamWriter
    ) -> None:
        """Passes what comes before the place of the fault; there the fault happens."""
        left = rule.after - sent
        if not 0 <= left < len(data):
            await self._pass(data, writer)
            return
        await self._pass(data[:left], writer)
        if rule.kind == "stall":
            await asyncio.sleep(rule.seconds)
            await self._pass(data[left:], writer)
            return
        if rule.kind == "cut":
            raise _dead(writer)
        raise Ended

    async def _refuse(self, writer: asyncio.StreamWriter, rule: Rule) -> None:
        body = (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{rule.code}</Code>'
            f"<Message>made by a test</Message></Error>"
        ).encode()
        again = "" if rule.retry_after is None else f"Retry-After: {rule.retry_after}\r\n"
        writer.write(
            f"HTTP/1.1 {rule.status} Fault\r\nContent-Type: application/xml\r\n{again}"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await writer.drain()

    # --- faults ---

    def _fault(self, what: str) -> Rule | None:
        for rule in self.rules:
            if rule.times == 0 or not rule.pattern.search(what):
                continue
            if rule.share < 1 and self._chance.random() >= rule.share:
                continue
            rule.times -= 1
            self.injected[rule.kind] = self.injected.get(rule.kind, 0) + 1
            return rule
        return None

    # --- orders ---

    async def order(self, order: dict[str, Any]) -> dict[str, Any]:
        """Does what the parent asks."""
        match order.pop("do"):
            case "set":
                self.up.rate = self.down.rate = order.get("rate", self.down.rate)
                self.latency_s = order.get("latency_s", self.latency_s)
            case "faults":
                self.rules = [Rule(**one) for one in order["faults"]]
            case "leave":
                await self.leave()
            case "return":
                await self.listen()
            case "cut":
                self.cut()
            case "log":
                return {"log": list(self.log)}
            case "reset":
                self.log.clear()
                self.up.total = self.down.total = self.requests = self.connections = 0
                self.in_flight_max = self.in_flight
                self.injected = {}
        return {
            "port": self.port, "requests": self.requests, "connections": self.connections,
            "up": self.up.total, "down": self.down.total, "injected": self.injected,
            "in_flight_max": self.in_flight_max,
        }  # fmt: skip


def _damage(data: bytes, sent: int, rule: Rule | None) -> bytes:
    if rule is None or rule.kind != "flip" or not 0 <= rule.after - sent < len(data):
        return data
    changed = bytearray(data)
    changed[rule.after - sent] ^= 1
    return bytes(changed)


def _dead(writer: asyncio.StreamWriter) -> Ended:
    _reset(writer)
    return Ended()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Ends a connection by RST: what is under way is lost."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _head(reader: asyncio.StreamReader) -> Message | None:
    """Reads a head; None if the connection ended before one began."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    first, *lines = raw.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    head = Message(first, [(name, value.strip()) for name, _, value in pairs])
    if first.startswith("HTTP/1.1 100"):
        return await _head(reader)
    return head


async def _body(reader: asyncio.StreamReader, head: Message) -> AsyncIterator[bytes]:
    """Gives a body in slices: by its length, or chunk by chunk with the marks of the chunks."""
    if (head.header("transfer-encoding") or "").lower() == "chunked":
        while True:
            line = await reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            yield line
            async for data in _exactly(reader, size + 2):
                yield data
            if size == 0:
                return
    else:
        async for data in _exactly(reader, int(head.header("content-length") or 0)):
            yield data


async def _exactly(reader: asyncio.StreamReader, count: int) -> AsyncIterator[bytes]:
    while count > 0:
        data = await reader.read(min(SLICE, count))
        if not data:
            raise Ended
        count -= len(data)
        yield data


async def _until_end(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while data := await reader.read(SLICE):
        yield data


async def _main(target: str, mode: str) -> None:
    host, _, port = target.rpartition(":")
    proxy = Proxy((host, int(port)), mode)
    await proxy.listen()
    loop = asyncio.get_running_loop()
    orders: asyncio.Queue[str] = asyncio.Queue()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(orders.put_nowait, line)
        loop.call_soon_threadsafe(orders.put_nowait, "")

    threading.Thread(target=read, daemon=True).start()
    print(json.dumps({"port": proxy.port}), flush=True)
    while line := await orders.get():  # the end of the input is the end of the parent
        print(json.dumps(await proxy.order(json.loads(line))), flush=True)
    await proxy.leave()


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_main(sys.argv[1], sys.argv[2]))
