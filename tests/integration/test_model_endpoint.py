"""A scaffold with OpenAI's own client in a real sandbox: kills, pauses and attacks, and what it sees.

The worker is a stand-in with the real model's side (`worker_stand_in.py`): a process of its own with a
record on disk. The trainer is this test.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import openai_layer
from live_node import LiveNode
from skerry.sdk.client import AsyncClient
from skerry.sdk.sandbox import AsyncSandbox
from waiting import until

pytestmark = [pytest.mark.root, pytest.mark.slow]

PORT = 4321
STAND_IN = str(Path(__file__).parents[1] / "worker_stand_in.py")
CLIENT = Path(__file__).parents[1] / "model_client_inside.py"
ENV = {"OPENAI_BASE_URL": f"http://127.0.0.1:{PORT}/v1", "OPENAI_API_KEY": "key"}


class Place:
    """A node with a worker, and the trainer's side."""

    def __init__(self, node: LiveNode, client: AsyncClient, session: aiohttp.ClientSession) -> None:
        self.node, self.client, self._session = node, client, session

    @contextlib.asynccontextmanager
    async def sandbox(self, **options: Any) -> AsyncIterator[AsyncSandbox]:
        """A sandbox with an uplink and the client, destroyed afterwards."""
        options = {"uplinks": [{"port": PORT}], "detached": True, **options}
        sandbox = await self.client.sandboxes.create(layers=[openai_layer.NAME], **options)
        async with sandbox:
            await sandbox.files.write("/client.py", CLIENT.read_bytes())
            yield sandbox

    async def asks(
        self, sandbox: AsyncSandbox, kind: str = "chat", many: int = 1, **options: Any
    ) -> Any:
        """Starts the scaffold; `result` of what this returns is what its client saw."""
        argv = ["python3", "/client.py", kind, str(many), json.dumps(options)]
        return await sandbox.start(argv, env=ENV)

    async def worker(self, method: str, path: str, body: Any = None) -> Any:
        url = f"http://node/v1/workers/0/{path}"
        async with self._session.request(method, url, json=body) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def mode(self, **mode: bool) -> None:
        await self.worker("POST", "mode", mode)

    async def asked(self, sandbox: AsyncSandbox, count: int = 0) -> list[Any]:
        """Returns what the sandbox asked, once it is so much."""
        found: list[Any] = []

        async def there() -> bool:
            all_of_it = await self.worker("GET", "asked")
            found[:] = [one for one in all_of_it if one["sandbox"] == sandbox.id]
            return len(found) >= count

        await until(there, 60.0)
        return found

    async def give(self, sandbox: AsyncSandbox, ordinal: int, answer: Any) -> None:
        await self.worker("POST", f"answers/{ordinal}/{sandbox.id}", answer)

    async def pid(self) -> int:
        return int((await self.worker("GET", "health"))["pid"])


