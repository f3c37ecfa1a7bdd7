"""What is inside cannot pass its own doing off as the platform's: platform faults are not graded.

Root inside may kill the file helper that works for it. The client is told so by an error of the
sandbox's, also where half of an answer was out already.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from skerry.errors import Fault, SkerryError

pytestmark = pytest.mark.root

MIDWAY_BYTES = 1 << 20
KILL_ALL = ["perl", "-e", "kill 9, -1"]


@pytest.fixture
async def box(node_client):
    async with await node_client.sandboxes.create(memory="512MiB") as box:
        await box.run("mkdir /d && head -c 60000000 /dev/urandom >/d/big", timeout=60.0)
        yield box


async def midway(box, chunks):
    """Takes the beginning of a transfer, has everything inside killed, and takes the rest."""
    total = 0
    async with aclosing(chunks):
        async for chunk in chunks:
            if total < MIDWAY_BYTES <= total + len(chunk):
                await box.run(KILL_ALL)
            total += len(chunk)
    return total


def chunks_of(box, how):
    return {
        "file": lambda: box.files.read_chunks("/d/big"),
        "tree": lambda: box.files.get_tree("/d"),
    }[how]()


@pytest.mark.parametrize("how", ["file", "tree"])
async def test_download_whose_helper_is_killed_midway_is_the_sandboxs_fault(box, how):
    with pytest.raises(SkerryError) as told:
        await midway(box, chunks_of(box, how))
    assert told.value.fault is Fault.SANDBOX
    assert "killed" in str(told.value)


@pytest.mark.parametrize("how", ["file", "tree"])
async def test_control_a_download_that_nobody_kills_is_whole(box, how):
    total = 0
    async for chunk in chunks_of(box, how):
        total += len(chunk)
    assert total >= 60_000_000


async def test_downloads_to_this_side_say_the_same_and_leave_nothing(box, tmp_path):
    async def many(path):
        for count in range(50):
            await box.files.download(path, tmp_path / f"x{count}")

    killer = asyncio.create_task(kill_soon(box))
    try:
        for path in ("/d/big", "/d"):
            with pytest.raises(SkerryError) as told:
                await many(path)
            assert told.value.fault is Fault.SANDBOX, told.value
    finally:
        killer.cancel()
        await asyncio.wait((killer,))


async def test_whatever_is_killed_again_and_again_is_never_the_platforms_fault(box):
    """Each call is either done or the sandbox's fault, or its result says that it was killed."""

    async def words():
        for _ in range(20):
            yield b"x" * 1000
            await asyncio.sleep(0.005)

    async def walked():
        return [entry async for entry in box.files.walk("/usr/share")]

    async def watched():
        return [event async for event in box.files.watch("/d")]

    calls = {
        "read": lambda: box.files.read("/etc/passwd"),
        "write": lambda: box.files.write("/d/w", words()),
        "list": lambda: box.files.list("/"),
        "walk": walked,
        "watch": watched,
        "usage": lambda: box.files.usage("/usr"),
        "run": lambda: box.run("sleep 0.1; echo ok"),
        "diff": box.diff,
    }
    killer = asyncio.create_task(kill_soon(box))
    ends: dict[str, set[str]] = {}
    try:
        for name, call in calls.items():
            for _ in range(5):
                try:
                    async with asyncio.timeout(20.0):
                        await call()
                    ends.setdefault(name, set()).add("done")
                except SkerryError as error:
                    ends.setdefault(name, set()).add(error.fault)
    finally:
        killer.cancel()
        await asyncio.wait((killer,))
    assert set().union(*ends.values()) <= {"done", Fault.SANDBOX}, ends
    assert Fault.SANDBOX in set().union(*ends.values())  # something was hit


async def kill_soon(box):
    """Kills everything inside, over and over."""
    while True:
        await box.run(KILL_ALL)
