"""A sandbox that ends under what is going on in it: each is told that, at once, and by whom."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from skerry.errors import SandboxFailed

pytestmark = pytest.mark.root

SERVER = (
    "import socket; s = socket.socket(); s.bind(('127.0.0.1', 8000)); s.listen(); print(1, flush=True);"
    " c, _ = s.accept(); input()"
)


async def forever():
    while True:
        yield b"x" * 10_000
        await asyncio.sleep(0.02)


async def tar_forever():
    name = b"f".ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + b"77777777777\0" + b"0" * 12
    head = bytearray(name + b" " * 8 + b"0" + bytes(100) + b"ustar\x0000" + bytes(247))
    head[148:156] = b"%06o\0 " % sum(head)
    yield bytes(head)
    async for piece in forever():
        yield piece


async def consume(events, stand_still=None):
    async with aclosing(events):
        async for _ in events:
            if stand_still is not None:
                await stand_still.wait()


async def attached(command):
    async with command.attach() as live:
        async for _ in live:
            pass


async def connected(box):
    async with box.connect(8000) as raw:
        return await raw.read()


@pytest.mark.parametrize(
    ("how", "why"), [("destroy", "it was deleted"), ("stop", "a request asked for it")]
)
async def test_everything_under_way_is_told_that_the_sandbox_ended_and_why(node_client, how, why):
    box = await node_client.sandboxes.create()
    await box.run("mkdir /srv/t && head -c 90000000 /dev/urandom > /srv/t/big")
    command = await box.start("cat", interactive=True)
    session = await box.session()
    server = await box.start(["python3", "-c", SERVER], interactive=True)
    async for event in server.output():
        if event.stdout:
            break
    over = asyncio.Event()
    going = {
        "write": box.files.write("/srv/w", forever()),
        "put_tree": box.files.put_tree("/srv/p", tar_forever()),
        "read": consume(box.files.read_chunks("/srv/t/big"), over),
        "get_tree": consume(box.files.get_tree("/srv/t"), over),
        "watch": consume(box.files.watch("/srv")),
        "run": box.run("sleep 100"),
        "stream": consume(box.stream("sleep 100")),
        "session": session.run("sleep 100"),
        "session stream": consume(session.stream("sleep 100")),
        "output": consume(command.output()),
        "wait": command.wait(),
        "attach": attached(command),
        "connect": connected(box),
    }
    tasks = {name: asyncio.ensure_future(call) for name, call in going.items()}
    await asyncio.sleep(0.7)
    assert not [name for name, task in tasks.items() if task.done()]
    await (box.destroy() if how == "destroy" else box.stop())
    over.set()
    await asyncio.wait(tasks.values(), timeout=30)
    told = {name: repr(task.exception()) for name, task in tasks.items() if task.done()}
    assert set(told) == set(tasks)
    wrong = {name: said for name, said in told.items() if why not in said}
    assert not wrong
    assert {type(task.exception()) for task in tasks.values()} == {SandboxFailed}
    await box.destroy()
