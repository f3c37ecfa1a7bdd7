"""Commits and forks on a real node: consistent, outliving their sandbox, usable on another node."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest

from live_node import LiveNode
from skerry.errors import InvalidRequest, NotFound
from waiting import until

pytestmark = pytest.mark.root

# Appends numbers, each told on standard output once it is in the file.
COUNTER = "i=0; while :; do i=$((i+1)); echo $i >> /srv/count; echo $i; done"


def numbers(data: bytes) -> list[int]:
    return [int(line) for line in data.split()]


async def counting(sandbox):
    """Starts the counter and returns a command handle once it has begun."""
    command = await sandbox.start(["sh", "-c", f"mkdir -p /srv; {COUNTER}"], output_limit=64 << 20)

    async def begun() -> bool:
        return (await command.refresh()).stdout_total >= 20

    await until(begun)
    return command


async def test_commit_holds_all_that_was_written_before_and_nothing_after(node_client) -> None:
    """Decision 38, by a file that counts: whole, without a gap, and from within the call's time."""
    sandbox = await node_client.sandboxes.create()
    command = await counting(sandbox)
    before = numbers(await sandbox.files.read("/srv/count"))[-1]
    began = time.monotonic()
    handle = await sandbox.commit("workspace/counted", wait=False)
    assert handle.freeze_seconds < time.monotonic() - began
    after = numbers(await sandbox.files.read("/srv/count"))[-1]
    await asyncio.sleep(0.2)  # it goes on, and nothing of that may be in the layer
    await command.kill()
    layer = await handle.wait()
    other = await node_client.sandboxes.create(layers=["workspace/counted"])
    held = await other.files.read("/srv/count")
    assert held.endswith(b"\n")  # no write was cut
    found = numbers(held)
    assert found == list(range(1, found[-1] + 1))
    assert before <= found[-1] <= after
    assert layer.parents == (await sandbox.info()).digests
    await node_client.sandboxes.destroy_many([sandbox, other])
    await node_client.images.remove("workspace/counted")


async def test_forks_are_all_of_the_same_moment_while_their_parent_writes(node_client) -> None:
    parent = await node_client.sandboxes.create()
    await counting(parent)
    before = numbers(await parent.files.read("/srv/count"))[-1]
    forks = await parent.fork(4)
    after = numbers(await parent.files.read("/srv/count"))[-1]
    held = {(await fork.files.read("/srv/count")) for fork in forks}
    assert len(held) == 1
    found = numbers(held.pop())
    assert found == list(range(1, found[-1] + 1))
    assert before <= found[-1] <= after
    for fork in forks:  # no process came along
        assert (await fork.run("ps -e -o comm= | grep -c '^sh$'; true")).stdout.strip() in b"01"
        assert (await fork.usage()).pids == 0
    await node_client.sandboxes.destroy_many([parent, *forks])


async def test_layer_comes_though_its_sandbox_is_deleted_and_creates_wait_for_it(
    node_client,
) -> None:
    sandbox = await node_client.sandboxes.create()
    await sandbox.run("head -c 30000000 /dev/urandom > /opt/random; sha256sum /opt/random")
    wanted = (await sandbox.run("sha256sum < /opt/random")).stdout
    handle = await sandbox.commit("workspace/late", wait=False)
    assert handle.status.state == "packing"
    await sandbox.destroy()
    other = await node_client.sandboxes.create(layers=["workspace/late"])
    assert (await other.run("sha256sum < /opt/random")).stdout == wanted
    assert (await handle.refresh()).state == "done"
    again = await node_client.sandboxes.commit(handle.id)
    assert (await again.wait(5)).digest == (await handle.wait()).digest
    assert [info.id for info in await node_client.sandboxes.commits(sandbox.id)] == [handle.id]
    with pytest.raises(InvalidRequest, match="only what changed"):
        await other.commit("base/x")
    with pytest.raises(InvalidRequest, match="credentials"):
        await other.commit("workspace/x", scrub=["everything"])
    await other.destroy()
    await node_client.images.remove("workspace/late")


