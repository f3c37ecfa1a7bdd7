"""CPU classes, weights, bursts and views on the real kernel."""

# ruff: noqa: ASYNC110 - what runs inside sends no events

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.root

CORE = min(os.sched_getaffinity(0))
SHARED = ["python3", "-c", f"import os; os.sched_setaffinity(0, [{CORE}])\nwhile True: pass"]


def cpu_group(kind: str, node: str) -> Path:
    """The node's cpu group; v1 only, where a slot's files can be looked at by their old names."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        words = after.split()
        if words[0] == "cgroup" and "cpu" in words[2].split(","):
            return Path(before.split()[4], f"skerry-{node}{kind}")
    pytest.skip("cgroup v1 has no cpu controller here")
    raise AssertionError


async def used(sandbox) -> float:
    return (await sandbox.usage()).cpu_seconds


async def compete(first, second, seconds=2.0) -> tuple[float, float]:
    """CPU seconds of two sandboxes that both want the same core."""
    spins = [asyncio.create_task(one.run(SHARED, timeout=30)) for one in (first, second)]
    while min([await used(one) for one in (first, second)]) < 0.02:
        await asyncio.sleep(0.05)  # both spin now, the second one however slowly
    before = [await used(one) for one in (first, second)]
    await asyncio.sleep(seconds)
    after = [await used(one) for one in (first, second)]
    for spin in spins:
        spin.cancel()
    await asyncio.gather(*spins, return_exceptions=True)
    return after[0] - before[0], after[1] - before[1]


async def test_best_effort_gives_a_core_up_to_latency_sensitive(node_client):
    async with (
        await node_client.sandboxes.create() as quick,
        await node_client.sandboxes.create(cpu_class="best-effort") as yielding,
    ):
        ours, theirs = await compete(quick, yielding)
        assert ours > 20 * theirs


async def test_control_without_classes_both_get_the_same(node_client):
    async with (
        await node_client.sandboxes.create() as one,
        await node_client.sandboxes.create() as other,
    ):
        ours, theirs = await compete(one, other)
        assert 0.5 < ours / theirs < 2


async def test_weight_shares_a_core(node_client):
    async with (
        await node_client.sandboxes.create(cpu_weight=800) as heavy,
        await node_client.sandboxes.create(cpu_weight=100) as light,
    ):
        ours, theirs = await compete(heavy, light)
        assert 4 < ours / theirs < 16


async def test_agent_of_a_starved_best_effort_sandbox_still_answers(node_client):
    async with (
        await node_client.sandboxes.create() as quick,
        await node_client.sandboxes.create(cpu_class="best-effort") as yielding,
    ):
        spin = asyncio.create_task(quick.run(SHARED, timeout=60))
        flood = asyncio.create_task(yielding.run(SHARED, timeout=60))
        while await used(yielding) < 0.02:
            await asyncio.sleep(0.05)
        # What the control path does takes no turn behind the load: the command ends on demand.
        flood.cancel()
        await asyncio.gather(flood, return_exceptions=True)
        while (await yielding.info()).running_commands:
            await asyncio.sleep(0.05)
        assert not spin.done()
        spin.cancel()
        await asyncio.gather(spin, return_exceptions=True)
        assert (await yielding.run("echo here")).text == "here\n"


async def test_class_is_told_and_shows_no_name_of_the_host(node_client):
    async with await node_client.sandboxes.create(cpu_class="best-effort") as sandbox:
        assert (await sandbox.info()).spec.cpu_class == "best-effort"
        seen = await sandbox.run("cat /proc/self/cgroup; chrt -p $$ 2>&1")
        assert "skerry" not in seen.text
        assert ".." not in seen.text
        assert "SCHED_IDLE" in seen.text


async def test_slot_is_handed_out_with_the_weight_and_burst_of_its_new_sandbox(node_client):
    health = await node_client.health()
    root = cpu_group("", health.node)

    def written() -> set[tuple[str, str]]:
        found = set()
        for slot in root.glob("slot-*"):
            shares = (slot / "cpu.shares").read_text().strip()
            found.add((shares, (slot / "cpu.cfs_burst_us").read_text().strip()))
        return found

    async with await node_client.sandboxes.create(cpu=0.5, cpu_weight=300, cpu_burst=0.25):
        assert ("3072", "25000") in written()
    async with await node_client.sandboxes.create():  # the same slot: the last one back goes first
        assert ("3072", "25000") not in written()


async def test_burst_uses_the_quota_that_was_left(node_client):
    root = cpu_group("", (await node_client.health()).node)

    def bursts() -> int:
        stats = [path.read_text() for path in root.glob("slot-*/cpu.stat")]
        return sum(int(re.findall(r"^nr_bursts (\d+)", stat, re.MULTILINE)[0]) for stat in stats)

    # Rests, then wants more than the quota of one period (0.03 s of each 0.1 s).
    line = """
import time
for _ in range(4):
    time.sleep(0.3)
    end = time.process_time() + 0.06
    while time.process_time() < end: pass
"""
    before = bursts()
    async with await node_client.sandboxes.create(cpu=0.3) as sandbox:
        assert (await sandbox.run(["python3", "-c", line])).ok
        assert bursts() == before
    async with await node_client.sandboxes.create(cpu=0.3, cpu_burst=0.3) as sandbox:
        for _ in range(10):  # on a loaded host a period may pass without its turn
            assert (await sandbox.run(["python3", "-c", line])).ok
            if bursts() > before:
                return
        pytest.fail("what was left was never used")


@pytest.mark.parametrize("cpu", [0.1, 1.0, 1.5])
async def test_programs_see_as_many_cores_as_they_may_use(node_client, cpu):
    line = "nproc; python3 -c 'import os; print(len(os.sched_getaffinity(0)))'"
    async with await node_client.sandboxes.create(cpu=cpu) as sandbox:
        seen = (await sandbox.run(line)).text.split()
    wanted = min(len(os.sched_getaffinity(0)), -int(-cpu // 1))
    assert seen == [str(wanted)] * 2


async def test_latency_sensitive_sandboxes_are_spread_over_the_cores(node_client):
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        pytest.skip("one core only")
    yielding = await node_client.sandboxes.create_many(3, cpu=1, cpu_class="best-effort")
    quick = await node_client.sandboxes.create_many(cores, cpu=1)
    seen = set()
    for sandbox in quick:
        text = (await sandbox.run("grep Cpus_allowed_list /proc/self/status")).text
        match = re.search(r"\d+", text)
        assert match is not None
        seen.add(match[0])
    await node_client.sandboxes.destroy_many([*yielding, *quick])
    assert len(seen) == cores
