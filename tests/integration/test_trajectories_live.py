"""The story of a real sandbox, over a kill of its node and its own end, with a node and without."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

from live_node import LiveNode
from skerry.spec.trajectory import Outcome
from waiting import until

pytestmark = pytest.mark.root

ESCAPES = "printf '\\033]0;owned\\007\\033[2J\\r\\nsound\\n'"


def skerry(node: LiveNode, *words: str, status: int = 0) -> str:
    """Runs the command line beside the node's directories; returns what it says."""
    argv = [sys.executable, "-m", "skerry.cli.main", "--state", node.state, "--run", node.run]
    done = subprocess.run([*argv, *words], capture_output=True, check=False, cwd="/")
    assert done.returncode == status, (done.returncode, done.stderr, done.stdout)
    return done.stdout.decode()


async def story(node: LiveNode) -> str:
    """Lets a sandbox live, its node be killed in the midst of a command, and the sandbox end."""
    async with node.client() as client:
        sandbox = await client.sandboxes.create(labels={"of": "test"}, detached=True, rollout="r/1")
        await sandbox.run("echo before > /root/file; cat /root/file")
        await sandbox.run(["sh", "-c", f"{ESCAPES}; exit 3"])
        running = await sandbox.start(["sh", "-c", "sleep 2; echo late"])
        node.kill()
        node.start()
        result = await running.wait()
        assert result.stdout == b"late\n"
        await sandbox.run("head -c 100000 /dev/zero | tr '\\0' x")
        await sandbox.pause()
        await sandbox.run("true")  # resumes it
        await sandbox.destroy()
        return sandbox.id


def commands(lines: list[dict]) -> list[dict]:
    return [line for line in lines if line["action"] == "run"]


def check_story(lines: list[dict], sandbox: str) -> None:
    assert [line["ordinal"] for line in lines] == list(range(len(lines)))
    assert {(line["sandbox"], line["rollout"]) for line in lines} == {(sandbox, "r/1")}
    assert (lines[0]["action"], lines[-1]["action"]) == ("create", "delete")
    first, second, late, long, last = commands(lines)
    assert {line["outcome"] for line in commands(lines)} == {"done"}
    assert first["result"]["stdout"]["text"] == "before\n"
    assert second["result"]["exit_code"] == 3
    assert "\x1b]0;owned" in second["result"]["stdout"]["text"]
    assert late["result"]["stdout"]["text"] == "late\n"  # asked before the kill, answered after it
    assert long["result"]["stdout_total"] == long["result"]["stdout"]["bytes"] == 100_000
    assert last["request"]["shell"] == "true"
    actions = [line["action"] for line in lines]
    assert "pause" in actions
    assert actions.index("pause") < actions.index("resume") < len(lines) - 1


async def test_story_of_a_sandbox_is_read_over_a_kill_of_its_node_and_after_its_end(layer_store):
    with LiveNode(layer_store).running() as node:
        sandbox = await story(node)
        async with node.client() as client:
            (info,) = await client.trajectories.list(rollout="r/1")
            assert (info.sandbox, info.state, info.complete) == (sandbox, "deleted", True)
            told = [event async for event in client.trajectories.events(sandbox)]
            assert {event.outcome for event in told} == {Outcome.DONE}
            check = await client.trajectories.verify(sandbox)
            assert (check.findings, check.events) == ((), len(told))
        lines = skerry(node, "trace", "show", sandbox, "--json").splitlines()
        check_story([json.loads(line) for line in lines], sandbox)
        shown = skerry(node, "trace", "show", "r/1")
        assert "\x1b" not in shown
        assert not [line for line in shown.splitlines() if line.startswith("sound")]
        assert sandbox in skerry(node, "trace", "ls", "--rollout", "r/1")


async def test_story_is_read_without_the_node_that_wrote_it(layer_store):
    with LiveNode(layer_store).running() as node:
        sandbox = await story(node)
        node.kill()
        # A node that was killed leaves its socket: without a node one has to say so.
        offline = ("--run", f"{node.run}/none")
        told = skerry(node, *offline, "trace", "show", sandbox, "--json")
        check_story([json.loads(line) for line in told.splitlines()], sandbox)
        assert "sound" in skerry(node, *offline, "trace", "verify", sandbox)
        skerry(node, *offline, "trace", "diff", sandbox, sandbox)
        (figures,) = map(
            json.loads, skerry(node, *offline, "trace", "stats", sandbox, "--json").splitlines()
        )
        assert (figures["commands"], figures["nonzero"], figures["failures"]) == (5, 1, {})
        assert figures["bytes_out"] > 100_000
        out = f"{node.state}/events.parquet"
        skerry(node, *offline, "trace", "export", sandbox, "-o", out)
        from pyarrow import parquet

        assert parquet.read_table(out).num_rows == len(told.splitlines())
        node.start()


async def test_reading_is_of_one_moment_while_a_sandbox_works(live_node, node_client):
    """Each page read under way is a beginning of what is read at the end."""
    sandbox = await node_client.sandboxes.create()
    read: list[list] = []

    async def work() -> None:
        for number in range(30):
            await sandbox.run(["echo", str(number)])

    worker = asyncio.create_task(work())

    async def enough() -> bool:
        read.append([e async for e in node_client.trajectories.events(sandbox.id)])
        return worker.done()

    await until(enough)
    await worker
    final = [e async for e in node_client.trajectories.events(sandbox.id)]
    assert len(final) == 31
    for part in read:
        done = [event for event in part if event.outcome is Outcome.DONE]
        assert done == final[: len(done)]
        assert len(part) - len(done) <= 1
    await sandbox.destroy()
