"""SIGKILL of the node, of the launcher, of both, and of clients, at any moment.

A command goes on and its output is whole; it ran once, judged by a witness outside of the node: every
step it takes is sent to a server of the test. Nothing is left when the last node ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import subprocess
import sys

import pytest

from live_node import LiveNode
from skerry.errors import NotFound, SkerryError
from waiting import soon, until

pytestmark = pytest.mark.root

SEED = 20_26
COUNT = 100_000


@pytest.fixture
def node(layer_store):
    """A node of its own; the census after its end is part of the test."""
    with LiveNode(layer_store, options="lease_s = 5").running() as made:
        yield made


def kill_launcher(node):
    """Kills it, once there is one: what was answered meanwhile may not have needed it."""
    assert soon(lambda: node.launcher() != 0)
    os.kill(node.launcher(), signal.SIGKILL)


class Witness:
    """Hears over a reverse forward what runs inside: each nonce once, or it ran twice."""

    def __init__(self):
        self.heard = []

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()

    async def _serve(self, reader, writer):
        self.heard += (await reader.read()).decode().split()
        writer.close()


EXPECTED = "".join(f"{n}\n" for n in range(1, COUNT + 1)).encode()
# Slow enough that the kills fall into it, by pauses that are many and short. Each start leaves a mark
# where only appending is possible, and the file outside of every ring buffer tells what was done.
COUNTING = """echo started >> /root/starts
i=0; while [ $i -lt 100 ]; do
seq $((i * 1000 + 1)) $((i * 1000 + 1000)); echo $i >> /root/steps; i=$((i + 1)); sleep 0.03; done
echo ended >> /root/ends"""


async def counted(node, op, kills):
    """Runs the counting command while `kills` are carried out; returns its result."""
    async with node.client() as client:
        sandbox = await client.sandboxes.create()
        running = asyncio.create_task(sandbox.run(COUNTING, op_id=op, output_limit=4 << 20))
        neighbour = await client.sandboxes.create()
        for pause, kill in kills:
            await asyncio.sleep(pause)
            await asyncio.to_thread(kill)
        async with asyncio.timeout(60):
            result = await running
        for name, content in (("starts", b"started\n"), ("ends", b"ended\n")):
            assert await sandbox.files.read(f"/root/{name}") == content
        steps = (await sandbox.files.read("/root/steps")).split()
        assert [int(step) for step in steps] == list(range(100))
        assert (await sandbox.op(op)).result == result
        assert await sandbox.run(COUNTING, op_id=op, output_limit=4 << 20) == result
        assert await sandbox.files.read("/root/starts") == b"started\n"
        assert (await neighbour.run("echo alive")).stdout == b"alive\n"
        await client.sandboxes.destroy_many([sandbox, neighbour])
        return result


def whole(result):
    assert result.exit_code == 0
    assert result.stdout_total == len(EXPECTED)
    assert not result.truncated
    assert hashlib.sha256(result.stdout).digest() == hashlib.sha256(EXPECTED).digest()


async def test_node_and_launcher_die_together_under_a_command_that_counts(node):
    def both():
        kill_launcher(node)
        node.kill()
        node.start()

    whole(await counted(node, "a1" * 16, [(0.8, both), (0.8, both)]))


async def test_the_launcher_alone_dies(node):
    whole(await counted(node, "a2" * 16, [(0.5, lambda: kill_launcher(node))] * 2))


async def test_the_node_alone_dies_again_and_again(node):
    def restart():
        node.kill()
        node.start()

    whole(await counted(node, "a3" * 16, [(0.4, restart)] * 3))


async def test_a_witness_outside_hears_every_step_once(node):
    """The steps leave the sandbox at once: what ran twice would be heard twice."""
    async with asyncio.timeout(90), Witness() as witness, node.client() as client:
        sandbox = await client.sandboxes.create()
        line = """for n in $(seq 40); do
            until (echo $n >/dev/tcp/127.0.0.1/7000) 2>/dev/null; do sleep 0.02; done
            sleep 0.02; done"""
        running = asyncio.create_task(sandbox.run(["bash", "-c", line], op_id="b1" * 16))
        for _ in range(3):
            async with sandbox.reverse_forward(7000, "127.0.0.1", witness.port):
                await asyncio.sleep(0.4)
            kill_launcher(node)
            node.kill()
            await asyncio.to_thread(node.start)
        async with sandbox.reverse_forward(7000, "127.0.0.1", witness.port):
            async with asyncio.timeout(60):
                assert (await running).ok
            await asyncio.sleep(0.2)
        heard = [int(n) for n in witness.heard]
        # A step that was cut off while it was told may be missing or told again by the loop inside,
        # never the whole run again: steps never go back.
        assert heard == sorted(heard)
        assert heard[-1] == 40
        await sandbox.destroy()


async def test_kills_at_any_moment_of_create_and_destroy(node):
    """Random moments, seeded: what was acknowledged is there, what was not is there or not."""
    chance = random.Random(SEED)
    kept = []
    for turn in range(8):
        async with node.client() as client:
            tasks = [
                asyncio.create_task(client.sandboxes.create(key=f"turn{turn}-{n}"))
                for n in range(4)
            ]
            old = [await client.sandboxes.get(name) for name in kept[:2]]
            doomed = [asyncio.create_task(one.destroy()) for one in old]
            del kept[:2]
            await asyncio.sleep(chance.uniform(0, 0.06))
            what = chance.choice(("launcher", "node", "both"))
            if what != "node":
                kill_launcher(node)
            if what != "launcher":
                node.kill()
                await asyncio.to_thread(node.start)
            made = await asyncio.gather(*tasks, return_exceptions=True)
            for one in made:
                if isinstance(one, SkerryError):
                    assert one.retryable, one
                elif isinstance(one, BaseException):
                    raise one
            await asyncio.gather(*doomed)
            # A repeat with the same key finds what the first try made, or makes it now.
            again = await asyncio.gather(
                *(client.sandboxes.create(key=f"turn{turn}-{n}") for n in range(4))
            )
            for one, two in zip(made, again, strict=True):
                if not isinstance(one, BaseException):
                    assert one.id == two.id
            results = await asyncio.gather(*(one.run("echo here") for one in again))
            assert [result.text for result in results] == ["here\n"] * 4
            kept += [one.id for one in again]
    async with node.client() as client:
        listed = {info.id for info in await client.sandboxes.list()}
        assert set(kept) <= listed
        await client.sandboxes.destroy_many(list(listed))
        assert await client.sandboxes.list() == []
        assert os.listdir(f"{node.run}/container/i") == []


@pytest.mark.parametrize("also", ["node", "launcher"])
async def test_stopped_sandbox_leaves_the_next_user_of_its_slot_alone(node, also):
    """Its record outlives it, and names a slot that by then is another's."""
    async with node.client() as client:
        stopped = [await client.sandboxes.create() for _ in range(4)]
        for sandbox in stopped:
            await sandbox.run("echo over")
            await sandbox.stop()
        live = [await client.sandboxes.create() for _ in range(8)]  # in the same slots, and more
        running = [asyncio.create_task(one.run("sleep 2; echo done")) for one in live]
        await asyncio.sleep(0.3)
        for _ in range(2):
            if also == "launcher":
                kill_launcher(node)
            node.kill()
            await asyncio.to_thread(node.start)
        results = await asyncio.gather(*running)
        assert [result.text for result in results] == ["done\n"] * len(live)
        assert {(await one.info()).state for one in stopped} == {"stopped"}
        # Nor does the slot come to be in the pool twice.
        more = await client.sandboxes.create_many(8)
        everything = [*live, *more]
        assert [(await one.run("echo here")).text for one in everything] == ["here\n"] * 16
        await client.sandboxes.destroy_many([*stopped, *everything])


