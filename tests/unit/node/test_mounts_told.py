"""What a node says of mounted layers, and when it tidies its own copies of their metadata."""

from __future__ import annotations

import msgspec
from node_stand import ManualClock, Stand

from skerry.errors import StorageFailed
from skerry.node.images import TIDY_PAUSE_S
from skerry.spec.layers import MountedLayer, MountMode
from skerry.spec.sandbox import SandboxSpec


async def test_mounts_are_told_with_their_modes_and_survive_a_restart(stand: Stand) -> None:
    part = stand.library.add("base/part:1")
    made = stand.library.add("base/whole:1")
    stand.library.layers[made.name] = msgspec.structs.replace(made, parts=(part,))
    expected = tuple(MountedLayer(one.digest, MountMode.TRUSTED) for one in (part, made))
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec(image="whole:1"))
        assert sandbox.info().mounts == expected
        # A part has no name: only the sandbox keeps it.
        assert {part.digest, made.digest} <= node.sandboxes.digests()
    async with stand.alive() as node:
        again = node.sandboxes.by_id[sandbox.id]
        assert again.info().mounts == expected
        await node.lives.delete(again)
        assert node.sandboxes.digests() == set()


async def test_old_copies_are_tidied_now_and_then_but_those_in_use(stand: Stand) -> None:
    stand.clock = ManualClock()
    async with stand.alive() as node:
        first = await node.lives.create(SandboxSpec(image="debian:12"))
        assert stand.library.tidied == []
        await stand.clock.advance(TIDY_PAUSE_S + 1)
        await node.lives.create(SandboxSpec(image="debian:12"))
        assert stand.library.tidied == [set(first.digests)]
        await stand.clock.advance(2)
        await node.lives.create(SandboxSpec(image="debian:12"))
        assert len(stand.library.tidied) == 1


async def test_tidying_that_fails_fails_no_sandbox(stand: Stand, monkeypatch) -> None:
    def fail(in_use: object) -> None:
        raise StorageFailed("the store is away")

    monkeypatch.setattr(stand.library, "tidy", fail)
    stand.clock = ManualClock()
    async with stand.alive() as node:
        await node.lives.create(SandboxSpec(image="debian:12"))
        await stand.clock.advance(TIDY_PAUSE_S + 1)
        await node.lives.create(SandboxSpec(image="debian:12"))
