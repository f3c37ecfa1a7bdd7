"""Sessions of a real node with real containers: from the SDK's call to what is left behind."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal

import pytest

from live_node import LiveNode
from skerry.errors import Conflict, InvalidRequest, NotFound, Overloaded
from skerry.spec.session import SESSIONS_MAX

pytestmark = pytest.mark.root
SPEC = {"image": "debian:12", "cpu": 1, "memory": "256MiB", "pids": 128}


@pytest.fixture
async def sandbox(node_client):
    async with await node_client.sandboxes.create("container", **SPEC) as sandbox:
        yield sandbox


@pytest.mark.parametrize("shell", ["bash", "dash", "/bin/sh"])
async def test_state_persists_between_commands(sandbox, shell):
    async with await sandbox.session(shell=shell, cwd="/usr", env={"A": "1"}) as session:
        first = await session.run("cd /tmp; export B=2; f() { echo hi; }; echo out; echo err >&2")
        assert (first.exit_code, first.stdout, first.stderr) == (0, b"out\n", b"err\n")
        assert (await session.run("pwd; f; echo $A$B")).text == "/tmp\nhi\n12\n"
        gone = await session.run("exit 3")
        assert (gone.exit_code, gone.session_reset) == (3, False)
        assert (await session.run("f; cat <<E\nx\nE")).text == "hi\nx\n"
        assert first.ended >= first.started > 1_600_000_000
    with pytest.raises(NotFound):
        await session.run("true")
    await session.close()  # again


@pytest.mark.parametrize("shell", ["bash", "dash"])
async def test_session_needs_no_dev_null(sandbox, shell):
    """Inside it may be removed, or made a file of: the next command is run, and has no input."""
    async with await sandbox.session(shell=shell) as session:
        for change in ("rm /dev/null", "echo x > /dev/null", "rm /dev/null; mkdir /dev/null"):
            assert (await session.run(f"A=1; {change}")).exit_code == 0
            after = await session.run("cat; echo $A")
            assert (after.text, after.error_text, after.exit_code) == ("1\n", "", 0)


async def test_a_timeout_ends_the_command_and_not_the_session(sandbox):
    async with await sandbox.session() as session:
        await session.run("A=1; sleep 1000 &")
        late = await session.run("sleep 1001; echo never", timeout=0.3)
        assert (late.timed_out, late.signal, late.stdout, late.session_reset) == (
            True,
            9,
            b"",
            False,
        )
        silent = await session.run("echo talks; sleep 1002", no_output_timeout=0.3)
        assert (silent.timed_out, silent.no_output, silent.text) == (True, True, "talks\n")
        lost = await session.run("trap '' 62; while :; do :; done", timeout=0.2)
        assert (lost.timed_out, lost.session_reset) == (True, True)
        left = await session.run("for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; done")
        assert "sleep 1000" in left.text
        assert "sleep 1001" not in left.text
        assert "sleep 1002" not in left.text


async def test_commands_of_one_session_have_their_turns_in_order(sandbox):
    async with await sandbox.session() as session:
        runs = [
            asyncio.create_task(session.run(f"sleep 0.05; n=$((n + 1)); echo {i} $n"))
            for i in range(6)
        ]
        results = [(await run).text for run in runs]
        assert results == [f"{i} {i + 1}\n" for i in range(6)]
        op = secrets.token_hex(16)
        slow = asyncio.create_task(session.run("sleep 30", op_id=op))
        await running_in(session, op)
        waiting = [asyncio.create_task(session.run("true")) for _ in range(40)]
        refused = 0
        for run in waiting:
            done, _ = await asyncio.wait((run,), timeout=0.2)
            if done and isinstance(run.exception(), Overloaded):
                refused += 1
        assert refused == 8
        waiting[0].cancel()
        await asyncio.sleep(0.2)
        await sandbox.cancel(op)
        assert (await slow).cancelled
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert sum(getattr(end, "exit_code", None) == 0 for end in ends) == 31


async def test_a_command_is_run_once_streamed_signalled_and_cancelled(sandbox):
    async with await sandbox.session("one") as session:
        op = secrets.token_hex(16)
        first = await session.run("echo x >>/tmp/once; wc -l </tmp/once", op_id=op)
        again = await session.run("echo x >>/tmp/once; wc -l </tmp/once", op_id=op)
        assert first.text == again.text == "1\n"
        with pytest.raises(Conflict):
            await session.run("other", op_id=op)
        seen = [
            event async for event in session.stream("echo a; echo b >&2; head -c 300000 /dev/zero")
        ]
        assert sum(len(event.stdout or b"") for event in seen) == 300_002
        assert b"".join(event.stderr or b"" for event in seen) == b"b\n"
        op = secrets.token_hex(16)
        running = asyncio.create_task(
            session.run("sh -c 'trap \"exit 5\" TERM; while :; do sleep 0.05; done'", op_id=op)
        )
        await running_in(session, op)
        await asyncio.sleep(0.3)
        await sandbox.signal(op, 15)
        assert (await running).exit_code == 5


async def test_requests_that_make_no_sense_are_refused(sandbox):
    session = await sandbox.session("a", env={"X": "1"})
    assert (await sandbox.session("a", env={"X": "1"})).id == session.id
    with pytest.raises(Conflict):
        await sandbox.session("a", env={"X": "2"})
    for options in (
        {"shell": "/bin/zsh"},
        {"shell": "python"},
        {"cwd": "/no"},
        {"user": "nobody-x"},
    ):
        with pytest.raises(InvalidRequest):
            await sandbox.session(**options)
    for _ in range(SESSIONS_MAX - 1):
        await sandbox.session()
    with pytest.raises(Overloaded):
        await sandbox.session()
    assert len(await sandbox.sessions()) == SESSIONS_MAX


@pytest.fixture
def own_node(layer_store):
    with LiveNode(layer_store).running() as node:
        yield node


async def running_in(session, op):
    """Returns when this command has its turn."""
    while (await session.info()).running != op:  # noqa: ASYNC110 - told by the node alone
        await asyncio.sleep(0.02)


async def test_a_session_survives_the_kill_of_its_node_and_launcher(own_node):
    """With a command running; its result, the state and the numbers go on."""
    async with own_node.client() as client:
        sandbox = await client.sandboxes.create("container", **SPEC, detached=True)
        session = await sandbox.session("kept")
        await session.run("cd /tmp; A=1")
        op = secrets.token_hex(16)
        script = "echo begun; sleep 3; echo $A; exit 7"
        running = asyncio.create_task(session.run(script, op_id=op))
        await running_in(session, op)
        await asyncio.sleep(0.3)
        os.kill(own_node.launcher(), signal.SIGKILL)
        own_node.kill()
        own_node.start()
        result = await running
        assert (result.exit_code, result.text) == (7, "begun\n1\n")
        assert (await session.run("pwd; echo $A")).text == "/tmp\n1\n"
        assert [known.id for known in await sandbox.sessions()] == ["kept"]
        own_node.kill()
        own_node.start()
        assert (await session.run("pwd; echo $A")).text == "/tmp\n1\n"
        await session.close()
        await sandbox.destroy()


async def test_an_idle_session_is_no_activity_and_a_running_command_is(node_client):
    spec = SPEC | {"idle_timeout": 1.0}
    async with await node_client.sandboxes.create("container", **spec) as sandbox:
        session = await sandbox.session()
        assert (await session.run("sleep 2; echo ran")).text == "ran\n"
        assert (await sandbox.wait(timeout=20)).reason is not None
