"""Answers from an OpenAI-compatible server at a configured URL, as one more consumer of requests.

The key stays here. A fault of the request is its answer; a fault of the server is tried again, `tries`
times in a row, and then after a while: until then, and for ever if need be, the request waits, and a
trainer that attaches may answer it as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import aiohttp
import msgspec

from skerry.errors import SkerryError
from skerry.spec.worker import AnswerUrl
from skerry.worker.model.book import Asked, Call
from skerry.worker.service.requests import Name

log = logging.getLogger("skerry.worker")
AT_ONCE = 64
PAUSE_S = 1.0  # before the second try; doubled then
PAUSE_MAX_S = 30.0
# What says that the request itself is at fault: the agent hears of it. All else is the server's.
CALLERS_FAULT = frozenset({400, 413, 422})
PATHS = {Call.CHAT: "/chat/completions", Call.RESPONSES: "/responses"}
NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
RESPONSE_BYTES_MAX = 32 << 20


class Source(Protocol):
    """Where requests come from and answers go to."""

    async def take(self) -> list[tuple[Name, Asked]]:
        """Returns the next requests, held from now on; waits for them."""

    async def give(self, name: Name, answer: Any) -> None:
        """Records an answer."""

    def return_(self, name: Name) -> None:
        """Somebody else may have it."""


class Failed(Exception):
    """The server did not answer as it should."""


class Delivery:
    """Asks the server until it is cancelled."""

    def __init__(
        self,
        to: AnswerUrl,
        source: Source,
        *,
        trouble: Callable[[str], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._to = to
        self._source = source
        self._sleep = sleep
        self._trouble = trouble
        self._places = asyncio.Semaphore(AT_ONCE)
        self._resting = False

    async def run(self) -> None:
        """Never returns."""
        timeout = aiohttp.ClientTimeout(total=self._to.timeout_s)
        connector = aiohttp.TCPConnector(limit=AT_ONCE)
        async with (
            aiohttp.ClientSession(timeout=timeout, connector=connector) as session,
            asyncio.TaskGroup() as group,
        ):
            while True:
                if self._resting:  # whoever else answers may take what waits
                    await self._sleep(PAUSE_MAX_S)
                    self._resting = False
                await self._places.acquire()  # one is free before a request is taken
                self._places.release()
                try:
                    taken = await self._source.take()
                except SkerryError as error:  # it cannot be read now
                    self._trouble(error.message)
                    self._resting = True
                    continue
                for name, asked in taken:
                    await self._places.acquire()
                    group.create_task(self._deliver(session, name, asked))

    async def _deliver(self, session: aiohttp.ClientSession, name: Name, asked: Asked) -> None:
        try:
            pause = PAUSE_S
            for number in range(self._to.tries):
                if number:
                    await self._sleep(pause)
                    pause = min(2 * pause, PAUSE_MAX_S)
                try:
                    answer = await self._ask(session, asked)
                except (Failed, aiohttp.ClientError, TimeoutError) as error:
                    why = str(error) or type(error).__name__
                    self._trouble(f"the model's server: {why}")
                    continue
                self._trouble("")
                await self._source.give(name, answer)
                return
            self._give_back(name)
        except SkerryError as error:  # what it gave is no answer, or cannot be recorded now
            self._trouble(f"the model's server: {error.message}")
            self._give_back(name)
        except Exception as error:  # one request must not end the delivery of all others
            log.exception("the request %s cannot be delivered", name)
            self._trouble(f"bug: {type(error).__name__}: {error}")
            self._give_back(name)
        finally:
            self._places.release()

    def _give_back(self, name: Name) -> None:
        self._resting = True
        self._source.return_(name)

    async def _ask(self, session: aiohttp.ClientSession, asked: Asked) -> Any:
        """Returns what the server answers, as a trainer would give it."""
        url = self._to.url.rstrip("/") + PATHS[asked.call]
        body = msgspec.json.decode(asked.body)
        body.pop("stream", None)  # the whole is rendered as a stream for whom that is
        body.pop("stream_options", None)
        headers = {"Content-Type": "application/json"}
        if self._to.api_key:
            headers["Authorization"] = f"Bearer {self._to.api_key}"
        async with session.post(url, data=msgspec.json.encode(body), headers=headers) as response:
            raw = await _bounded(response)
            if response.status in CALLERS_FAULT:
                return {"error": _message(raw), "status": response.status}
            if response.status != 200:
                raise Failed(f"status {response.status}")
        try:
            return msgspec.json.decode(raw)
        except NO_JSON as error:
            raise Failed(f"no JSON: {error}") from error


def _message(raw: bytes) -> Any:
    try:
        error = msgspec.json.decode(raw)["error"]
    except (*NO_JSON, KeyError, TypeError):
        return raw[:2000].decode("utf-8", "replace") or "the model's server refused the request"
    return error


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > RESPONSE_BYTES_MAX:
            raise Failed(f"an answer of more than {RESPONSE_BYTES_MAX} bytes")
    return bytes(data)
