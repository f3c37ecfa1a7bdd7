"""The moment of credential change: between the fork of a command's child and its exec.

Root inside predicts the next process id and strikes while the agent starts commands. Two locks hold,
and a control must take both away: the child is not dumpable, and it holds more capabilities than the
attacker (facts and reasons: native/init/README.md and creds.c).
"""

from __future__ import annotations

import asyncio
import struct

import pytest

from skerry.backends.shared import binaries

pytestmark = pytest.mark.root

SIGHTINGS = 10_000  # of a child that has not reached exec
SUCCESSES = ("reads", "writes", "mems", "fds", "getfds", "seized")


def agent_only_address(path):
    """An address that the agent's image has in its bss and no other program has anything at."""
    image = path.read_bytes()
    at, size, count = (
        struct.unpack_from(f, image, o)[0] for f, o in (("<Q", 32), ("<H", 54), ("<H", 56))
    )
    for n in range(count):
        kind, flags, _, address, _, _, memory = struct.unpack_from("<IIQQQQQ", image, at + n * size)
        if kind == 1 and flags & 2:
            return address + memory - 8
    raise AssertionError(f"{path} has no writable segment")


async def race(box, address, seconds):
    """Lets the attacker run against as many starting commands as the machine gives."""
    ended = asyncio.create_task(
        box.attack("race", hex(address), str(seconds), timeout=seconds + 20)
    )
    commands = 0

    async def start():
        nonlocal commands
        while not ended.done():
            assert (await box.sandbox.run(["/usr/local/bin/victim"])).ok
            commands += 1

    await asyncio.gather(*(start() for _ in range(4)))
    counts = {name: int(value) for name, value in (await ended).items()}
    return counts, commands


async def test_no_strike_succeeds_in_ten_thousand_sightings(box):
    address = agent_only_address(binaries.find("skerry-init"))
    seen = 0
    for _ in range(12):
        counts, commands = await race(box, address, 4)
        assert commands > 100
        assert {name: counts[name] for name in SUCCESSES} == dict.fromkeys(SUCCESSES, 0)
        seen += counts["seen"]
        if seen >= SIGHTINGS:
            return
    pytest.fail(f"only {seen} times was a child seen before its exec")


@pytest.mark.parametrize("words", ["dumpable", "capabilities"])
async def test_one_lock_alone_is_enough(weak, weak_pair, words):
    async with weak(words, cpu=2.0) as box:
        counts, _ = await race(box, agent_only_address(weak_pair / "skerry-init"), 2)
    assert counts["seen"] > 100
    assert not counts["writes"] + counts["mems"] + counts["getfds"] + counts["seized"]


async def test_control_without_both_locks_memory_and_descriptors_are_taken(weak, weak_pair):
    async with weak("dumpable,capabilities", cpu=2.0) as box:
        counts, _ = await race(box, agent_only_address(weak_pair / "skerry-init"), 3)
    for name in ("reads", "writes", "mems", "fds", "getfds"):
        assert counts[name] > 0, counts


async def test_children_stopped_before_exec_cost_the_sandbox_its_own_commands_only(box):
    """Signals cannot be kept from them; the wait for exec has a deadline and blocks nobody."""
    attack = asyncio.create_task(box.attack("stop", "2", timeout=30))
    results = []
    while not attack.done():  # it begins when it has its turn
        victims = [asyncio.create_task(box.sandbox.run("true", timeout=4)) for _ in range(8)]
        results += await asyncio.gather(*victims)
    assert int((await attack)["stopped"]) > 0
    for result in results:
        assert result.ok or result.timed_out or "deadline" in (result.start_error or ""), result
    assert (await box.sh("echo next")).stdout == b"next\n"
