"""Segments are sealed and shipped in the background, whatever the store does."""

from __future__ import annotations

import asyncio

import pytest
from test_levels import in_store
from test_record import write

from skerry.errors import InvalidRequest, StorageFailed
from skerry.node.trail import shipping
from skerry.spec.command import CommandSpec
from skerry.spec.sandbox import Durability, SandboxSpec
from skerry.trajectory.format.index import decode_index
from skerry.trajectory.options import TrajectoryOptions
from trajectory_stories import faults_of
from waiting import until

TRUE = CommandSpec(argv=("true",))
SOON = TrajectoryOptions(seal_after_s=0.1)


def listed(shared) -> list[str]:
    return sorted(key for key, _ in shared.list("trajectories/"))


async def test_record_is_in_the_store_soon_after_it_was_written(stand, shared) -> None:
    stand.shared = shared
    async with stand.alive(trajectory=SOON) as node:
        sandbox = await node.lives.create(SandboxSpec(rollout="r-7"))
        await write(node, sandbox, b"x" * 100_000)
        name = node.identity.name
        await until(lambda: len(in_store(shared, name)) == node.ledger._journal.records)
        await until(lambda: node.gauges()["trajectory_segments_waiting"] == 0)
        index = decode_index(shared.get(f"trajectories/{name}/0000000001.idx", 1 << 20))
        assert index.subjects[sandbox.id].rollout == "r-7"
        assert index.subjects[sandbox.id].job is None
        await node.lives.delete(sandbox)
    # an orderly end ships what is left
    records = in_store(shared, name)
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    assert records[-1].kind == "forgotten"
    assert faults_of(f"{stand.root}/state/journal") == []


async def test_store_that_is_away_holds_nobody_up_and_gets_all_when_it_is_back(
    stand, shared, monkeypatch
) -> None:
    stand.shared = shared
    async with stand.alive(trajectory=SOON) as node:
        sandbox = await node.lives.create(SandboxSpec())
        with monkeypatch.context() as away:

            def refuse(*args, **more):
                raise StorageFailed("the store is away")

            away.setattr(shared, "put_file", refuse)
            for _ in range(5):
                assert (await node.operations.run(sandbox, None, TRUE)).ok
                node.ledger._journal.seal()
            await until(lambda: node.gauges()["trajectory_ship_failures_total"] >= 2)
            assert node.gauges()["trajectory_segments_waiting"] >= 5
            assert in_store(shared, node.identity.name) == []
        await until(lambda: node.gauges()["trajectory_segments_waiting"] == 0)
        seqs = [record.seq for record in in_store(shared, node.identity.name)]
        assert seqs == list(range(1, len(seqs) + 1))
        assert len(seqs) >= 12


async def test_more_than_may_wait_is_given_up_from_the_oldest_on_and_named(
    stand, shared, monkeypatch
) -> None:
    stand.shared = shared
    options = TrajectoryOptions(seal_after_s=0.1, segment_bytes=16 << 20, local_bytes_max=16 << 20)
    async with stand.alive(trajectory=options) as node:
        sandbox = await node.lives.create(SandboxSpec())
        with monkeypatch.context() as away:

            def refuse(*args, **more):
                raise StorageFailed("the store is away")

            away.setattr(shared, "put_file", refuse)
            for number in range(5):
                await write(node, sandbox, b"%d" % number * (5 << 20), op=None)
                node.ledger._journal.seal()
            await until(lambda: node.gauges()["trajectory_segments_lost_total"] >= 1)
            await until(lambda: node.gauges()["trajectory_bytes_waiting"] <= 16 << 20)
            lost = int(node.gauges()["trajectory_segments_lost_total"])
            assert lost < 5
        name = node.identity.name
        await until(lambda: node.gauges()["trajectory_segments_waiting"] == 0)
        await until(lambda: f"trajectories/{name}/0000000001.idx" in listed(shared))
        for number in range(1, lost + 1):
            index = decode_index(shared.get(f"trajectories/{name}/{number:010d}.idx", 1 << 20))
            assert "given up" in index.gap
        assert f"trajectories/{name}/{lost + 1:010d}.seg" in listed(shared)
        assert (await node.operations.run(sandbox, None, TRUE)).ok


async def test_node_that_does_not_ship_keeps_nothing_beyond_its_sandboxes(stand, shared) -> None:
    stand.shared = shared
    options = TrajectoryOptions(ship=False, seal_after_s=0.1)
    async with stand.alive(trajectory=options) as node:
        sandbox = await node.lives.create(SandboxSpec())
        await write(node, sandbox, b"x" * 100_000)
        await asyncio.sleep(0.3)
    assert listed(shared) == []


async def test_segment_with_many_tails_is_sealed_and_they_go(stand, shared, monkeypatch) -> None:
    monkeypatch.setattr(shipping, "TAILS_MAX", 5)
    stand.shared = shared
    async with stand.alive(trajectory=TrajectoryOptions(seal_after_s=60.0)) as node:
        sandbox = await node.lives.create(SandboxSpec(durability=Durability.SHARED))
        for _ in range(8):
            await node.operations.run(sandbox, None, TRUE)
        await until(lambda: not [key for key in listed(shared) if "0000000001.tail/" in key])
        assert f"trajectories/{node.identity.name}/0000000001.seg" in listed(shared)


async def test_what_waited_is_shipped_by_the_next_node(stand, shared, monkeypatch) -> None:
    stand.shared = shared
    with monkeypatch.context() as away:

        def refuse(*args, **more):
            raise StorageFailed("the store is away")

        away.setattr(shared, "put_file", refuse)
        async with stand.alive(trajectory=SOON) as node:
            sandbox = await node.lives.create(SandboxSpec())
            await write(node, sandbox, b"x" * 100_000)
            name = node.identity.name
    assert in_store(shared, name) == []
    async with stand.alive(trajectory=SOON) as again:
        await until(lambda: len(in_store(shared, name)) >= 4)
        await until(lambda: again.trail.contents.bytes == 0)
        await again.lives.delete(again.sandboxes.get(sandbox.id))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("segment_bytes", 1 << 20),
        ("seal_after_s", 0.0),
        ("local_bytes_max", 1),
        ("keep_days", -1.0),
        ("inline_bytes", 1 << 20),
        ("content_bytes_max", 1),
    ],
)
def test_options_out_of_bounds_are_named(field, value) -> None:
    with pytest.raises(InvalidRequest, match=field):
        TrajectoryOptions(**{field: value}).check()