@pytest.fixture(scope="module")
def store(layer_store: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    if reason := openai_layer.add(layer_store, tmp_path_factory.mktemp("scratch")):
        pytest.skip(reason)
    return layer_store


@pytest.fixture(scope="module")
def node(store: str):
    command = json.dumps([sys.executable, STAND_IN])
    with LiveNode(store, options=f"[workers]\ncommand = {command}\n").running() as node:
        yield node


@pytest.fixture
async def place(node: LiveNode) -> AsyncIterator[Place]:
    connector = aiohttp.UnixConnector(node.url.removeprefix("unix://"))
    async with node.client() as client, aiohttp.ClientSession(connector=connector) as session:
        made = Place(node, client, session)
        await made.mode()
        yield made


async def seen(handle: Any) -> list[dict[str, Any]]:
    """Returns what the client inside saw."""
    result = await handle.wait()
    assert result.ok, result.stderr
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


WHOLE = {
    "choices": [
        {
            "message": {"content": "four"},
            "token_ids": [7, 8],
            "logprobs": {
                "content": [
                    {"token": "fo", "logprob": -0.5, "bytes": None, "top_logprobs": []},
                    {"token": "ur", "logprob": -0.25, "bytes": None, "top_logprobs": []},
                ]
            },
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}
TOOL = {"tool_calls": [{"function": {"name": "run", "arguments": {"command": "ls"}}}]}


@pytest.mark.parametrize(
    ("kind", "answer", "text"),
    [
        ("chat", {"content": "four"}, "four"),
        ("stream", WHOLE, ["four", [7, 8], 5]),
        ("tool", TOOL, ["run", {"command": "ls"}]),
        ("responses", {"content": "four"}, "four"),
        ("responses-stream", {"content": "four " * 3000}, "four " * 3000),
    ],
)
async def test_openais_own_client_understands_what_it_gets(
    place: Place, kind: str, answer: Any, text: Any
) -> None:
    async with place.sandbox() as sandbox:
        handle = await place.asks(sandbox, kind)
        await place.asked(sandbox, 1)
        await place.give(sandbox, 0, answer)
        (found,) = await seen(handle)
        assert found["text"] == text
        assert len(await place.asked(sandbox)) == 1


@pytest.mark.parametrize("kind", ["chat", "stream"])
async def test_a_worker_killed_ten_times_is_not_seen_inside(place: Place, kind: str) -> None:
    async with place.sandbox() as sandbox:
        handle = await place.asks(sandbox, kind)
        await place.asked(sandbox, 1)
        killed: set[int] = set()
        for _ in range(10):
            pid = await place.pid()
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)

            async def another() -> bool:
                return await place.pid() not in killed

            await until(another, 60.0)
        assert len(killed) == 10
        await place.give(sandbox, 0, {"content": "four"})
        (found,) = await seen(handle)
        assert found == {"text": "four", "retries": 0}
        assert len(await place.asked(sandbox)) == 1


async def test_a_killed_node_costs_one_retry_and_no_sampling(place: Place) -> None:
    async with place.sandbox() as sandbox:
        handle = await place.asks(sandbox)
        await place.asked(sandbox, 1)
        worker = await place.pid()
        await asyncio.to_thread(place.node.kill)
        await asyncio.to_thread(place.node.start)
        assert await place.pid() == worker  # it was taken over
        await place.give(sandbox, 0, {"content": "four"})
        (found,) = await seen(handle)
        assert found == {"text": "four", "retries": 1}
        assert len(await place.asked(sandbox)) == 1


@pytest.mark.parametrize(("kind", "retries"), [("blocking", 0), ("chat", 1)])
async def test_an_answer_is_there_before_the_sandbox_goes_on(
    place: Place, kind: str, retries: int
) -> None:
    """The client's timeout passes long before its sandbox does anything again.

    A socket that has something to read is not late. An event loop may look at its timers first: then
    its client comes again, and gets the same answer.
    """
    await place.mode(resume=True)
    async with place.sandbox() as sandbox:
        for number in range(4):
            handle = await place.asks(sandbox, kind, timeout=4, asked={"seed": number})
            await place.asked(sandbox, number + 1)
            await sandbox.pause()
            await asyncio.sleep(5)
            await place.give(sandbox, number, {"content": f"answer {number}"})
            (found,) = await seen(handle)
            assert found["text"] == f"answer {number}"
            assert found["retries"] <= retries
        assert len(await place.asked(sandbox)) == 4


async def test_a_client_that_timed_out_over_a_pause_gets_the_recorded_answer(
    place: Place,
) -> None:
    async with place.sandbox() as sandbox:
        handle = await place.asks(sandbox, timeout=4)
        await place.asked(sandbox, 1)
        await sandbox.pause()
        await asyncio.sleep(5)
        await sandbox.resume()  # before there is an answer: the client gives up, and comes again
        await asyncio.sleep(1)
        await place.give(sandbox, 0, {"content": "four"})
        (found,) = await seen(handle)
        assert found == {"text": "four", "retries": 1}
        assert len(await place.asked(sandbox)) == 1


async def test_equal_requests_at_once_are_separate_samplings(place: Place) -> None:
    await place.mode(echo=True)
    async with place.sandbox() as sandbox:
        found = await seen(await place.asks(sandbox, many=16))
        assert sorted(int(one["text"].split()[0]) for one in found) == list(range(16))


async def test_only_its_own_sandbox_reaches_an_uplink(place: Place) -> None:
    await place.mode(echo=True)
    async with place.sandbox() as one, place.sandbox(uplinks=[]) as other:
        forge = {"default_headers": {"X-Skerry-Sandbox": other.id}}
        (found,) = await seen(await place.asks(one, **forge))
        assert found["text"] == "0 of 1"
        assert len(await place.asked(one)) == 1
        assert await place.asked(other) == []
        (found,) = await seen(await place.asks(other, max_retries=0))
        assert found["error"] == "APIConnectionError"


async def test_a_thousand_connections_are_bounded_and_hurt_nobody_else(place: Place) -> None:
    await place.mode(echo=True)
    async with place.sandbox(nofile=4096) as hostile, place.sandbox() as other:
        flood = await place.asks(hostile, "flood", 1000)
        await until(lambda: connections(place, 100), 60.0)
        assert await connections(place, 0) <= 128
        began = time.monotonic()
        (found,) = await seen(await place.asks(other))
        assert found == {"text": "0 of 1", "retries": 0}, time.monotonic() - began
        await flood.kill()
        await flood.wait()
        await until(lambda: no_connections(place), 60.0)
        (found,) = await seen(await place.asks(hostile))
        assert found["text"] == "0 of 1"


async def connections(place: Place, at_least: int) -> int:
    """Returns how many connections uplinks have, if they are so many, else 0."""
    async with place._session.get("http://node/v1/metrics") as answer:
        text = await answer.text()
    for line in text.splitlines():
        if line.startswith("skerry_uplink_connections"):
            found = int(float(line.split()[-1]))
            return found if found >= at_least else 0
    raise AssertionError(text[:500])


async def no_connections(place: Place) -> bool:
    return await connections(place, 0) == 0
