"""Commands in the background on a real node: handles from any client, over kills of the node."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import signal
from pathlib import Path

import pytest

import skerry
from live_node import LiveNode
from skerry.errors import Conflict, NotFound

pytestmark = pytest.mark.root


@pytest.fixture
def node(layer_store):
    """A node of its own; the census after its end is part of the test."""
    with LiveNode(layer_store, options="lease_s = 5").running() as made:
        yield made


@pytest.fixture
async def sandbox(node_client):
    async with await node_client.sandboxes.create() as made:
        yield made


async def collect(command, **options):
    """Returns what a command wrote to stdout and stderr, and its result."""
    out, err = bytearray(), bytearray()
    async for event in command.output(**options):
        out += event.stdout or b""
        err += event.stderr or b""
        if event.result is not None:
            return bytes(out), bytes(err), event.result
    raise AssertionError("no result")


async def test_merged_output_is_one_stream_in_order(sandbox):
    line = "for i in 1 2 3; do echo out$i; echo err$i >&2; done; nosuchprogram; exit 4"
    result = await sandbox.run(line, merge_stderr=True)
    text = result.text.splitlines()
    assert text[:6] == ["out1", "err1", "out2", "err2", "out3", "err3"]
    assert "nosuchprogram" in text[6]
    assert (result.exit_code, result.stderr, result.stderr_total) == (4, b"", 0)
    # What is opened anew by its name is the same stream, and a program needs no shell for it.
    again = await sandbox.run(
        ["sh", "-c", "echo a >/dev/stderr; echo b >/dev/stdout"], merge_stderr=True
    )
    assert (again.stdout, again.stderr) == (b"a\nb\n", b"")
    command = await sandbox.start("echo x >&2; cat >&2", merge_stderr=True, stdin=b"y\n")
    assert (await collect(command))[:2] == (b"x\ny\n", b"")


# --- handles


async def test_handle_starts_polls_waits_and_is_found_again(live_node, sandbox):
    """(report 23)"""
    command = await sandbox.start("echo out; echo err >&2; sleep 0.5; exit 5")
    assert await command.poll() is None
    with pytest.raises(TimeoutError, match="still runs"):
        await command.wait(timeout=0.05)
    async with live_node.client() as other:
        again = await (await other.sandboxes.get(sandbox.id)).command(command.op_id)
        assert again.status.state == "running"
        result = await again.wait()
    assert (result.exit_code, result.stdout, result.stderr) == (5, b"out\n", b"err\n")
    assert (await command.poll()).exit_code == 5
    listed = await sandbox.commands()
    assert [one.op_id for one in listed] == [command.op_id]
    assert listed[0].status.state == "done"
    with pytest.raises(NotFound):
        await sandbox.command("0" * 32)


async def test_start_error_is_there_when_start_returns(sandbox):
    command = await sandbox.start(["no-such-program"])
    assert command.status.state == "done"
    assert (await command.poll()).start_error.startswith("exec: No such file")


async def test_background_job_of_a_shell_returns_the_real_status_when_asked(sandbox):
    """(report 23)"""
    for status in (0, 1, 77):
        command = await sandbox.start(f"sleep 0.05; exit {status}")
        assert (await command.wait(timeout=20)).exit_code == status
    gone = await sandbox.start("kill -9 $$")
    assert (await gone.wait(timeout=20)).signal == 9


async def test_kill_ends_every_descendant(sandbox):
    """(report 2) (report 3)"""
    mark = f"31{secrets.randbelow(10**6)}"
    line = f"setsid sleep {mark} & (sleep {mark} &) ; sleep {mark} | sleep {mark}"
    command = await sandbox.start(line)
    for _ in range(100):
        if (await sandbox.run(f"pgrep -fc '^sleep {mark}'")).text.strip() == "4":
            break
        await asyncio.sleep(0.05)
    await command.kill()
    result = await command.wait(timeout=20)
    assert result.cancelled
    assert (await sandbox.run(f"pgrep -fc '^sleep {mark}'")).text.strip() == "0"
    await command.kill()  # harmless afterwards


async def test_signal_reaches_the_command(sandbox):
    command = await sandbox.start(
        "trap 'echo got; exit 3' USR1; echo ready; while :; do sleep 0.05; done"
    )
    async for event in command.output():
        if event.stdout == b"ready\n":
            await command.signal(signal.SIGUSR1)
    result = await command.wait(timeout=20)
    assert (result.exit_code, result.stdout) == (3, b"ready\ngot\n")


async def test_input_is_sent_and_closed(sandbox):
    """(report 27)"""
    data = os.urandom(3 << 20)
    command = await sandbox.start("sha256sum; cat", interactive=True)
    reading = asyncio.create_task(collect(command))
    await command.send(data[:100])
    for at in range(100, len(data), 777_777):
        await command.send(data[at : at + 777_777])
    await command.close_stdin()
    await command.close_stdin()
    out, _, result = await reading
    assert out.split()[0].decode() == hashlib.sha256(data).hexdigest()
    assert result.exit_code == 0
    with pytest.raises(Conflict, match="ended"):
        await command.send(b"late")


async def test_closed_pipe_is_reported_to_who_sends(sandbox):
    """(report 27)"""
    command = await sandbox.start("exec <&-; sleep 30", interactive=True)
    with pytest.raises(Conflict, match="input"):
        await command.send(bytes(5_000_000))
    await command.kill()


async def test_command_without_input_never_waits_for_it(sandbox):
    """(report 4) (report 25) (report 26)"""
    command = await sandbox.start("cat; readlink /proc/self/fd/0")
    assert (await command.wait(timeout=20)).stdout == b"/dev/null\n"
    waiting = await sandbox.start("cat", interactive=True, timeout=0.3)
    result = await waiting.wait(timeout=20)
    assert result.timed_out


async def test_two_readers_see_the_same_live_output(sandbox):
    """(report 17) (report 18)"""
    command = await sandbox.start(
        "for i in 1 2 3 4 5; do seq 20000; seq 20000 >&2; sleep 0.05; done"
    )
    expected = "".join(f"{n}\n" for n in range(1, 20_001)).encode() * 5
    for out, err, result in await asyncio.gather(collect(command), collect(command)):
        assert (out, err) == (expected, expected)
        assert result.exit_code == 0


async def test_output_comes_before_the_end(sandbox):
    """(report 17)"""
    command = await sandbox.start("echo first; cat", interactive=True)
    async for event in command.output():
        if event.stdout == b"first\n":  # the command waits for us: it cannot have ended
            await command.close_stdin()
    assert (await command.poll()).exit_code == 0


async def test_silence_is_ended_and_told_from_a_timeout(sandbox):
    """(report 22)"""
    quiet = await sandbox.run("echo x; sleep 60", no_output_timeout=0.3, timeout=50)
    assert (quiet.timed_out, quiet.no_output, quiet.stdout) == (True, True, b"x\n")
    slow = await sandbox.run("sleep 60", no_output_timeout=50, timeout=0.3)
    assert (slow.timed_out, slow.no_output) == (True, False)
    busy = await sandbox.run(
        "for i in 1 2 3 4 5 6; do echo $i; sleep 0.2; done", no_output_timeout=0.8
    )
    assert busy.exit_code == 0


async def test_reader_that_stands_still_does_not_delay_a_cancel(live_node, sandbox):
    command = await sandbox.start("exec head -c 50000000 /dev/zero")
    reader, writer = await asyncio.open_unix_connection(
        live_node.url.removeprefix("unix://"), limit=1024
    )
    path = f"/v1/sandboxes/{sandbox.id}/ops/{command.op_id}/output"
    writer.write(f"GET {path} HTTP/1.1\r\nhost: node\r\n\r\n".encode())
    await reader.readexactly(20)  # and then nothing more is read
    for _ in range(100):
        before = (await command.refresh()).stdout_total
        await asyncio.sleep(0.1)
        if before and (await command.refresh()).stdout_total == before:
            break
    assert command.status.state == "running"
    await command.kill()
    assert (await command.wait(timeout=20)).cancelled
    writer.close()


async def test_inline_input_takes_no_memory_of_the_node_while_it_waits(live_node, sandbox):
    def resident():
        status = Path(f"/proc/{live_node.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    before = resident()
    data = os.urandom(60 << 20)
    commands = [await sandbox.start("sleep 1; sha256sum", stdin=data) for _ in range(3)]
    assert resident() - before < len(data)
    for command in commands:
        result = await command.wait(timeout=60)
        assert result.text.split()[0] == hashlib.sha256(data).hexdigest()


# --- kills of the node


async def test_node_dies_in_the_middle_of_inline_input(node):
    data = os.urandom(20 << 20)
    async with node.client() as client:
        sandbox = await client.sandboxes.create()
        op = secrets.token_hex(16)
        running = asyncio.create_task(
            sandbox.run("sleep 0.3; sha256sum; echo done", stdin=data, op_id=op)
        )
        for pause in (0.15, 0.3, 0.1):
            await asyncio.sleep(pause)
            node.kill()
            node.start()
        result = await running
        assert result.text.split() == [hashlib.sha256(data).hexdigest(), "-", "done"]
        await sandbox.destroy()


async def test_node_dies_in_the_middle_of_sent_input(node):
    pieces = [os.urandom(300_000) for _ in range(12)]
    async with node.client() as client:
        sandbox = await client.sandboxes.create()
        command = await sandbox.start("sha256sum; wc -c < /dev/null", interactive=True)
        for index, piece in enumerate(pieces):
            sending = asyncio.create_task(command.send(piece))
            if index in (3, 7):
                await asyncio.sleep(0.002)
                node.kill()
                node.start()
            await sending
        await command.close_stdin()
        result = await command.wait(timeout=30)
        assert result.text.split()[0] == hashlib.sha256(b"".join(pieces)).hexdigest()
        await sandbox.destroy()


async def test_node_dies_in_the_middle_of_output_and_the_reader_goes_on(node):
    """(report 62)"""
    line = (
        "i=0; while [ $i -lt 60 ]; do seq $((i*500)) $((i*500+499)); i=$((i+1)); sleep 0.05; done"
    )
    expected = "".join(f"{n}\n" for n in range(30_000)).encode()
    async with node.client() as client:
        sandbox = await client.sandboxes.create()
        command = await sandbox.start(line)
        reading = asyncio.create_task(collect(command))
        for _ in range(3):
            await asyncio.sleep(0.5)
            node.kill()
            node.start()
        out, _, result = await reading
        assert out == expected
        assert result.exit_code == 0
    async with node.client() as other:  # the same from another client, long after its end
        again = await (await other.sandboxes.get(sandbox.id)).command(command.op_id)
        assert (await again.wait()).stdout == expected
        assert (await collect(again))[0] == expected
        await (await other.sandboxes.get(sandbox.id)).destroy()


async def test_handle_works_after_client_and_node_have_gone(node):
    """(report 62)"""
    async with node.client() as client:
        sandbox = await client.sandboxes.create(detached=True)
        command = await sandbox.start("read line; echo got $line", interactive=True)
    node.kill()
    node.start()
    async with node.client() as client:
        again = await (await client.sandboxes.get(sandbox.id)).command(command.op_id)
        assert again.status.state == "running"
        await again.send("hello\n")
        assert (await again.wait(timeout=20)).stdout == b"got hello\n"
        await (await client.sandboxes.get(sandbox.id)).destroy()


# --- many at once


async def test_two_hundred_commands_at_once_from_one_client(sandbox):
    """(report 69)"""
    commands = [asyncio.create_task(sandbox.run("sleep 0.5; echo $$")) for _ in range(200)]
    results = await asyncio.gather(*commands)
    assert all(result.exit_code == 0 for result in results)
    assert len({result.stdout for result in results}) == 200


def test_client_is_used_from_several_loops_in_turn(live_node):
    """(report 70)"""
    client = live_node.client()

    async def begin():
        await client.__aenter__()
        sandbox = await client.sandboxes.create()
        return sandbox, await sandbox.start("cat", interactive=True)

    sandbox, command = asyncio.run(begin())

    async def use(n):
        await asyncio.gather(command.send(f"{n}\n"), sandbox.run("true"))
        return os.listdir("/proc/self/fd")

    counts = [len(asyncio.run(use(n))) for n in range(12)]
    assert max(counts[4:]) <= max(counts[:4])  # connections do not leak

    async def end():
        await command.close_stdin()
        result = await command.wait(timeout=20)
        await sandbox.destroy()
        await client.__aexit__(None, None, None)
        return result

    assert asyncio.run(end()).stdout == "".join(f"{n}\n" for n in range(12)).encode()


def test_everything_works_without_async_too(live_node):
    with skerry.connect(live_node.url) as client, client.sandboxes.create() as sandbox:
        command = sandbox.start("read x; echo got $x; exit 4", interactive=True)
        assert command.poll() is None
        command.send("word\n")
        pieces = [event.stdout for event in command.output() if event.stdout]
        assert b"".join(pieces) == b"got word\n"
        again = sandbox.command(command.op_id)
        assert again.wait().exit_code == 4
        assert [one.op_id for one in sandbox.commands()] == [command.op_id]
        terminal = skerry.Terminal(30, 90)
        shell = sandbox.start(["sh"], terminal=terminal, interactive=True)
        with shell.attach(terminal=terminal) as live:
            live.send(b"stty size; exit 2\n")
            text = b"".join(event.stdout or b"" for event in live)
        assert b"30 90" in text
        assert shell.wait().exit_code == 2


async def test_time_in_which_a_sandbox_is_paused_counts_for_no_timeout(sandbox):
    commands = [
        await sandbox.start("sleep 1; echo done", timeout=4),
        await sandbox.start("sleep 1; echo done", no_output_timeout=4),
    ]
    await sandbox.pause()
    await asyncio.sleep(6)
    await sandbox.resume()
    for command in commands:
        result = await command.wait(timeout=30)
        assert (result.timed_out, result.stdout) == (False, b"done\n")
    late = await sandbox.start("sleep 60", timeout=1.5)  # and afterwards the clock goes on
    assert (await late.wait(timeout=30)).timed_out


async def test_paused_sandbox_holds_its_timeouts_over_a_kill_of_the_node(node):
    async with node.client() as client:
        sandbox = await client.sandboxes.create()
        command = await sandbox.start("sleep 1; echo done", timeout=4)
        await sandbox.pause()
        node.kill()
        node.start()
        await asyncio.sleep(6)
        assert (await sandbox.info()).state == "paused"
        await sandbox.resume()
        result = await command.wait(timeout=30)
        assert (result.timed_out, result.stdout) == (False, b"done\n")
        await sandbox.destroy()


async def test_attached_command_that_stops_reading_ends_as_it_would_in_a_pipe(sandbox):
    async with sandbox.attach("head -n 1; exec <&-; sleep 0.5; exit 6") as live:

        async def flood():
            while True:
                await live.send(b"y\n" * 30_000)

        feeding = asyncio.create_task(flood())
        events = [event async for event in live]
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
    assert events[-1].result.exit_code == 6
    assert b"".join(event.stdout or b"" for event in events) == b"y\n"


# --- where they begin


async def test_relative_directory_is_below_that_of_the_sandbox(node_client):
    async with await node_client.sandboxes.create(workdir="/srv") as sandbox:
        await sandbox.files.write("below/note", "here")
        assert (await sandbox.run("pwd", cwd="below")).text == "/srv/below\n"
        assert (await sandbox.run("pwd", cwd="/tmp")).text == "/tmp\n"
        missing = await sandbox.run("pwd", cwd="nowhere")
        assert missing.start_error == "cwd: No such file or directory: /srv/nowhere"
        session = await sandbox.session("one", cwd="below")
        assert (await session.run("pwd")).text == "/srv/below\n"
    async with await node_client.sandboxes.create() as sandbox:
        await sandbox.files.write("below/note", "here")
        assert (await sandbox.run("pwd", cwd="below")).text == "/root/below\n"
