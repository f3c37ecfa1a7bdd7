"""The trainer of the demo, a process that is killed and started anew.

`python -m skerry.cli.preempt.trainer` has no memory: a line on its standard input names node, job and
witness, and what the model says. It attaches, answers whatever agents ask, and leaves when nothing will
be asked any more. When the standard input ends, whoever started it is gone, and so it goes too.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import uuid
from typing import Any

import aiohttp
import msgspec

from skerry.aio import Client
from skerry.cli.preempt.script import Script
from skerry.errors import Conflict
from skerry.sdk.client import AsyncClient

SAMPLING_S = (0.02, 0.3)  # how long the model thinks
NODE_WITHIN_S = 30.0  # it may be killed while this begins
TALK_TO_WITNESS = aiohttp.ClientTimeout(total=60)


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What a trainer is started with."""

    job: str
    witness: str
    script: Script
    url: str | None = None
    token: str | None = None
    state_dir: str | None = None
    run_dir: str | None = None


class Trainer:
    """One life of the trainer."""

    def __init__(self, orders: Orders, http: aiohttp.ClientSession) -> None:
        self._orders = orders
        self._http = http
        self._life = uuid.uuid4().hex

    async def tell(self, what: str, **fact: Any) -> None:
        """Returns when the witness has it."""
        body = {"what": what, "life": self._life, "note": uuid.uuid4().hex, **fact}
        async with self._http.post(self._orders.witness, json=body) as answer:
            answer.raise_for_status()

    async def train(self, client: Client) -> None:
        """Answers requests until none will ever come again."""
        job = await client.jobs.attach(self._orders.job)
        async with job, asyncio.TaskGroup() as group:
            await self.tell("ready")
            async for request in job.requests():
                group.create_task(self._answer(request))

    async def _answer(self, request: Any) -> None:
        messages = request.body["messages"]
        who = json.loads(messages[0]["content"])
        turn = sum(one["role"] == "assistant" for one in messages)
        at = {"rollout": who["rollout"], "turn": turn, "request": request.id}
        await self.tell("got", **at)
        sample = uuid.uuid4().hex
        await asyncio.sleep(random.uniform(*SAMPLING_S))  # noqa: S311 - no secret
        command = self._orders.script.command(request.asked.number, turn)
        try:
            taken = await request.answer(json.dumps({"sample": sample, "command": command}))
        except Conflict:  # what an earlier life sent just before its death was recorded meanwhile
            await self.tell("late", **at)
            return
        await self.tell("gave", sample=sample, first=taken.first and taken.needed, **at)


async def main(orders: Orders) -> None:
    """Lives once."""
    client = AsyncClient(
        orders.url,
        orders.token,
        state_dir=orders.state_dir,
        run_dir=orders.run_dir,
        owns=False,
        wait=NODE_WITHIN_S,
    )
    async with aiohttp.ClientSession(timeout=TALK_TO_WITNESS) as http, client:
        await Trainer(orders, http).train(client)


def leave_with_parent() -> None:
    """Ends this process when its standard input ends."""
    os.read(0, 1)  # not through sys.stdin: its lock would be held at the interpreter's end
    os._exit(1)


if __name__ == "__main__":
    given = msgspec.json.decode(sys.stdin.buffer.readline(), type=Orders)
    threading.Thread(target=leave_with_parent, daemon=True).start()
    asyncio.run(main(given))
