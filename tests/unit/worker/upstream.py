"""A scripted OpenAI-compatible server on loopback."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Answer = Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]


class Upstream:
    """What it was asked, and how it answers."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        self.keys.append(request.headers.get("Authorization"))
        status, answer = self.answer(body)
        return web.json_response(answer, status=status)


@asynccontextmanager
async def upstream(answer: Answer) -> AsyncIterator[Upstream]:
    server = Upstream(answer)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield server
    finally:
        await runner.cleanup()


def say(text: str) -> tuple[int, dict[str, Any]]:
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}}]}


def call(*commands: str) -> tuple[int, dict[str, Any]]:
    calls = [
        {
            "id": f"c{n}",
            "type": "function",
            "function": {"name": "bash", "arguments": json.dumps({"command": command})},
        }
        for n, command in enumerate(commands)
    ]
    return 200, {"choices": [{"message": {"role": "assistant", "tool_calls": calls}}]}
