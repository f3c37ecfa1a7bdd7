"""The worker's side of a model: a tiny server on loopback that adds the key and keeps a record.

The scaffold in the sandbox knows a port and a path that is random a rollout; the key stays here.
Only chat completions are forwarded; sizes, their number and their time are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
from aiohttp import web

from skerry.errors import Unavailable

REQUEST_BYTES_MAX = 8 << 20
RESPONSE_BYTES_MAX = 8 << 20
UPSTREAM_TRIES = 3
# What says that the request itself is at fault: the agent hears of it. All else is the endpoint's.
CALLERS_FAULT = frozenset({400, 413, 422})

Record = Callable[[bytes, int, bytes], None]


class Endpoint:
    """One rollout's endpoint; `check` raises what the model's server did wrong."""

    def __init__(
        self,
        url: str,
        api_key: str | None,
        record: Record,
        *,
        requests_max: int,
        timeout_s: float,
        retry_pause_s: float = 1.0,
    ) -> None:
        self._url = url.rstrip("/") + "/chat/completions"
        self._api_key = api_key
        self._record = record
        self._left = requests_max
        self._timeout_s = timeout_s
        self._pause_s = retry_pause_s
        self._token = secrets.token_hex(16)
        self._failure = ""
        self.port = 0

    @property
    def path(self) -> str:
        """The path below which completions are asked for."""
        return f"/{self._token}/v1"

    def check(self) -> None:
        """Raises Unavailable if the model's server failed: that is no fault of the model."""
        if self._failure:
            raise Unavailable(f"the model's endpoint: {self._failure}")

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[Endpoint]:
        """Serves on a free port of loopback for a block."""
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        async with aiohttp.ClientSession(timeout=timeout) as session:

            async def handle(request: web.Request) -> web.Response:
                return await self._handle(request, session)

            app = web.Application(client_max_size=REQUEST_BYTES_MAX)
            app.router.add_post(f"{self.path}/chat/completions", handle)
            runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
            await runner.setup()
            try:
                site = web.TCPSite(runner, "127.0.0.1", 0)
                await site.start()
                self.port = runner.addresses[0][1]
                yield self
            finally:
                await runner.cleanup()

    async def _handle(self, request: web.Request, session: aiohttp.ClientSession) -> web.Response:
        body = await request.read()
        if self._left <= 0:
            return web.Response(status=429, text="no requests left in this rollout")
        self._left -= 1
        status, answer = await self._ask(session, body)
        self._record(body, status, answer)
        return web.Response(status=status, body=answer, content_type="application/json")

    async def _ask(self, session: aiohttp.ClientSession, body: bytes) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        failure = ""
        for number in range(UPSTREAM_TRIES):
            if number:
                await asyncio.sleep(self._pause_s * 2 ** (number - 1))
            try:
                async with session.post(self._url, data=body, headers=headers) as response:
                    answer = await _bounded(response)
                    if response.status == 200 or response.status in CALLERS_FAULT:
                        return response.status, answer
                    failure = f"status {response.status}"
                    if response.status in {401, 403, 404}:
                        break
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                failure = str(error) or type(error).__name__
        self._failure = failure
        return 502, b'{"error": {"message": "the model cannot be reached"}}'


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    parts: list[bytes] = []
    total = 0
    async for chunk in response.content.iter_any():
        total += len(chunk)
        if total > RESPONSE_BYTES_MAX:
            raise ValueError(f"an answer of more than {RESPONSE_BYTES_MAX} bytes")
        parts.append(chunk)
    return b"".join(parts)


def recorder(record: Callable[[dict[str, Any]], None], output: Callable[[bytes], Any]) -> Record:
    """Returns a function that records an exchange as an event, large bodies by digest."""

    def keep(request: bytes, status: int, answer: bytes) -> None:
        record(
            {
                "action": "model",
                "status": status,
                "request": output(request),
                "answer": output(answer),
            }
        )

    return keep
