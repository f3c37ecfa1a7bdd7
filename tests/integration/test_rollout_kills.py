"""Harnesses, and nodes, that are killed at random: a witness outside hears what ran twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import pytest

from live_node import LiveNode
from rollout_harness import SAY, STEPS
from skerry.errors import SkerryError
from skerry.spec.trajectory import Outcome
from waiting import until

pytestmark = pytest.mark.root

PROGRAM = Path(__file__).parents[1] / "rollout_harness.py"
KILLS = 12


class Witness:
    """Hears over reverse forwards what runs inside, from the sandboxes with a label."""

    def __init__(self, node: LiveNode, key: str) -> None:
        self.node, self.key = node, key
        self.heard: dict[str, list[str]] = defaultdict(list)

    async def __aenter__(self) -> Witness:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]
        self._task = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._server.close()

    async def _serve(self, reader, writer) -> None:
        for line in (await reader.read()).decode().splitlines():
            step, nonce = line.split()
            self.heard[step].append(nonce)
        writer.close()

    async def _listen(self) -> None:
        """Keeps a forward into each sandbox; the harness, which may be killed, has none."""
        kept: dict[str, asyncio.Task] = {}
        try:
            while True:
                async with self.node.client() as client:
                    with contextlib.suppress(SkerryError):
                        while True:
                            for info in await client.sandboxes.list(labels={"of": self.key}):
                                if info.id not in kept or kept[info.id].done():
                                    kept[info.id] = asyncio.create_task(self._hold(info.id))
                            await asyncio.sleep(0.05)
                await asyncio.sleep(0.05)
        finally:
            for task in kept.values():
                task.cancel()
            await asyncio.gather(*kept.values(), return_exceptions=True)

    async def _hold(self, sandbox_id: str) -> None:
        async with self.node.client() as client:
            with contextlib.suppress(SkerryError):
                sandbox = await client.sandboxes.get(sandbox_id)
                async with sandbox.reverse_forward(7000, "127.0.0.1", self._port):
                    await sandbox.wait("stopped")


def begin(node: LiveNode, key: str, log: str, mode: str) -> subprocess.Popen:
    argv = [sys.executable, str(PROGRAM), node.url, key, log, mode]
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, cwd="/")


def lines(log: str) -> list[list]:
    whole = Path(log).read_text().splitlines() if Path(log).exists() else []
    return [json.loads(line) for line in whole]


async def driven(node: LiveNode, key: str, log: str, mode: str, kill) -> int:
    """Runs the harness to its end, killing it, or the node, when it has come a little further."""
    draw, killed, answers = random.Random(key), 0, 0
    while True:
        process = begin(node, key, log, mode)
        try:
            reached = len(lines(log))
            further = reached + max(1, answers + draw.randrange(-3, 3))
            await come(process, log, further if killed < KILLS else None)
            if process.poll() is not None:
                assert process.returncode == 0
                return killed
            await asyncio.sleep(draw.uniform(0.0, 0.03))
            await kill(process, draw)
            killed += 1
            answers = len({step for step, _ in lines(log)})
        finally:
            process.kill()
            await asyncio.to_thread(process.wait)


async def come(process: subprocess.Popen, log: str, further: int | None) -> None:
    """Returns when the harness has ended, or has so many answers."""

    def there() -> bool:
        return process.poll() is not None or (further is not None and len(lines(log)) >= further)

    await until(there, within_s=120)


async def kill_harness(process: subprocess.Popen, _draw: random.Random) -> None:
    process.send_signal(signal.SIGKILL)


async def check(witness: Witness, log: str, *, breaks: bool = False) -> None:
    told: dict[str, set[str]] = defaultdict(set)
    for step, answer in lines(log):
        told[step].add(json.dumps(answer))
    assert {step: len(answers) for step, answers in told.items() if len(answers) != 1} == {}
    commands = {f"main-{n}" for n in range(STEPS)} | {
        f"twin{t}-{n}" for t in "01" for n in range(3)
    }
    # What is told just when a forward breaks may be missed, or told again by the loop inside.
    assert commands <= told.keys()
    if not breaks:
        await until(lambda: commands <= witness.heard.keys())
    assert witness.heard.keys() <= commands
    for step, nonces in witness.heard.items():
        assert len(set(nonces) if breaks else nonces) == 1, (step, nonces)
        assert told[step] == {json.dumps(nonces[0] + "\n")}


async def test_harness_killed_at_random_operations_runs_nothing_twice(layer_store) -> None:
    with tempfile.TemporaryDirectory() as place, LiveNode(layer_store).running() as node:
        log, key = f"{place}/log", "kills/harness"
        async with Witness(node, key) as witness:
            killed = await driven(node, key, log, "all", kill_harness)
            assert killed >= KILLS // 2
            await check(witness, log)
            await clear(node, key)


async def test_node_and_harness_killed_at_random_run_nothing_twice(layer_store) -> None:
    with tempfile.TemporaryDirectory() as place, LiveNode(layer_store).running() as node:
        log, key = f"{place}/log", "kills/both"

        async def kill(process: subprocess.Popen, draw: random.Random) -> None:
            kinds = draw.choice(("node", "harness", "both"))
            if kinds != "harness":
                node.kill()
            if kinds != "node":
                process.kill()
            if kinds != "harness":
                await asyncio.to_thread(node.start)

        async with Witness(node, key) as witness:
            assert await driven(node, key, log, "commands", kill) >= KILLS // 4
            await check(witness, log, breaks=True)
            await clear(node, key)


async def clear(node: LiveNode, key: str) -> None:
    async with node.client() as client:
        for info in await client.sandboxes.list(labels={"of": key}):
            await (await client.sandboxes.get(info.id)).destroy()


async def test_command_under_way_at_the_kill_is_joined(layer_store) -> None:
    """Nobody hears it before the harness is dead, so it is under way when the next one asks."""
    with LiveNode(layer_store).running() as node:
        async with node.client() as client, client.rollout("kills/join") as rollout:
            sandbox = await rollout.create(memory="128MiB", pids=64, labels={"of": "kills/join"})
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", ONE, node.url, SAY, stdout=subprocess.PIPE
            )

            async def under_way() -> bool:
                told = [event async for event in client.trajectories.events(sandbox.id)]
                return told[-1].outcome is Outcome.RUNNING

            await until(under_way)
            process.kill()
            await process.wait()
            again = await asyncio.create_subprocess_exec(
                sys.executable, "-c", ONE, node.url, SAY, stdout=subprocess.PIPE
            )
            async with Witness(node, "kills/join") as witness:
                said = (await again.communicate())[0].decode()
            assert witness.heard == {"one": [said.strip()]}
            await sandbox.destroy()


ONE = """
import skerry, sys
with skerry.connect(sys.argv[1]) as client, client.rollout("kills/join") as rollout:
    sandbox = rollout.create(memory="128MiB", pids=64, labels={"of": "kills/join"})
    print(sandbox.run(["bash", "-c", sys.argv[2]], env={"STEP": "one"}).text)
"""
