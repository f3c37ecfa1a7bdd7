"""The model's calls over HTTP, as the node's relay makes them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from memory_book import MemoryBook

from skerry.errors import StorageFailed
from skerry.worker.aside import BYTES_MAX, Aside
from skerry.worker.model.book import Note
from skerry.worker.model.handler import ModelHandler

CHAT = {"model": "policy", "messages": [{"role": "user", "content": "2 + 2?"}]}


class Relay:
    """What the node does for one sandbox."""

    def __init__(self, session: aiohttp.ClientSession, sandbox: str) -> None:
        self._session = session
        self._headers = {
            "X-Skerry-Sandbox": sandbox,
            "Authorization": f"Bearer token-{sandbox}",
        }

    async def ask(
        self, number: int, body: Any = CHAT, path: str = "chat/completions", **extra: str
    ) -> tuple[int, Any]:
        headers = {**self._headers, "X-Skerry-Request": f"{number:032x}", **extra}
        url = f"http://worker/model/v1/{path}"
        async with self._session.post(url, json=body, headers=headers) as response:
            return response.status, await _content(response)

    async def wait(self, number: int) -> tuple[int, Any, Any]:
        headers = {**self._headers, "X-Skerry-Request": f"{number:032x}"}
        async with self._session.get("http://worker/model/wait", headers=headers) as response:
            return response.status, await _content(response), response.headers

    async def get(self, path: str) -> tuple[int, Any]:
        url = f"http://worker/model/{path}"
        async with self._session.get(url, headers=self._headers) as response:
            return response.status, await _content(response)

    async def hand(self, *words: str) -> int:
        headers = {**self._headers, "X-Skerry-Handed": ",".join(words)}
        async with self._session.post("http://worker/model/handed", headers=headers) as response:
            return response.status


async def _content(response: aiohttp.ClientResponse) -> Any:
    if response.content_type == "application/json":
        return await response.json()
    return await response.text()


@asynccontextmanager
async def serving(
    book: MemoryBook, place: Path, aside: Aside | None = None
) -> AsyncIterator[Callable[[str], Relay]]:
    """A worker's socket in front of the book; afterwards the worker is gone, and the book is not."""
    app = web.Application()
    aside = aside or Aside()
    app.add_routes(ModelHandler(book, aside).routes())
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    path = str(place / "worker.sock")
    await web.UnixSite(runner, path).start()
    try:
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as session:
            yield lambda sandbox: Relay(session, sandbox)
    finally:
        await runner.cleanup()
        await aside.close()


async def test_a_request_is_asked_once_and_answered(tmp_path: Path) -> None:
    book = MemoryBook("s1")
    async with serving(book, tmp_path) as relay:
        assert await relay("s1").ask(1) == (202, "")
        assert len(book.asked("s1")) == 1
        waiting = asyncio.create_task(relay("s1").wait(1))
        await book.waited.wait()
        book.give("s1", 0, "four")
        status, whole, headers = await waiting
    assert status == 200
    assert whole["choices"][0]["message"]["content"] == "four"
    assert "X-Skerry-Resume" not in headers


async def test_another_worker_gives_the_same_bytes(tmp_path: Path) -> None:
    book = MemoryBook("s1")
    book.resume = True
    found: list[tuple[int, Any, Any]] = []
    for _ in range(3):
        async with serving(book, tmp_path) as relay:
            assert (await relay("s1").ask(1, {**CHAT, "stream": True}))[0] == 202
            if not found:
                book.give("s1", 0, "four")
            found.append(await relay("s1").wait(1))
    assert len(book.asked("s1")) == 1
    assert len({(status, text, headers["ETag"]) for status, text, headers in found}) == 1
    _, text, headers = found[0]
    assert text.endswith("data: [DONE]\n\n")
    assert headers["Content-Type"].startswith("text/event-stream")
    assert headers["X-Skerry-Resume"] == "1"


async def test_a_retry_after_another_node_gets_the_recorded_answer(tmp_path: Path) -> None:
    book = MemoryBook("s1")
    async with serving(book, tmp_path) as relay:
        one = relay("s1")
        await one.ask(1)
        book.give("s1", 0, "four")
        await one.wait(1)
        assert await one.hand(f"{1:032x}") == 204
        await one.ask(2, **{"X-Stainless-Retry-Count": "1"})
        status, whole, _ = await one.wait(2)
        assert (status, whole["choices"][0]["message"]["content"]) == (200, "four")
        assert await one.hand(f"{2:032x};held") == 204
        await one.ask(3)
        await one.ask(4, **{"X-Skerry-Handed": f"{3:032x}"})
    assert [note.relay for note in book.asked("s1")] == [f"{1:032x}", f"{4:032x}"]