async def test_fork_is_its_own_users_and_its_childrens(node_client) -> None:
    """Owners, set-id programs and new files are right in another range of ids, and in its forks."""
    parent = await node_client.sandboxes.create()
    made = await parent.run(
        "useradd -m bob && mkdir /srv/d && echo one > /srv/d/a && chown bob:bob /srv/d /srv/d/a"
        " && cp /bin/dash /srv/suid && chmod 4755 /srv/suid && rm /etc/motd && rm -r /usr/share/doc"
        " && chmod 700 /srv/d && mv /etc/issue /etc/issue2"
    )
    assert made.ok, made
    look = (
        "stat -c '%U %G %a %n' / /srv/d /srv/d/a /srv/suid /home/bob /etc/issue2; "
        "ls /etc/motd /usr/share/doc /etc/issue 2>&1; cat /srv/d/a; "
        "su bob -c 'echo two > /srv/d/b; /srv/suid -p -c \"id -u\"; id -un'; stat -c '%U' /srv/d/b; "
        "touch /srv/mine; stat -c '%u' /srv/mine"
    )
    (child,) = await parent.fork()
    seen = (await child.run(look)).stdout
    assert b"bob bob 700 /srv/d\nbob bob 644 /srv/d/a\n" in seen
    assert b"root root 4755 /srv/suid" in seen
    assert seen.count(b"No such file") == 3, seen
    assert seen.endswith(b"one\n0\nbob\nbob\n0\n"), seen
    (grandchild,) = await child.fork()
    again = (await grandchild.run(look)).stdout
    assert again == seen
    # What a fork of a fork wrote is committed as any other's.
    await grandchild.commit("workspace/forked")
    fresh = await node_client.sandboxes.create(layers=["workspace/forked"])
    assert (await fresh.run(look)).stdout == seen
    paths = {change.path: change for change in await grandchild.diff()}
    assert (paths["/srv/d/a"].uid, paths["/srv/mine"].uid) == (1000, 0)
    await node_client.sandboxes.destroy_many([parent, child, grandchild, fresh])
    await node_client.images.remove("workspace/forked")


async def test_forks_have_the_room_that_their_parent_had_left(node_client) -> None:
    parent = await node_client.sandboxes.create(disk="60MiB")
    assert (await parent.run("head -c 40000000 /dev/urandom > /srv-a")).ok
    child, other = await parent.fork(2)
    assert not (await child.run("head -c 40000000 /dev/urandom > /srv-b")).ok
    assert (await other.run("head -c 10000000 /dev/urandom > /srv-b")).ok
    (grandchild,) = await other.fork()
    assert not (await grandchild.run("head -c 20000000 /dev/urandom > /srv-c")).ok
    assert (await grandchild.run("head -c 4000000 /dev/urandom > /srv-d; ls / | grep -c srv-")).ok
    assert (await parent.run("head -c 10000000 /dev/urandom > /srv-b")).ok
    await node_client.sandboxes.destroy_many([parent, child, other, grandchild])


async def test_paused_parent_is_forked_and_committed_as_it_stands(node_client) -> None:
    parent = await node_client.sandboxes.create()
    await counting(parent)
    await parent.pause()
    first, second = await parent.fork(2, labels={"branch": "x"}, ttl=300, key="paused-forks")
    layer = await parent.commit("workspace/paused")
    assert (await parent.info()).state == "paused"
    assert await first.files.read("/srv/count") == await second.files.read("/srv/count")
    info = await second.info()
    assert (info.spec.key, info.spec.labels, info.expires is not None) == (
        "paused-forks/1",
        {"branch": "x"},
        True,
    )
    repeated = await parent.fork(2, labels={"branch": "x"}, ttl=300, key="paused-forks")
    assert {fork.id for fork in repeated} == {first.id, second.id}
    assert layer.files > 1
    await node_client.sandboxes.destroy_many([parent, first, second])
    await node_client.images.remove("workspace/paused")


async def test_forks_outlive_their_parent_and_the_node(layer_store) -> None:
    node = LiveNode(layer_store)
    with node.running():
        async with node.client() as client:
            parent = await client.sandboxes.create()
            await parent.run("echo kept > /root/file")
            forks = await parent.fork(3)
            await parent.destroy()
        node.kill()
        node.start()
        async with node.client() as client:
            assert {info.parent for info in await client.sandboxes.list()} == {parent.id}
            assert len(await client.sandboxes.list()) == 3
            for info in await client.sandboxes.list():
                fork = await client.sandboxes.get(info.id)
                assert (await fork.run("cat /root/file")).stdout == b"kept\n"
            (last,) = await (await client.sandboxes.get(forks[0].id)).fork()
            assert (await last.run("cat /root/file; id -u")).stdout == b"kept\n0\n"


async def test_node_that_is_stopped_while_it_packs_ends_it_first(layer_store) -> None:
    node = LiveNode(layer_store)
    with node.running():
        async with node.client() as client:
            sandbox = await client.sandboxes.create()
            await sandbox.run("head -c 50000000 /dev/urandom > /opt/random")
            await sandbox.commit("workspace/stopped", wait=False)
    with node_of(layer_store) as other:
        async with other.client() as client:
            made = await client.sandboxes.create(layers=["workspace/stopped"])
            assert (await made.run("stat -c %s /opt/random")).stdout == b"50000000\n"
            await made.destroy()
            await client.images.remove("workspace/stopped")


