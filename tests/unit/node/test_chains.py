"""Chains of commits on a node: taken up in the background, again after faults and restarts."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from skerry.errors import ImageBroken, InvalidRequest, NotFound, StorageFailed, Unavailable
from skerry.node.life import chains
from skerry.spec.layers import MountedLayer
from skerry.spec.sandbox import SandboxSpec
from skerry.wire.http import CommitBody
from waiting import until


async def grown(node, count: int, name: str = "workspace/c"):
    """A chain of commits, each of a sandbox restored from the one before; returns the last."""
    spec = SandboxSpec()
    for number in range(count):
        sandbox = await node.lives.create(spec)
        commit = await node.commits.begin(sandbox, CommitBody(name=f"{name}{number}"))
        made = await commit.layer
        await node.lives.delete(sandbox)
        spec = SandboxSpec(restore=f"{name}{number}")
    return made


async def test_commit_on_many_is_taken_up_and_on_few_is_not(stand) -> None:
    async with stand.alive(chain_commits_max=3) as node:
        await grown(node, 3)
        await node.commits.settled()
        assert stand.library.shortened == []
        assert len(node.chains) == 0
    async with stand.alive(chain_commits_max=2) as node:  # a restart looks at what is remembered
        await until(lambda: len(node.chains) == 0 and stand.library.merged == 1)
        assert stand.library.shortened == [("workspace/c2:latest", 2)]
        assert node.gauges()["chains_shortened_total"] == 1
    with pytest.raises(InvalidRequest, match="chain_commits_max"):
        stand.config(chain_commits_max=0).check()


async def test_nobody_waits_for_it_and_what_was_cut_off_is_done_by_the_next_start(stand) -> None:
    stand.library.merging.clear()
    async with stand.alive(chain_commits_max=1) as node:
        await grown(node, 3)
        await until(lambda: stand.library.shortened)
        assert node.gauges()["chains_waiting"] == 2
        sandbox = await node.lives.create(SandboxSpec(restore="workspace/c2"))
        assert len(sandbox.digests) == 4
        await node.lives.delete(sandbox)
    assert stand.library.merged == 0
    stand.library.merging.set()
    async with stand.alive(chain_commits_max=1) as node:
        await until(lambda: len(node.chains) == 0 and stand.library.merged > 0)
        assert stand.library.merged == 2


async def test_restore_takes_up_what_another_node_left_long(stand) -> None:
    async with stand.alive(chain_commits_max=5) as node:
        await grown(node, 3)
        for commit in list(node.commits._known):
            node.ledger.forget(commit)
    stand.library.shortened.clear()
    async with stand.alive(chain_commits_max=1) as node:
        assert stand.library.shortened == []
        await node.lives.create(SandboxSpec(restore="workspace/c2"))
        await until(lambda: stand.library.shortened == [("workspace/c2:latest", 1)])


async def test_fault_of_the_platform_is_tried_again_and_others_are_not(stand, monkeypatch) -> None:
    monkeypatch.setattr(chains, "AGAIN_S", (0.0, 0.0))
    stand.library.refuse_shorten = [StorageFailed("full"), Unavailable("gone")]
    async with stand.alive(chain_commits_max=1) as node:
        await grown(node, 2)
        await until(lambda: stand.library.merged == 1)
        assert node.gauges()["chains_failed_total"] == 0
        for error, failed in ((ImageBroken("x"), 1), (NotFound("x"), 1)):
            stand.library.refuse_shorten = [error]
            await grown(node, 2, f"workspace/{error.code.replace('_', '-')}")
            await until(lambda: not stand.library.refuse_shorten and not len(node.chains))
            assert node.gauges()["chains_failed_total"] == failed
        stand.library.refuse_shorten = [StorageFailed("full") for _ in range(3)]
        await grown(node, 2, "workspace/full")
        await until(lambda: not len(node.chains))
        assert node.gauges()["chains_failed_total"] == 2


async def test_restore_that_cannot_be_mounted_waits_until_it_can(stand, monkeypatch) -> None:
    monkeypatch.setattr("skerry.node.images.MOUNTS_MAX", 3)
    stand.library.merging.clear()
    async with stand.alive(chain_commits_max=2) as node:
        made = await grown(node, 2)
        below = (*made.chain()[:-1], made.alone())
        long = msgspec.structs.replace(
            made, name="workspace/long:latest", digest=f"sha256:{99:064x}", below=below
        )
        stand.library.layers[long.name] = long
        restoring = asyncio.ensure_future(node.lives.create(SandboxSpec(restore="workspace/long")))
        await until(lambda: stand.library.shortened)
        assert not restoring.done()
        stand.library.layers[long.name] = msgspec.structs.replace(long, below=below[:1])
        stand.library.merging.set()
        sandbox = await restoring
        assert len(sandbox.mounts) == 2
        assert isinstance(sandbox.mounts[0], MountedLayer)
        stand.library.layers[long.name] = long
        node.images.forget_plans()
        with pytest.raises(Unavailable, match="lies on 4 layers"):
            await node.lives.create(SandboxSpec(restore="workspace/long"))
