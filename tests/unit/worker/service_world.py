"""A worker without a node: its real service and socket, agents that ask as a node's relay would.

The fake sandboxes outlive the service, as real ones outlive a killed worker. `Witness` sees what agents
do from outside of both.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
from job_world import CORE, FakeClient, FakeSandbox, OpenDownloads, task

from skerry.sdk.rollout_job import AsyncRolloutJob
from skerry.sdk.transport import Transport
from skerry.spec.command import RunResult
from skerry.spec.worker import Scaffold, Submit
from skerry.worker.service.http import listening
from skerry.worker.service.service import Service


class Witness:
    """What happened, and how often."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.sampled: Counter[str] = Counter()

    def note(self, nonce: str) -> None:
        self.seen[nonce] += 1


class World:
    """Everything that outlives a worker."""

    def __init__(self, top: Path, *, turns: int = 2) -> None:
        self.top = top
        self.turns = turns
        self.client = FakeClient()
        self.client.scaffold = self.agent
        self.witness = Witness()
        self.socket = top / "worker.sock"
        self.task = task(top)
        self.refused: list[tuple[int, str]] = []

    def submit(self, **more: Any) -> Submit:
        fields = {"job": "j", "tasks": (self.task,), "scaffold": Scaffold(argv=("agent",)), "n": 2}
        return Submit(**(fields | more))

    async def agent(self, sandbox: FakeSandbox, command: Any, **more: Any) -> RunResult:
        """Asks its model some times, posts what it was told, fixes the bug, ends."""
        if list(command)[:1] != ["agent"]:
            return await FakeSandbox.run(sandbox, command, **more)
        told, env = json.loads(more["stdin"]), more["env"]
        self.witness.note(f"begin {told['rollout']}")
        for turn in range(self.turns):
            answer = await self.ask(sandbox.id, env["OPENAI_API_KEY"], f"{told['rollout']} {turn}")
            if answer is None:
                return RunResult(exit_code=1)
            text = answer["choices"][0]["message"]["content"]
            self.witness.note(f"act {told['rollout']} {turn} {text}")
        sandbox.files.content[f"/testbed/{CORE}"] = b"VALUE = 2\n"
        return RunResult(exit_code=0)

    async def ask(self, sandbox: str, token: str, text: str) -> dict[str, Any] | None:
        """Asks as the node's relay does: until there is an answer, whatever happens to the worker."""
        name = secrets.token_hex(16)
        headers = {"X-Skerry-Sandbox": sandbox, "X-Skerry-Request": name, "X-Skerry-Waiting": name}
        headers["Authorization"] = f"Bearer {token}"
        body = {"model": "m", "messages": [{"role": "user", "content": text}]}
        while True:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                connector = aiohttp.UnixConnector(str(self.socket))
                async with aiohttp.ClientSession("http://worker", connector=connector) as session:
                    path = "/model/v1/chat/completions"
                    async with session.post(path, json=body, headers=headers) as reply:
                        if reply.status != 202:
                            self.refused.append((reply.status, await reply.text()))
                            return None
                    async with session.get("/model/wait", headers=headers) as reply:
                        answer = await reply.json()
                        if reply.status != 200:
                            self.refused.append((reply.status, json.dumps(answer)))
                            return None
                    handed = headers | {"X-Skerry-Handed": name}
                    async with session.post("/model/handed", headers=handed):
                        pass
                    found: dict[str, Any] = answer
                    return found
            await asyncio.sleep(0.005)

    @contextlib.asynccontextmanager
    async def worker(self) -> AsyncIterator[Service]:
        """A worker for a block; afterwards its state is as it was left."""
        service = Service(self.top / "state", self.client, OpenDownloads(self.top, {}))
        async with service.running(), listening(service, self.socket, grace_s=0.05):
            yield service

    @contextlib.asynccontextmanager
    async def trainer(self) -> AsyncIterator[AsyncRolloutJob]:
        """A trainer without memory."""
        transport = Transport("http://worker:1", socket_path=str(self.socket))
        try:
            yield AsyncRolloutJob(transport, "j")
        finally:
            await transport.close()

    async def sample(self, job: AsyncRolloutJob) -> None:
        """Answers all requests; another sampling gives another text."""
        async for request in job.requests():
            text = request.body["messages"][-1]["content"]
            self.witness.sampled[text] += 1
            await request.answer(f"{self.witness.sampled[text]}")


__all__ = ["World"]
