"""How durable a record is before its answer leaves, and who waits for whom."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest
from test_record import OP, dids, of, write

from skerry.errors import Bug, InvalidRequest, StorageFailed
from skerry.node.trail import levels as levels_module
from skerry.node.trail.levels import Group
from skerry.spec.command import CommandSpec
from skerry.spec.sandbox import Durability, SandboxSpec
from skerry.trajectory.format.scan import scan_bytes
from skerry.trajectory.options import TrajectoryOptions
from waiting import until

TRUE = CommandSpec(argv=("true",))
LOCAL = SandboxSpec(durability=Durability.LOCAL)
SHARED = SandboxSpec(durability=Durability.SHARED)


class Gate:
    """Holds every fdatasync up while it is closed, and counts them."""

    def __init__(self, monkeypatch) -> None:
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Semaphore(0)
        self.calls = 0
        self._real = os.fdatasync
        monkeypatch.setattr(os, "fdatasync", self._sync)

    def _sync(self, fd: int) -> None:
        self.calls += 1
        self.entered.release()
        assert self.open.wait(30)
        self._real(fd)


def in_store(shared, node: str) -> list[bytes]:
    """Returns the bytes of every record that the store has of the node, tails and all."""
    held: dict[str, bytearray] = {}
    for key, _ in sorted(shared.list(f"trajectories/{node}/")):
        data = shared.get(key, 1 << 26)
        if key.endswith(".seg"):
            held[key[-14:-4]] = bytearray(data)
        elif ".tail/" in key:
            number, _, offset = key.rpartition("/")
            whole = held.setdefault(number[-15:-5], bytearray())
            whole[int(offset) :] = data
    scans = (scan_bytes(int(number), bytes(data)) for number, data in held.items())
    return [found.record for scan in scans for found in scan]


async def test_answer_waits_for_the_disk_and_the_loop_does_not(stand, monkeypatch) -> None:
    async with stand.alive() as node:
        quick = await node.lives.create(SandboxSpec())
        safe = await node.lives.create(LOCAL)
        gate = Gate(monkeypatch)
        gate.open.clear()
        runs = [asyncio.create_task(node.operations.run(safe, OP, TRUE))]
        await asyncio.to_thread(gate.entered.acquire)
        runs.append(asyncio.create_task(write(node, safe, b"x", op=None)))
        assert (await node.operations.run(quick, None, TRUE)).ok
        await asyncio.sleep(0.05)
        assert not any(run.done() for run in runs)
        repeat = asyncio.create_task(node.operations.run(safe, OP, TRUE))
        await asyncio.sleep(0.05)
        assert not repeat.done()  # nobody hears what is not durable
        gate.open.set()
        await asyncio.gather(*runs, repeat)


async def test_one_sync_takes_all_that_wait(stand, monkeypatch) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(LOCAL)
        gate = Gate(monkeypatch)
        gate.open.clear()
        first = asyncio.create_task(node.operations.run(sandbox, None, TRUE))
        await asyncio.to_thread(gate.entered.acquire)
        rest = [asyncio.create_task(node.operations.run(sandbox, None, TRUE)) for _ in range(30)]
        await until(lambda: node.admission.operations == 0)
        gate.open.set()
        await asyncio.gather(first, *rest)
        assert gate.calls == 2


async def test_commit_that_cannot_begin_is_told_and_the_next_one_is_made() -> None:
    done: list[int] = []

    def begin():
        if not done:
            done.append(0)
            raise ValueError("a bug")
        return lambda: done.append(1), lambda: done.append(2)

    group = Group(begin, "test-commits")
    try:
        with pytest.raises(Bug, match="a bug"):
            await group.reached()
        await asyncio.gather(*(group.reached() for _ in range(5)))
        assert done == [0, 1, 2]
        assert (group.commits, group.failures) == (1, 1)
    finally:
        group.close()


async def test_who_leaves_while_it_waits_holds_nobody_up() -> None:
    entered, leave = threading.Semaphore(0), threading.Event()

    def work() -> None:
        entered.release()
        assert leave.wait(30)

    group = Group(lambda: (work, lambda: None), "test-commits")
    first = asyncio.create_task(group.reached())
    await asyncio.to_thread(entered.acquire)
    second, third = (asyncio.create_task(group.reached()) for _ in range(2))
    await asyncio.sleep(0)
    for gone in (first, second):
        gone.cancel()
    leave.set()
    await third
    assert group.commits == 2
    group.close()
    await until(lambda: "test-commits" not in {one.name for one in threading.enumerate()})


async def test_disk_that_fails_is_told_to_whoever_relies_on_it(stand, monkeypatch) -> None:
    async with stand.alive() as node:
        quick = await node.lives.create(SandboxSpec())
        safe = await node.lives.create(LOCAL)

        def broken(fd: int) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "fdatasync", broken)
        for _ in range(2):
            with pytest.raises(StorageFailed, match="sync"):
                await node.operations.run(safe, OP, TRUE)
        with pytest.raises(StorageFailed):
            await node.lives.create(LOCAL)
        assert (await node.operations.run(quick, None, TRUE)).ok
        assert node.gauges()["trajectory_commit_failures_total"] >= 3


async def test_disk_that_does_not_answer_is_an_error_in_bounded_time(stand, monkeypatch) -> None:
    async with stand.alive() as node:
        safe = await node.lives.create(LOCAL)
        monkeypatch.setattr(levels_module, "WITHIN_S", 0.1)
        gate = Gate(monkeypatch)
        gate.open.clear()
        try:
            with pytest.raises(StorageFailed, match="not durable"):
                await node.operations.run(safe, OP, TRUE)
        finally:
            gate.open.set()
        assert (await node.operations.run(safe, OP, TRUE)).ok  # the recorded answer


async def test_shared_answer_is_in_the_store_before_it_is_given(stand, shared) -> None:
    stand.shared = shared
    async with stand.alive() as node:
        sandbox = await node.lives.create(SHARED)
        name = node.identity.name
        assert [record.kind for record in in_store(shared, name)] == ["began", "made"]
        await node.operations.run(sandbox, None, TRUE)
        await write(node, sandbox, b"x" * 100_000)
        records = in_store(shared, name)
        assert [record.kind for record in records][2:] == ["asked", "answered", "doing", "did"]
        content = dids(node, sandbox.id)[0].request["content"]
        blob = shared.get(f"trajectories/blobs/{content['blob']}", 1 << 20)
        assert blob == b"x" * 100_000


async def test_shared_record_survives_sealing_and_a_restart(stand, shared) -> None:
    stand.shared = shared
    async with stand.alive() as node:
        name = node.identity.name
        sandbox = await node.lives.create(SHARED)
        await node.operations.run(sandbox, None, TRUE)
        node.ledger._journal.seal()
        await node.operations.run(sandbox, None, TRUE)
        await node.shipping.flush()
        await node.operations.run(sandbox, None, TRUE)
    async with stand.alive() as again:
        found = again.sandboxes.get(sandbox.id)
        await again.operations.run(found, None, TRUE)
        seqs = [record.seq for record in in_store(shared, name)]
        assert sorted(set(seqs)) == list(range(1, max(seqs) + 1))
        assert max(seqs) == again.ledger._journal.records


async def test_store_that_is_away_fails_shared_answers_and_a_repeat_gets_them(
    stand, shared, monkeypatch
) -> None:
    stand.shared = shared
    async with stand.alive() as node:
        sandbox = await node.lives.create(SHARED)
        quick = await node.lives.create(SandboxSpec())
        agent = stand.world.instances[sandbox.id]
        with monkeypatch.context() as away:

            def refuse(*args, **more):
                raise StorageFailed("the store is away")

            away.setattr(shared, "put_bytes", refuse)
            with pytest.raises(StorageFailed, match="away"):
                await node.operations.run(sandbox, OP, TRUE)
            with pytest.raises(StorageFailed, match="away"):
                await node.operations.run(sandbox, OP, TRUE)
            assert (await node.operations.run(quick, None, TRUE)).ok
        result = await node.operations.run(sandbox, OP, TRUE)
        assert result.ok
        assert agent._operations == 1
        kinds = [record.kind for record in in_store(shared, node.identity.name)]
        assert kinds.count("answered") == 2  # of both sandboxes, once each


async def test_shared_needs_a_store(stand) -> None:
    async with stand.alive() as node:
        with pytest.raises(InvalidRequest, match="ships"):
            await node.lives.create(SHARED)


async def test_node_says_what_holds_for_those_who_ask_for_nothing(stand, monkeypatch) -> None:
    options = TrajectoryOptions(durability=Durability.LOCAL)
    async with stand.alive(trajectory=options) as node:
        gate = Gate(monkeypatch)
        sandbox = await node.lives.create(SandboxSpec())
        assert gate.calls == 1
        await node.operations.run(sandbox, None, TRUE)
        assert gate.calls == 2
        own = await node.lives.create(SandboxSpec(durability=Durability.PROCESS))
        await node.operations.run(own, None, TRUE)
        assert gate.calls == 2


async def test_long_content_is_on_the_disk_before_its_record_is(stand, shared, monkeypatch) -> None:
    stand.shared = shared
    async with stand.alive() as node:
        sandbox = await node.lives.create(LOCAL)
        order: list[str] = []
        real_data, real_all = os.fdatasync, os.fsync
        monkeypatch.setattr(os, "fsync", lambda fd: order.append("blob") or real_all(fd))
        monkeypatch.setattr(os, "fdatasync", lambda fd: order.append("record") or real_data(fd))
        how = {"mode": None, "parents": False, "append": False, "exclusive": False}
        await node.files.write(sandbox, "/tmp/f", None, of(b"x" * 100_000), **how)
        assert order == ["blob", "blob", "record"]  # the file and its directory, then what names it
