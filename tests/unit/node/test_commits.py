"""Commits of a node: acknowledged, packed, found again; by fakes whose packing waits when it is told."""

from __future__ import annotations

import asyncio

import pytest

from skerry.errors import (
    Conflict,
    ImageBroken,
    InvalidRequest,
    NotFound,
    StorageFailed,
    Unavailable,
)
from skerry.node.life import commits
from skerry.spec.command import CommandSpec
from skerry.spec.sandbox import SandboxSpec, State
from skerry.wire.http import CommitBody
from waiting import until

ID = "0123456789abcdef" * 2
BODY = CommitBody(name="workspace/x", id=ID)


async def test_acknowledged_commit_needs_its_sandbox_no_more(stand) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        stand.library.packing.clear()
        commit = await node.commits.begin(sandbox, BODY)
        info = commit.info()
        assert (info.state, info.sandbox, info.name) == (
            "packing",
            sandbox.id,
            "workspace/x:latest",
        )
        assert info.freeze_seconds == 0.001
        assert node.gauges()["commits_pending"] == 1
        await until(lambda: commit.info().progress == "packing")  # as the library said
        digest = sandbox.digests[0]
        await node.lives.delete(sandbox)
        assert digest in node.sandboxes.digests()  # its layers are needed still
        stand.library.packing.set()
        manifest = await commit.layer
        assert manifest.name == "workspace/x:latest"
        await node.commits.settled()
        assert (commit.info().state, commit.info().manifest) == ("done", manifest)
        assert stand.world.views == {}
        assert node.sandboxes.digests() == set()


async def test_repeat_with_the_id_finds_the_commit_and_another_one_is_a_conflict(stand) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        first, second = await asyncio.gather(
            node.commits.begin(sandbox, BODY), node.commits.begin(sandbox, BODY)
        )
        assert first is second
        await first.layer
        assert await node.commits.begin(sandbox, BODY) is first
        assert stand.library.commits == 1
        with pytest.raises(Conflict):
            await node.commits.begin(sandbox, CommitBody(name="workspace/y", id=ID))
        with pytest.raises(NotFound):
            node.commits.get("f" * 32)
        with pytest.raises(InvalidRequest):
            node.commits.get("x")


@pytest.mark.parametrize(
    "body",
    [
        CommitBody(name="base/x"),
        CommitBody(name="workspace/x@sha256:" + "0" * 64),
        CommitBody(name="workspace/x", exclude=("relative",)),
        CommitBody(name="workspace/x", exclude=("/",)),
        CommitBody(name="workspace/x", exclude=("/a",) * 1001),
        CommitBody(name="workspace/x", scrub=("nothing-like-it",)),
        CommitBody(name="workspace/x", id="short"),
    ],
)
async def test_body_that_cannot_be_carried_out_takes_no_snapshot(stand, body) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        with pytest.raises(InvalidRequest):
            await node.commits.begin(sandbox, body)
        assert (stand.world.views, node.commits.pending) == ({}, 0)


async def test_restart_goes_on_with_what_was_acknowledged(stand) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        stand.library.packing.clear()
        await node.commits.begin(sandbox, BODY)
        await until(lambda: stand.library.commits == 1)
        await node.lives.delete(sandbox)
    assert set(stand.world.views) == {ID}
    stand.world.views["fork-of-a-dead-node"] = stand.world.views[ID]
    async with stand.alive() as again:
        assert set(stand.world.views) == {ID}  # the other one was swept
        commit = again.commits.get(ID)
        assert commit.info().state == "packing"
        stand.library.packing.set()
        await commit.layer
        await again.commits.settled()
    assert stand.world.views == {}
    async with stand.alive() as third:  # and the end is remembered
        assert third.commits.get(ID).info().state == "done"
        assert third.commits.get(ID).info().manifest.name == "workspace/x:latest"
        assert stand.library.commits == 2


async def test_view_that_a_restart_does_not_find_is_a_failed_commit(stand, monkeypatch) -> None:
    monkeypatch.setattr(commits, "AGAIN_S", (0.01,))
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        stand.library.packing.clear()
        await node.commits.begin(sandbox, BODY)
    stand.world.views.clear()
    async with stand.alive() as again:
        with pytest.raises(Unavailable, match="lost"):
            await again.commits.get(ID).layer
        assert again.commits.get(ID).info().error.code == "unavailable"


async def test_fault_of_the_platform_is_tried_again_and_of_the_content_is_not(
    stand, monkeypatch
) -> None:
    monkeypatch.setattr(commits, "AGAIN_S", (0.01, 0.01))
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        stand.library.refuse_commit = StorageFailed("the disk is full")
        commit = await node.commits.begin(sandbox, BODY)
        with pytest.raises(StorageFailed):
            await commit.layer
        assert stand.library.commits == 3
        stand.library.refuse_commit = ImageBroken("too many files")
        other = await node.commits.begin(sandbox, CommitBody(name="workspace/y"))
        with pytest.raises(ImageBroken):
            await other.layer
        assert stand.library.commits == 4
        await node.commits.settled()
        assert stand.world.views == {}
        assert [info.state for info in node.commits.list_all()] == ["failed", "failed"]
        assert len(node.commits.list_all(sandbox.id)) == 2
        assert node.commits.list_all("another") == []


