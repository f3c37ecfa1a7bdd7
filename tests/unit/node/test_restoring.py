"""Sandboxes restored from commits: what a node makes them of, says of them, and remembers."""

from __future__ import annotations

import pytest

from skerry.errors import Conflict
from skerry.spec.sandbox import SandboxSpec
from skerry.wire.commits import ForkBody
from skerry.wire.http import CommitBody


async def committed(node, sandbox, name: str):
    commit = await node.commits.begin(sandbox, CommitBody(name=name))
    return await commit.layer


async def test_restored_sandbox_lies_on_what_its_commit_lay_on(stand) -> None:
    stand.library.add("workspace/w:latest")
    async with stand.alive() as node:
        first = await node.lives.create(SandboxSpec(layers=("workspace/w",)))
        made = await committed(node, first, "workspace/c1")
        assert [one.name for one in made.below] == ["base/debian:12", "workspace/w:latest"]
        second = await node.lives.create(SandboxSpec(restore="workspace/c1"))
        assert second.digests == (*first.digests, made.digest)
        assert second.info().restored == f"workspace/c1:latest@{made.digest}"
        assert first.info().restored is None
        again = await committed(node, second, "workspace/c2")
        assert [one.digest for one in again.below] == list(second.digests)
        assert all(one.below == () for one in again.below)  # each once, not each with its own


async def test_commit_that_is_being_packed_is_waited_for_by_a_restore(stand) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        stand.library.packing.clear()
        await node.commits.begin(sandbox, CommitBody(name="workspace/late"))
        restoring = node.tasks.spawn(node.lives.create(SandboxSpec(restore="workspace/late")))
        stand.library.packing.set()
        assert (await restoring).info().restored.startswith("workspace/late:latest@sha256:")


async def test_restart_and_forks_know_what_a_restored_sandbox_is_made_of(stand) -> None:
    async with stand.alive() as node:
        made = await committed(node, await node.lives.create(SandboxSpec()), "workspace/c")
        sandbox = await node.lives.create(SandboxSpec(restore="workspace/c", key="k"))
    async with stand.alive() as node:
        taken = node.sandboxes.get(sandbox.id)
        assert taken.restored == f"workspace/c:latest@{made.digest}"
        assert [one.digest for one in taken.made_of] == list(taken.digests)
        body = ForkBody(count=1)
        batch = node.forks.open(taken, body, owner=None, tenant="")
        (item,) = (await node.forks.collect(taken, batch)).items
        fork = node.sandboxes.get(item.info.id)
        assert (fork.restored, fork.made_of) == (taken.restored, taken.made_of)
        # What has no name any more is remembered, and committed with.
        stand.library.layers.clear()
        again = await committed(node, fork, "workspace/d")
        assert again.below == taken.made_of
        with pytest.raises(Conflict):
            await node.lives.create(SandboxSpec(restore="workspace/d", key="k"))


async def test_restore_with_an_image_or_layers_of_its_own_is_refused(stand) -> None:
    async with stand.serving() as (node, api):
        await committed(node, await node.lives.create(SandboxSpec()), "workspace/c")
        for spec in (
            {"restore": "workspace/c", "image": "debian:13"},
            {"restore": "workspace/c", "layers": ["workspace/c"]},
            {"restore": "c"},
            {"restore": ""},
        ):
            answer = await api.call("POST", "/v1/sandboxes", spec, status=422)
            assert answer["code"] == "invalid", answer
        await api.call("POST", "/v1/sandboxes", {"restore": "workspace/none"}, status=404)
        info = await api.call("POST", "/v1/sandboxes", {"restore": "workspace/c"})
        assert info["restored"].startswith("workspace/c:latest@sha256:")
        rows = (await api.call("GET", "/v1/usage"))["items"]
        assert {row["id"]: row["image"] for row in rows}[info["id"]] == "workspace/c"
