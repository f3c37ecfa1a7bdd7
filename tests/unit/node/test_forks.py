"""Forks of a node: batches whose members begin with one view; by fakes."""

from __future__ import annotations

import asyncio

import pytest

from skerry.errors import InvalidRequest, Overloaded, SandboxFailed, Unavailable
from skerry.node.config import Limits
from skerry.spec.sandbox import SandboxSpec, State
from skerry.wire.commits import ForkBody


async def fork(node, sandbox, **body):
    batch = node.forks.open(sandbox, ForkBody(**body), owner=None, tenant="")
    return (await node.forks.collect(sandbox, batch)).items


def content(node, sandbox_id: str) -> set[str]:
    return set(node.sandboxes.get(sandbox_id).instance.files.nodes)


def write(sandbox, path: str) -> None:
    files = sandbox.instance.files
    files.nodes[path] = type(files.nodes["/"])("f", 0o644, content=b"x")


async def test_members_begin_with_what_their_parent_had_and_go_their_own_way(stand) -> None:
    async with stand.alive() as node:
        spec = SandboxSpec(labels={"a": "1"}, ttl_s=100.0, memory_bytes=64 << 20, hostname="p")
        parent = await node.lives.create(spec)
        write(parent, "/tmp/before")
        stand.library.add("base/debian:12")  # the tag has moved on since: forks do not follow
        items = await fork(
            node, parent, count=3, labels={"b": "2"}, key="k", ttl_s=0, idle_timeout_s=5.0
        )
        write(parent, "/tmp/after")
        infos = [item.info for item in items]
        assert len({info.id for info in infos}) == 3
        for number, info in enumerate(infos):
            assert info.state is State.RUNNING
            assert (info.digests, info.parent) == (parent.digests, parent.id)
            assert info.spec.labels == {"a": "1", "b": "2"}
            assert (info.spec.ttl_s, info.spec.idle_timeout_s) == (None, 5.0)
            assert (info.spec.key, info.spec.hostname) == (f"k/{number}", "p")
            assert "/tmp/before" in content(node, info.id)
            assert "/tmp/after" not in content(node, info.id)
        write(node.sandboxes.get(infos[0].id), "/tmp/mine")
        assert "/tmp/mine" not in content(node, infos[1].id)
        assert stand.world.views == {}
        # Forks of forks, of a paused one too, after the first is gone.
        child = node.sandboxes.get(infos[0].id)
        await node.lives.delete(parent)
        await node.control.pause(child)
        (grandchild,) = await fork(node, child)
        assert child.state is State.PAUSED
        assert {"/tmp/before", "/tmp/mine"} <= content(node, grandchild.info.id)


async def test_repeat_of_a_keyed_fork_finds_all_or_makes_all_anew(stand) -> None:
    async with stand.alive() as node:
        parent = await node.lives.create(SandboxSpec())
        first = await fork(node, parent, count=3, key="k")
        again = await fork(node, parent, count=3, key="k")
        assert [item.info.id for item in first] == [item.info.id for item in again]
        # One of them is lost, as if the node had died before it was made.
        await node.lives.delete(node.sandboxes.get(first[1].info.id))
        write(parent, "/tmp/later")
        third = await fork(node, parent, count=3, key="k")
        assert not {item.info.id for item in third} & {item.info.id for item in first}
        assert all("/tmp/later" in content(node, item.info.id) for item in third)
        assert len(node.sandboxes) == 4


async def test_same_fork_asked_twice_at_once_is_made_once(stand) -> None:
    async with stand.alive() as node:
        parent = await node.lives.create(SandboxSpec())
        one, two = await asyncio.gather(
            fork(node, parent, count=4, key="k"), fork(node, parent, count=4, key="k")
        )
        assert [item.info.id for item in one] == [item.info.id for item in two]
        assert len(node.sandboxes) == 5


async def test_all_or_nothing_leaves_nothing_and_partial_tells_each(stand) -> None:
    async with stand.alive() as node:
        parent = await node.lives.create(SandboxSpec())
        stand.backend.knobs.fail_creates_after = stand.world.created + 2
        items = await fork(node, parent, count=4)
        assert {item.error.code for item in items} == {"unavailable"}
        assert len(node.sandboxes) == 1
        stand.backend.knobs.fail_creates_after = stand.world.created + 2
        items = await fork(node, parent, count=4, all_or_nothing=False)
        assert sum(item.info is not None for item in items) == 2
        assert stand.world.views == {}
        assert node.gauges()["batches_running"] == 0


async def test_forks_count_as_any_other_sandbox(stand) -> None:
    limits = Limits(sandboxes_max=3, memory_free_min_bytes=0, disk_free_min_bytes=0)
    async with stand.alive(limits=limits) as node:
        parent = await node.lives.create(SandboxSpec())
        with pytest.raises(Overloaded):
            await fork(node, parent, count=3)
        assert len(await fork(node, parent, count=2)) == 2
        assert (stand.world.views, node.gauges()["batches_running"]) == ({}, 0)


async def test_what_cannot_be_forked_says_why(stand) -> None:
    async with stand.alive() as node:
        parent = await node.lives.create(SandboxSpec())
        for bad in ({"count": 0}, {"wait_s": -1.0}, {"labels": {"": "x"}}, {"ttl_s": -5.0}):
            with pytest.raises(InvalidRequest):
                await fork(node, parent, **bad)
        stand.backend.knobs.fail_view = Unavailable("the launcher was lost")
        with pytest.raises(Unavailable):
            await fork(node, parent)
        stand.backend.knobs.fail_view = None
        await node.control.stop(parent)
        with pytest.raises(SandboxFailed, match="stopped"):
            await fork(node, parent)
        assert node.gauges()["batches_running"] == 0
        assert node.sandboxes.held == {}


async def test_fork_over_http(stand) -> None:
    async with stand.serving() as (node, api):
        sid = await api.create()
        path = f"/v1/sandboxes/{sid}/fork"
        answer = await api.call("POST", path, {"count": 2})
        assert [item["info"]["state"] for item in answer["items"]] == ["running", "running"]
        await api.call("POST", path, {"number": 2}, status=422)
        await api.call(
            "POST", f"/v1/sandboxes/s{node.sandboxes.node}{'a' * 15}/fork", {}, status=404
        )
