"""A pause that is longer than the timeout of OpenAI's own client, at its default settings.

On a node of its own, beside the churn and not touched by it: two agents ask their model once, through
`AsyncOpenAI()`. The trainer takes the requests and is gone, so the worker pauses both sandboxes. When
more time than the client's timeout has passed, another trainer comes. One agent gets its answer while
it stands still; the other is woken first, so that its client gives up and asks again. Each agent then
says in a second request what its client saw.

With a pause of less than 600 s the client's timeout is set to half of it: that is for trying this file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai_layer
from live_node import LiveNode
from skerry.sdk.client import AsyncClient
from skerry.spec.sandbox import State
from skerry.spec.worker import Scaffold
from skerry.worker import load_tasks
from soak.crew import TASK
from soak.judge import Judge

PAUSE_S = 620.0
DEFAULT_S = 600.0  # the client's own timeout
PAUSE_AFTER_S = 1.0
READY_WITHIN_S = 240.0
AGENT = """
import asyncio, json, os, sys
from openai import AsyncOpenAI
async def main():
    client = AsyncOpenAI(**json.loads(os.environ["OPTIONS"]))
    asked = [{"role": "user", "content": "2 + 2?"}]
    raw = await client.chat.completions.with_raw_response.create(model="policy", messages=asked)
    text = raw.parse().choices[0].message.content
    timeout = client.timeout if isinstance(client.timeout, (int, float)) else client.timeout.read
    seen = json.dumps({"text": text, "retries": raw.retries_taken, "timeout": timeout})
    answer = {"role": "assistant", "content": text}
    asked += [answer, {"role": "user", "content": seen}]
    await client.chat.completions.create(model="policy", messages=asked)
asyncio.run(main())
"""


class Standstill:
    """One such pause; what is not as promised is a violation, and `said` what came of it."""

    def __init__(self, judge: Judge, pause_s: float) -> None:
        self._judge, self._pause_s = judge, pause_s
        self._options = {} if pause_s > DEFAULT_S else {"timeout": pause_s / 2}
        self._samplings: dict[tuple[int, int], set[str]] = defaultdict(set)  # names of requests
        self._seen: dict[int, dict[str, Any]] = {}
        self.said = ""  # what came of it

    @contextlib.asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        """Runs beside a block that does much else; it is over, and nothing is left, after the block."""
        with tempfile.TemporaryDirectory(prefix="skerry-soak-", dir="/var/tmp") as place:
            store = f"{place}/store"
            if reason := await asyncio.to_thread(openai_layer.add, store, Path(place)):
                self._bad(reason)
                yield
                return
            node = LiveNode(store)
            try:
                await asyncio.to_thread(node.start)
                running = asyncio.create_task(self._run(node))
                try:
                    yield
                    await running
                finally:
                    running.cancel()
                    await asyncio.gather(running, return_exceptions=True)
            finally:  # not before: the census would see what the block makes
                left = await asyncio.to_thread(node.stop)
                self._judge.violations += [f"left by the standstill: {line}" for line in left]

    async def _run(self, node: LiveNode) -> None:
        try:
            async with node.client() as client:
                await self._on(client)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            self._bad(f"{error!r}: {node.tail()}")

    async def _on(self, client: AsyncClient) -> None:
        await client.images.debian("debian:12", "bookworm")
        job = await client.jobs.create("standstill")
        scaffold = Scaffold(
            argv=("/usr/bin/python3", "-c", AGENT),
            layers=(openai_layer.NAME,),
            env={"OPTIONS": json.dumps(self._options)},
        )
        tasks = load_tasks([TASK])
        await job.submit(tasks, scaffold=scaffold, n=2, pause_after=PAUSE_AFTER_S)
        async with asyncio.timeout(READY_WITHIN_S), job:
            async for request in job.requests("first"):
                self._takes(request)
                if len(self._samplings) == 2:
                    break
            places = [one.sandbox async for one in job.rollouts()]
            sandboxes = [await client.sandboxes.get(place) for place in places if place]
            for sandbox in sandboxes:
                await sandbox.wait(State.PAUSED, timeout=READY_WITHIN_S)
        await asyncio.sleep(self._pause_s)
        if {(await one.info()).state for one in sandboxes} != {State.PAUSED}:
            self._bad("a sandbox did not stand still until its trainer was back")
        async with asyncio.timeout(READY_WITHIN_S):
            await self._second_life(client, sandboxes[1])
        records = [one async for one in job.results()]
        await job.end()
        self._weigh([one.attempts for one in records])

    async def _second_life(self, client: AsyncClient, woken: Any) -> None:
        """The trainer is back, in a new process as far as anybody can see."""
        job = await client.jobs.attach("standstill")
        async with job:
            async for request in job.requests("second"):
                self._takes(request)
                if request.asked.ordinal == 0 and request.asked.number == 1:
                    await woken.run(["true"])  # it goes on, and its client finds that it is late
                    await asyncio.sleep(3.0)
                await request.answer(f"four {request.asked.number}")

    def _takes(self, request: Any) -> None:
        messages = request.body["messages"]
        self._samplings[request.asked.number, len(messages)].add(request.id)
        if len(messages) > 1:
            self._seen[request.asked.number] = json.loads(messages[-1]["content"])

    def _weigh(self, attempts: list[Any]) -> None:
        timeout = self._options.get("timeout", DEFAULT_S)
        for number in (0, 1):
            seen = self._seen.get(number, {})
            retries = seen.get("retries", -1)
            # An event loop may look at its timers before it reads what has come: then it asks again.
            fits = retries == 1 if number else retries in {0, 1}
            if not fits or seen["text"] != f"four {number}" or seen["timeout"] != timeout:
                self._bad(f"after {self._pause_s:g} s the client of agent {number} saw {seen}")
        twice = {key: names for key, names in self._samplings.items() if len(names) != 1}
        if twice or len(self._samplings) != 4:
            self._bad(f"requests were sampled otherwise than once: {dict(self._samplings)}")
        if any(attempts):
            self._bad(f"a rollout was begun again: {attempts}")
        tries = [self._seen.get(number, {}).get("retries") for number in (0, 1)]
        self.said = (
            f"a standstill of {self._pause_s:g} s: clients with a timeout of {timeout:g} s tried "
            f"again {tries} times, {sum(map(len, self._samplings.values()))} samplings of 4 requests"
        )

    def _bad(self, text: str) -> None:
        self._judge.violations.append(f"standstill: {text}"[:1500])