CLIENT = """
import asyncio, sys
from skerry.sdk.client import connect
async def main():
    async with connect(sys.argv[1]) as client:
        sandbox = await client.sandboxes.get(sys.argv[2])
        print("up", flush=True)
        if sys.argv[3] == "run":
            await sandbox.run("echo begun >> /root/log; sleep 1; echo done >> /root/log; echo out",
                              op_id="c1" * 16)
        else:
            async def slowly():
                while True:
                    yield b"x" * 65536
                    await asyncio.sleep(0.01)
            await sandbox.files.write("/root/upload", slowly())
asyncio.run(main())
"""


def client_process(node, sandbox, what):
    argv = [sys.executable, "-c", CLIENT, node.url, sandbox.id, what]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"
    return process


async def test_a_client_that_vanishes_leaves_its_command_and_another_gets_the_result(
    live_node, node_client
):
    async with await node_client.sandboxes.create() as sandbox:
        process = await asyncio.to_thread(client_process, live_node, sandbox, "run")
        await until(lambda: sandbox.files.exists("/root/log"))
        process.kill()
        process.wait()
        process.stdout.close()
        status = await sandbox.op("c1" * 16, wait=20)
        assert status.state == "done"
        assert status.result.stdout == b"out\n"
        assert await sandbox.files.read("/root/log") == b"begun\ndone\n"


async def test_an_upload_that_breaks_off_leaves_no_file(live_node, node_client):
    async with await node_client.sandboxes.create() as sandbox:
        await sandbox.files.write("/root/upload", b"the old content")
        process = await asyncio.to_thread(client_process, live_node, sandbox, "upload")

        await asyncio.sleep(0.5)
        process.kill()
        process.wait()
        process.stdout.close()

        async def settled():
            return (await sandbox.run("ls -A /root | grep -c skerry")).text == "0\n"

        await until(settled)
        assert await sandbox.files.read("/root/upload") == b"the old content"


async def test_a_client_that_sends_an_upload_and_no_more_is_forgotten(live_node, node_client):
    """A dropped connection in the middle of a request body, at several places."""
    async with await node_client.sandboxes.create() as sandbox:
        for sent in (0, 1, 60_000, 400_000):
            _, writer = await asyncio.open_unix_connection(f"{live_node.run}/node.sock")
            head = f"PUT /v1/sandboxes/{sandbox.id}/files?path=/root/cut HTTP/1.1\r\nHost: node\r\n"
            writer.write(f"{head}Content-Length: 1000000\r\n\r\n".encode() + b"x" * sent)
            await writer.drain()
            await asyncio.sleep(0.1)
            writer.transport.abort()

        async def settled():
            return (await sandbox.run("ls -A /root | grep -cE 'skerry|cut'")).text == "0\n"

        await until(settled)


async def test_two_hundred_creates_at_once_from_connections_of_their_own(live_node):
    async def one(n):
        async with live_node.client() as client:
            sandbox = await client.sandboxes.create(memory="64MiB")
            done = await sandbox.run(["echo", str(n)])
            await sandbox.destroy()
            return done.text

    texts = await asyncio.gather(*(one(n) for n in range(200)))
    assert texts == [f"{n}\n" for n in range(200)]
    async with live_node.client() as client:
        assert await client.sandboxes.list() == []


async def test_an_unknown_operation_and_a_gone_sandbox_are_not_found(node_client):
    sandbox = await node_client.sandboxes.create()
    with pytest.raises(NotFound):
        await sandbox.op("d1" * 16)
    await sandbox.destroy()
    await sandbox.destroy()
    with pytest.raises(NotFound):
        await sandbox.run("true")
