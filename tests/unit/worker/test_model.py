"""The model policy: the endpoint keeps the key, and the scaffold does what a model asks."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from skerry.errors import InvalidRequest, Unavailable
from skerry.worker.inside import program
from skerry.worker.policies import policy_named
from skerry.worker.policies.endpoint import Endpoint
from skerry.worker.policies.model import Model

Answer = Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]


class Upstream:
    """A scripted OpenAI-compatible server on loopback."""

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


def endpoint(url: str, seen: list[Any], *, requests_max: int = 5) -> Endpoint:
    return Endpoint(
        url,
        "sk-secret",
        lambda *parts: seen.append(parts),
        requests_max=requests_max,
        timeout_s=5,
        retry_pause_s=0.001,
    )


async def ask(port: int, path: str) -> tuple[int, bytes]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}{path}/chat/completions", json={"a": 1}) as answer,
    ):
        return answer.status, await answer.read()


async def test_a_request_is_forwarded_with_the_key_and_recorded() -> None:
    seen: list[Any] = []
    async with upstream(lambda body: say("hi")) as server:
        one = endpoint(server.url, seen)
        async with one.serve():
            status, body = await ask(one.port, one.path)
        one.check()
    assert (status, server.keys) == (200, ["Bearer sk-secret"])
    assert b"sk-secret" not in body
    assert [part[1] for part in seen] == [200]


@pytest.mark.parametrize("path", ["/v1", "/other/v1", ""])
async def test_without_the_rollouts_own_path_nothing_is_forwarded(path: str) -> None:
    async with upstream(lambda body: say("hi")) as server:
        one = endpoint(server.url, [])
        async with one.serve():
            status, _ = await ask(one.port, path)
    assert status == 404
    assert server.asked == []


async def test_more_requests_than_allowed_are_refused() -> None:
    async with upstream(lambda body: say("hi")) as server:
        one = endpoint(server.url, [], requests_max=2)
        async with one.serve():
            seen = [(await ask(one.port, one.path))[0] for _ in range(4)]
    assert seen == [200, 200, 429, 429]


@pytest.mark.parametrize(("status", "tries"), [(500, 3), (429, 3), (401, 1), (403, 1), (404, 1)])
async def test_a_failing_model_server_is_the_platforms_fault(status: int, tries: int) -> None:
    async with upstream(lambda body: (status, {})) as server:
        one = endpoint(server.url, [])
        async with one.serve():
            assert (await ask(one.port, one.path))[0] == 502
    assert len(server.asked) == tries
    with pytest.raises(Unavailable, match=str(status)):
        one.check()


async def test_a_request_that_is_itself_at_fault_comes_back_to_the_agent() -> None:
    async with upstream(lambda body: (400, {"error": "too long"})) as server:
        one = endpoint(server.url, [])
        async with one.serve():
            assert (await ask(one.port, one.path))[0] == 400
    one.check()


async def test_an_unreachable_model_server_is_the_platforms_fault() -> None:
    one = endpoint("http://127.0.0.1:1/v1", [])
    async with one.serve():
        assert (await ask(one.port, one.path))[0] == 502
    with pytest.raises(Unavailable):
        one.check()


async def scaffold(url: str, folder: Path, **more: Any) -> str:
    settings = {
        "url": url, "model": "m", "options": {}, "system": "s", "prompt": "p", "turns": 5,
        "seconds": 20, "request_timeout_s": 5, "command_timeout_s": 5, "output_limit": 400,
    } | more  # fmt: skip
    (folder / "agent.py").write_text(program("agent"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", str(folder / "agent.py"), cwd=folder,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await process.communicate(json.dumps(settings).encode())
    return out.decode()


def script(*steps: tuple[int, dict[str, Any]]) -> Answer:
    left = list(steps)
    return lambda body: left.pop(0) if left else say("done")


async def test_commands_run_and_their_output_goes_back(tmp_path: Path) -> None:
    async with upstream(script(call("echo one; exit 3", "pwd"), say("finished"))) as server:
        out = await scaffold(server.url, tmp_path)
    assert "done: finished" in out
    tools = [one for one in server.asked[1]["messages"] if one["role"] == "tool"]
    assert tools[0]["content"] == "one\n\n[exit status 3]"
    assert str(tmp_path) in tools[1]["content"]
    assert [one["tool_call_id"] for one in tools] == ["c0", "c1"]


async def test_floods_hangs_and_nonsense_are_answered(tmp_path: Path) -> None:
    odd = {"id": "x", "function": {"name": "bash", "arguments": "no json"}}
    other = {"id": "y", "function": {"name": "python", "arguments": "{}"}}
    message = {"role": "assistant", "tool_calls": [odd, other]}
    steps = script(
        call("yes | head -c 100000"),
        call("sleep 60 & sleep 60"),
        (200, {"choices": [{"message": message}]}),
    )
    async with upstream(steps) as server:
        await scaffold(server.url, tmp_path, command_timeout_s=0.2)
    flood, hang, bad, unknown = (
        one["content"] for one in server.asked[-1]["messages"] if one["role"] == "tool"
    )
    assert "bytes left out" in flood
    assert len(flood) < 600
    assert "stopped after" in hang
    assert "JSON" in bad
    assert "no tool" in unknown


async def test_a_model_that_never_stops_is_stopped(tmp_path: Path) -> None:
    async with upstream(lambda body: call("true")) as server:
        out = await scaffold(server.url, tmp_path, turns=3)
    assert "out of turns" in out
    assert len(server.asked) == 3


def test_what_is_no_policy_or_no_address_is_refused() -> None:
    for name in ("golden", "cheat:none", "gold:x"):
        with pytest.raises(InvalidRequest):
            policy_named(name)
    with pytest.raises(InvalidRequest):
        Model("ftp://x")
