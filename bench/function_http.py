"""Raw connections for `function.py`: HTTP/1.1 written by hand: a client that costs next to nothing."""

import asyncio
import json
import time
from typing import Self

from harness import BenchmarkFailedError, Sample

ANSWER_WITHIN_S = 120.0


class Connections:
    """Connections to a node that stand; each call takes one that is free and puts it back."""

    def __init__(self, path: str, count: int, code: str, *, raises: bool = True) -> None:
        self._path = path
        self._count = count
        self._raises = raises
        self._free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
            asyncio.Queue()
        )
        body = json.dumps({"kind": {"type": "python", "code": code, "args": [7]}}).encode()
        head = (
            "POST /v1/functions/call HTTP/1.1\r\nHost: node\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._request = head.encode() + body
        self.failures = 0
        self.first_failure = ""

    async def __aenter__(self) -> Self:
        for _ in range(self._count):
            self._free.put_nowait(await asyncio.open_unix_connection(self._path))
        return self

    async def __aexit__(self, *_: object) -> None:
        while not self._free.empty():
            writer = self._free.get_nowait()[1]
            writer.close()
            await writer.wait_closed()

    async def operation(self, _: int) -> Sample:
        """One call; its clock in milliseconds."""
        reader, writer = await self._free.get()
        start = time.perf_counter()
        try:
            writer.write(self._request)
            async with asyncio.timeout(ANSWER_WITHIN_S):
                status, body = await answer(reader)
            end = time.perf_counter()
            check(status, body)
        except (OSError, TimeoutError, ValueError, EOFError, BenchmarkFailedError) as error:
            self.failures += 1
            self.first_failure = self.first_failure or repr(error)
            writer.close()
            self._free.put_nowait(await asyncio.open_unix_connection(self._path))
            if self._raises:
                raise BenchmarkFailedError(repr(error)) from error
            return {"ms": (time.perf_counter() - start) * 1e3}
        self._free.put_nowait((reader, writer))
        return {"ms": (end - start) * 1e3}


def check(status: int, body: bytes) -> None:
    """Raise unless this is the right value."""
    if status != 200 or json.loads(body).get("value") != 49:
        raise BenchmarkFailedError(f"a call was answered {status}: {body[:300]!r}")


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Return status and body of the next answer, which has to say its length."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    fields = dict(line.partition(":")[::2] for line in head.split("\r\n")[1:])
    length = fields.get("content-length", "").strip()
    if not length:
        raise BenchmarkFailedError(f"an answer without its length: {head[:300]!r}")
    return int(head.split()[1]), await reader.readexactly(int(length))