async def test_snapshot_that_fails_is_the_answer_and_leaves_nothing(stand) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        stand.backend.knobs.fail_view = Unavailable("the launcher was lost")
        with pytest.raises(Unavailable):
            await node.commits.begin(sandbox, BODY)
        assert (node.commits.pending, node.commits.list_all()) == (0, [])


async def test_create_waits_for_a_layer_that_is_being_packed(stand) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        stand.library.packing.clear()
        await node.commits.begin(sandbox, BODY)
        spec = SandboxSpec(layers=("workspace/x",))
        making = asyncio.create_task(node.lives.create(spec))
        await asyncio.sleep(0.1)
        assert not making.done()
        assert node.admission.sandboxes == 1  # it holds no room meanwhile
        stand.library.packing.set()
        assert (await making).state is State.RUNNING
        # One that fails is what those who waited are told.
        stand.library.packing.clear()
        stand.library.refuse_commit = ImageBroken("too many files")
        await node.commits.begin(sandbox, CommitBody(name="workspace/z"))
        waiting = asyncio.create_task(node.lives.create(SandboxSpec(layers=("workspace/z",))))
        await asyncio.sleep(0.05)
        stand.library.packing.set()
        with pytest.raises(ImageBroken):
            await waiting


async def test_create_does_not_wait_for_ever(stand, monkeypatch) -> None:
    monkeypatch.setattr("skerry.node.images.EXPECTED_MAX_S", 0.05)
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        stand.library.packing.clear()
        await node.commits.begin(sandbox, BODY)
        with pytest.raises(Unavailable, match="being packed"):
            await node.lives.create(SandboxSpec(layers=("workspace/x",)))
        stand.library.packing.set()
        await node.commits.settled()


async def test_paused_sandbox_is_committed_as_it_is(stand) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        await node.control.pause(sandbox)
        await (await node.commits.begin(sandbox, BODY)).layer
        assert sandbox.state is State.PAUSED
        await node.control.stop(sandbox)
        with pytest.raises(Exception, match="stopped"):
            await node.commits.begin(sandbox, CommitBody(name="workspace/y"))


async def test_routes_answer_at_the_acknowledgement_and_at_the_end(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        stand.library.packing.clear()
        path = f"/v1/sandboxes/{sid}/commits"
        body = {"name": "workspace/x", "id": ID}
        info = await api.call("POST", path, body)
        assert info["state"] == "packing"
        assert (await api.call("GET", f"/v1/commits/{ID}?wait=0.05"))["state"] == "packing"
        await api.call("DELETE", f"/v1/sandboxes/{sid}")
        assert (await api.call("POST", path, body))["id"] == ID  # a repeat, after the sandbox
        await api.call("POST", path, body | {"exclude": ["/a"]}, status=409)
        waiting = asyncio.create_task(api.call("GET", f"/v1/commits/{ID}?wait=10"))
        await asyncio.sleep(0.05)
        stand.library.packing.set()
        assert (await waiting)["manifest"]["name"] == "workspace/x:latest"
        assert [one["id"] for one in await api.call("GET", "/v1/commits")] == [ID]
        assert await api.call("GET", "/v1/commits?sandbox=other") == []
        await api.call("GET", f"/v1/commits/{'f' * 32}", status=404)


async def test_command_that_runs_while_its_sandbox_is_committed_goes_on(stand) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        running = asyncio.create_task(
            node.operations.run(sandbox, None, CommandSpec(argv=("sleep", "0.2")))
        )
        await asyncio.sleep(0.05)
        await (await node.commits.begin(sandbox, BODY)).layer
        assert (await running).ok


async def test_daemon_that_ends_by_itself_packs_first(stand) -> None:
    left: list[bool] = []
    embedded = {"embedded": True, "exit_grace_s": 0.05, "first_owner_s": 100.0}
    async with stand.serving(leave=lambda: left.append(True), **embedded) as (node, _):
        sandbox = await node.lives.create(SandboxSpec(detached=True))
        stand.library.packing.clear()
        await node.commits.begin(sandbox, BODY)
        await node.lives.delete(sandbox)
        await asyncio.sleep(0.2)
        assert not left
        stand.library.packing.set()
        await until(lambda: bool(left))


async def test_orderly_end_waits_for_what_is_packed_and_leaves_the_rest(stand) -> None:
    async with stand.serving() as (node, _):
        sandbox = await node.lives.create(SandboxSpec())
        stand.library.packing.clear()
        commit = await node.commits.begin(sandbox, BODY)
        asyncio.get_running_loop().call_later(0.2, stand.library.packing.set)
    assert commit.layer.result().name == "workspace/x:latest"
    async with stand.serving(end_within_s=0.2) as (node, _):
        sandbox = await node.lives.create(SandboxSpec())
        stand.library.packing.clear()
        late = await node.commits.begin(sandbox, CommitBody(name="workspace/y"))
    assert set(stand.world.views) == {late.id}
    stand.library.packing.set()
    async with stand.alive() as again:
        await again.commits.get(late.id).layer
        await again.commits.settled()
    assert stand.world.views == {}