async def test_an_error_of_the_trainer_is_told_once_and_then_asked_anew(tmp_path: Path) -> None:
    book = MemoryBook("s1")
    async with serving(book, tmp_path) as relay:
        one = relay("s1")
        await one.ask(1)
        book.give("s1", 0, {"error": "busy", "status": 503})
        status, whole, _ = await one.wait(1)
        assert (status, whole["error"]["message"]) == (503, "busy")
        await one.ask(2, **{"X-Stainless-Retry-Count": "1"})
    assert len(book.asked("s1")) == 2


async def test_equal_requests_at_once_are_asked_apart(tmp_path: Path) -> None:
    book = MemoryBook("s1")
    waiting = ",".join(f"{number:032x}" for number in range(8))
    async with serving(book, tmp_path) as relay:
        one = relay("s1")
        await asyncio.gather(
            *(one.ask(number, **{"X-Skerry-Waiting": waiting}) for number in range(8))
        )
    assert len(book.asked("s1")) == 8
    assert [note.ordinal for note in book.asked("s1")] == list(range(8))


async def test_responses_are_served_too(tmp_path: Path) -> None:
    book = MemoryBook("s1")
    async with serving(book, tmp_path) as relay:
        await relay("s1").ask(1, {"model": "policy", "input": "hi"}, "responses")
        book.give("s1", 0, "hello")
        _, whole, _ = await relay("s1").wait(1)
    assert whole["output"][0]["content"][0]["text"] == "hello"


async def test_models_are_listed(tmp_path: Path) -> None:
    async with serving(MemoryBook("s1"), tmp_path) as relay:
        status, found = await relay("s1").get("v1/models")
        assert (status, [model["id"] for model in found["data"]]) == (200, ["policy"])
        assert (await relay("s1").get("v1/models/policy"))[0] == 200
        assert (await relay("s1").get("v1/models/gpt"))[0] == 404


async def test_errors_have_the_shape_that_clients_know(tmp_path: Path) -> None:
    book = MemoryBook("s1")
    async with serving(book, tmp_path) as relay:
        one = relay("s1")
        checks = [
            (await one.ask(1, {"model": "policy"}), 400, "invalid"),
            (await one.ask(1, Authorization="Bearer token-s2"), 401, "unauthorized"),
            (await relay("s2").ask(1), 404, "not_found"),
            (await one.get("v1/embeddings"), 404, "not_found"),
            ((await one.wait(9))[:2], 404, "not_found"),
            (await one.ask(1, **{"X-Skerry-Request": "no"}), 400, "invalid"),
        ]
        book.broken = StorageFailed("the disk is full")
        checks.append((await one.ask(1), 507, "storage_failed"))
        for (status, whole), expected, code in checks:
            assert (status, whole["error"]["code"]) == (expected, code)
            assert whole["error"].keys() == {"message", "type", "param", "code"}
        book.broken = None
        assert not book.asked("s1")
        assert (await one.ask(1))[0] == 202


async def test_a_body_is_bounded_by_the_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(MemoryBook("s1"), tmp_path) as relay:
        large = {**CHAT, "x": "y" * 300_000}
        assert (await relay("s1").ask(1, large))[0] == 202
        monkeypatch.setattr("skerry.worker.model.handler.BODY_BYTES_MAX", 200_000)
        assert (await relay("s1").ask(2, large))[0] == 400


class Gate(MemoryBook):
    """Says who has come, and in which order requests are recorded."""

    def __init__(self, *sandboxes: str) -> None:
        super().__init__(*sandboxes)
        self.come = 0
        self.three, self.four = asyncio.Event(), asyncio.Event()
        self.order: list[str] = []

    def rollout(self, sandbox: str, token: str) -> str:
        self.come += 1
        if self.come == 3:
            self.three.set()
        if self.come == 4:
            self.four.set()
        return super().rollout(sandbox, token)

    async def note(self, rollout: str, notes: Sequence[Note]) -> None:
        self.order.append(rollout)
        await super().note(rollout, notes)


async def test_a_rollout_that_sends_long_bodies_at_once_has_one_turn_among_all(
    tmp_path: Path,
) -> None:
    book, aside = Gate("s1", "s2"), Aside()
    async with serving(book, tmp_path, aside) as relay:
        pid = await aside.call(BYTES_MAX + 1, os.getpid)
        os.kill(pid, signal.SIGSTOP)
        body = CHAT | {"x": "y" * BYTES_MAX}
        hostile = [asyncio.ensure_future(relay("s1").ask(one, body)) for one in range(3)]
        await book.three.wait()
        other = asyncio.ensure_future(relay("s2").ask(7, body))
        await book.four.wait()
        assert (await relay("s2").ask(8))[0] == 202  # a short one waits for none of them
        os.kill(pid, signal.SIGCONT)
        assert [(await one)[0] for one in (*hostile, other)] == [202] * 4
    first, second = "rollout of s1", "rollout of s2"
    assert book.order == [second, first, second, first, first]
