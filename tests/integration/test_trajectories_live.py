"""The story of a real sandbox, over a kill of its node and its own end, with a node and without."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from live_node import LiveNode
from skerry.spec.trajectory import Outcome
from waiting import until

pytestmark = pytest.mark.root

SKERRY = (sys.executable, "-m", "skerry.cli.main")
LONG = b"x" * 100_000
ESCAPES = "printf '\\033]0;owned\\007\\033[2J\\r\\nsound\\n'"


def skerry(node: LiveNode, *words: str, status: int = 0) -> str:
    """Runs the command line beside the node's directories; returns what it says."""
    argv = [*SKERRY, "--state", node.state, "--run", node.run]
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
        await sandbox.files.write("/root/long", LONG)
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
        node.kill()  # which leaves its socket; none is started to read
        told = skerry(node, "trace", "show", sandbox, "--json")
        check_story([json.loads(line) for line in told.splitlines()], sandbox)
        assert "sound" in skerry(node, "trace", "verify", sandbox)
        skerry(node, "trace", "diff", sandbox, sandbox)
        (figures,) = map(json.loads, skerry(node, "trace", "stats", sandbox, "--json").splitlines())
        assert (figures["commands"], figures["nonzero"], figures["failures"]) == (5, 1, {})
        assert figures["bytes_out"] > 100_000
        out = f"{node.state}/events.parquet"
        skerry(node, "trace", "export", sandbox, "-o", out)
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


def findings(node: LiveNode, *words: str, status: int) -> set[str]:
    told = skerry(node, "trace", "verify", "--json", *words, status=status)
    return {one["kind"] for line in told.splitlines() for one in json.loads(line)["findings"]}


async def test_story_is_read_from_the_store_alone_and_what_was_changed_is_named(
    tmp_path, layer_store
):
    """Segments ship while the node lives; its disk is lost, then somebody changes the store."""
    with LiveNode(layer_store, options="[trajectory]\nseal_after_s = 0.3").running() as node:
        sandbox = await story(node)
        name = Path(node.state, "name").read_text().strip()
        shipped = Path(layer_store, "trajectories", name)
        kept = tmp_path / "store"

        def whole() -> bool:
            """Whether the store has everything up to the end of the sandbox."""
            told = subprocess.run(
                [*SKERRY, "trace", "show", sandbox, "--json", "--store", layer_store],
                capture_output=True,
                check=False,
                cwd="/",
            )
            lines = told.stdout.decode().splitlines()
            return bool(lines) and json.loads(lines[-1])["action"] == "delete"

        await until(lambda: shipped.is_dir() and whole(), 60)
        shutil.copytree(Path(layer_store, "trajectories"), kept / "trajectories")
    store = ("--store", str(kept))
    told = skerry(node, "trace", "show", sandbox, "--json", *store)
    lines = [json.loads(line) for line in told.splitlines()]
    check_story(lines, sandbox)
    assert findings(node, sandbox, *store, status=0) == set()
    assert findings(node, *store, status=0) == set()
    (write,) = (line for line in lines if line["action"] == "file.write")
    long = write["request"]["content"]["blob"]
    contents = tmp_path / "contents"
    skerry(node, "trace", "export", sandbox, "-o", "-", "--contents", str(contents), *store)
    assert (contents / long).read_bytes() == LONG
    blob = kept / "trajectories" / "blobs" / long
    blob.chmod(0o600)
    blob.write_bytes(b"y" * 100_000)
    assert findings(node, sandbox, *store, status=1) == {"changed_blob"}
    blob.unlink()
    assert findings(node, sandbox, *store, status=1) == {"missing_blob"}
    first = min((kept / "trajectories" / name).glob("*.seg"))
    data = first.read_bytes()
    first.chmod(0o600)
    first.write_bytes(data.replace(b"/root/file", b"/root/evil", 1))
    assert {"damaged", "not_anchored"} <= findings(node, sandbox, *store, status=1)
    first.unlink()
    assert "truncated" in findings(node, sandbox, *store, status=1)