def node_of(store):
    return LiveNode(store).running()


async def test_layer_of_one_node_starts_on_another_that_shares_the_store(
    node_client, layer_store
) -> None:
    """The paper's pack_diff: a checkpoint that becomes a new sandbox, elsewhere."""
    sandbox = await node_client.sandboxes.create()
    await sandbox.run("mkdir -p /srv && echo step-1 > /srv/log && rm /etc/debian_version")
    layer = await sandbox.commit("workspace/turn-1")
    with node_of(layer_store) as other:
        async with other.client() as client:
            there = await client.sandboxes.create(layers=["workspace/turn-1"])
            seen = await there.run("cat /srv/log; ls /etc/debian_version 2>&1")
            assert seen.stdout.startswith(b"step-1\n")
            assert b"No such file" in seen.stdout
            assert layer.digest in (await there.info()).digests
            await there.run("echo step-2 >> /srv/log")
            await there.commit("workspace/turn-2")  # an increment on the increment
            await there.destroy()
    again = await node_client.sandboxes.create(layers=["workspace/turn-1", "workspace/turn-2"])
    assert (await again.run("cat /srv/log")).stdout == b"step-1\nstep-2\n"
    await node_client.sandboxes.destroy_many([sandbox, again])
    for name in ("workspace/turn-1", "workspace/turn-2"):
        await node_client.images.remove(name)


async def test_layers_that_are_mounted_verified_are_committed_on_and_forked(layer_store) -> None:
    """Two nodes that read each layer by the chunk; one is killed between acknowledgement and end."""
    node = LiveNode(layer_store, options='mounts = "verified"')
    with node.running():
        async with node.client() as client:
            sandbox = await client.sandboxes.create()
            await sandbox.run("head -c 40000000 /dev/urandom > /opt/r; rm /etc/debian_version")
            wanted = (await sandbox.run("sha256sum < /opt/r")).stdout
            handle = await sandbox.commit("workspace/chunked", wait=False)
            (fork,) = await sandbox.fork()
            await sandbox.destroy()
            node.kill()
            node.start()
            assert (await handle.wait(60)).data_bytes >= 40_000_000
            assert (await fork.run("sha256sum < /opt/r")).stdout == wanted
            (second,) = await fork.fork()
            assert (await second.run("ls /etc/debian_version")).exit_code == 2
        other = LiveNode(layer_store, options='mounts = "verified"')
        with other.running():
            async with other.client() as client:
                made = await client.sandboxes.create(layers=["workspace/chunked"])
                assert (await made.run("sha256sum < /opt/r")).stdout == wanted
                assert (await made.run("ls /etc/debian_version")).exit_code == 2
                mounts = (await made.info()).mounts
                assert {one.mode for one in mounts} == {"verified"}
                await made.destroy()
                await client.images.remove("workspace/chunked")


async def test_where_uppers_have_no_snapshots_it_stands_still_and_forks_are_refused(
    layer_store, tmp_path
) -> None:
    program = tmp_path / "plain_node.py"
    program.write_text(
        "from skerry.backends.container import uppers\n"
        "from skerry.cli.main import main\n"
        "uppers.choose = lambda state, *_: uppers.UpperPlan('dir', f'{state}/uppers')\n"
        "main()\n"
    )
    node = LiveNode(layer_store, program=(sys.executable, str(program)))
    with node.running():
        async with node.client() as client:
            sandbox = await client.sandboxes.create()
            command = await counting(sandbox)
            handle = await sandbox.commit("workspace/plain", wait=False)
            assert handle.status.state == "done"
            assert handle.freeze_seconds > 0.01  # for all of the packing, and it says so
            after = numbers(await sandbox.files.read("/srv/count"))[-1]
            await command.kill()
            layer = await handle.wait()
            made = await client.sandboxes.create(layers=["workspace/plain"])
            found = numbers(await made.files.read("/srv/count"))
            assert found == list(range(1, found[-1] + 1))
            assert found[-1] <= after
            assert layer.name == "workspace/plain:latest"
            with pytest.raises(InvalidRequest, match="btrfs"):
                await sandbox.fork()
            with pytest.raises(NotFound):
                await client.sandboxes.commit("0" * 32)
            await client.sandboxes.destroy_many([sandbox, made])
            await client.images.remove("workspace/plain")
