"""Rollouts that are run again on a real node: what differs, what is lost, what cannot be known."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from live_node import LiveNode
from skerry.errors import ContentDropped, Diverged, InvalidRequest, NotFound, OutcomeUnknown
from skerry.sdk.repeat.names import MARKER
from skerry.spec.trajectory import Event

pytestmark = pytest.mark.root

SMALL: dict[str, Any] = {"memory": "128MiB", "pids": 64}
NONCE = "cat /proc/sys/kernel/random/uuid"


async def everything(client, key: str) -> list[Any]:
    """One of each operation, and what it was answered with."""
    told: list[Any] = []
    async with client.rollout(key) as rollout:
        sandbox = await rollout.create(**SMALL)
        told += [sandbox.id, await sandbox.run(f"{NONCE}; cat >&2", stdin=b"in\xff")]
        files = sandbox.files
        told.append(await files.write("/root/a", b"x" * 10_000, mode=0o600))
        told.append(await files.read("/root/a", offset=9_000))
        told.append(await files.read("/root/a", tail=10))
        told.append(await files.write_at("/root/a", 5, b"y"))
        await files.mkdir("/root/d/\udcff", parents=True)
        told.append([one.name for one in await files.list("/root/d")])
        told.append([one.name async for one in files.walk("/root", glob="**/a")])
        told += [
            await files.exists("/nope"),
            await files.usage("/root"),
            await files.stat("/root/a"),
        ]
        for wrong in (files.read("/nope"), sandbox.run("true", cwd="/", env={"=": "x"})):
            with pytest.raises((NotFound, InvalidRequest)) as raised:
                await wrong
            told.append(str(raised.value))
        told.append(await sandbox.diff())
        told.append(b"".join([piece async for piece in sandbox.diff_tar("/root")]))
        handle = await sandbox.start(f"read x; {NONCE}; echo $x", interactive=True)
        await handle.send("line\n")
        await handle.close_stdin()
        told.append(b"".join([event.stdout or b"" async for event in handle.output()]))
        told.append(await handle.wait())
        endless = await sandbox.start("sleep 1000")
        await endless.signal(15)
        told.append((await endless.wait()).signal)
        async with await sandbox.session() as session:
            told += [await session.run("cd /tmp"), (await session.run("pwd")).text]
        told.append((await sandbox.set_network([])).network)
        told.append((await sandbox.update(labels={"a": "b"})).spec.labels)
        told.append((await sandbox.commit("workspace/rollout-all")).digest)
        twins = await sandbox.fork(2)
        for twin in twins:
            told += [twin.id, (await twin.run(f"{NONCE}; wc -c < /root/a")).text]
            await twin.destroy()
        told.append((await sandbox.pause()).state)
        pieces = [event.stdout or b"" async for event in sandbox.stream(f"{NONCE}; seq 30000")]
        told.append(b"".join(pieces))
        await sandbox.record("verdict", request={"a": 1}, result={"type": "x"})
        await sandbox.destroy()
    return told


async def test_every_operation_is_answered_from_the_record(node_client) -> None:
    first = await everything(node_client, "all/1")
    events = await counted(node_client, "all/1")
    assert await everything(node_client, "all/1") == first
    assert await counted(node_client, "all/1") == events  # nothing was done, nothing added


async def counted(client, key: str) -> int:
    return sum([info.events async for info in client.trajectories.iterate(rollout=key)])


async def test_rollout_goes_on_live_where_its_record_ends(node_client) -> None:
    async with node_client.rollout("on/1") as rollout:
        sandbox = await rollout.create(**SMALL)
        first = await sandbox.run(NONCE)
    async with node_client.rollout("on/1") as rollout:
        again = await rollout.create(**SMALL)
        assert (again.id, again.rebuilt, again.branched) == (sandbox.id, False, False)
        assert await again.run(NONCE) == first
        assert (await again.run(NONCE)).text != first.text
        await again.destroy()
        with pytest.raises(NotFound):
            await again.run(NONCE)


async def test_rollout_that_has_stopped_its_sandbox_is_repeated_and_nothing_rebuilt(node_client):
    told = []
    for _ in range(2):
        async with node_client.rollout("stopped/1") as rollout:
            sandbox = await rollout.create(**SMALL)
            told.append((await sandbox.run(NONCE)).text)
            assert (await sandbox.stop()).state == "stopped"
            assert not sandbox.rebuilt
    assert told[0] == told[1]
    await sandbox.destroy()


async def test_sandboxes_made_at_once_are_told_apart_by_their_names(node_client) -> None:
    async def both(order: tuple[str, str]) -> dict[str, str]:
        async with node_client.rollout("names/1") as rollout:

            async def one(name: str) -> tuple[str, str]:
                sandbox = await rollout.create(name=name, **SMALL)
                return name, (await sandbox.run(f"echo {name}; {NONCE}")).text

            found = dict(await asyncio.gather(*map(one, order)))
            with pytest.raises(InvalidRequest):
                await rollout.create(name="a", **SMALL)
            return found

    assert await both(("a", "b")) == await both(("b", "a"))
    for info in await node_client.sandboxes.list():
        if info.spec.rollout == "names/1":
            await (await node_client.sandboxes.get(info.id)).destroy()


async def test_divergence_stops_with_both_operations_side_by_side(node_client) -> None:
    async with node_client.rollout("apart/1") as rollout:
        sandbox = await rollout.create(**SMALL)
        await sandbox.run("true")
        await sandbox.run("echo recorded")
        await sandbox.files.write("/root/a", "recorded")
    async with node_client.rollout("apart/1") as rollout:
        again = await rollout.create(**SMALL)
        await again.run("true")
        with pytest.raises(Diverged) as e:
            await again.run("echo asked")
        shown = e.value.message.splitlines()
        assert [line.split()[:2] for line in shown[1:]] == [["recorded:", "run"], ["asked:", "run"]]
        assert e.value.fields["ordinal"] == 1
        assert e.value.fields["recorded"]["request"] == {"shell": "echo recorded"}
        assert e.value.fields["asked"] == {"action": "run", "request": {"shell": "echo asked"}}
        with pytest.raises(Diverged):
            await again.files.write("/root/a", "something else")
    async with node_client.rollout("apart/1") as rollout:
        with pytest.raises(Diverged, match="operation 0"):
            await rollout.create(memory="96MiB", pids=64)
    assert await counted(node_client, "apart/1") == 4
    await sandbox.destroy()


async def branching(client, last: str) -> tuple[Any, list[str]]:
    async with client.rollout("branch/1", on_divergence="branch") as rollout:
        sandbox = await rollout.create(**SMALL)
        told = [(await sandbox.run(f"{NONCE} | tee /root/kept")).text]
        await sandbox.commit("workspace/rollout-branch")
        told.append((await sandbox.run(f"{NONCE} | tee /root/lost")).text)
        told.append((await sandbox.run(f"{last}; cat /root/kept; cat /root/lost; {NONCE}")).text)
        await sandbox.files.write("/root/after", last)
        return sandbox, told


async def test_branch_goes_on_from_the_nearest_commit_and_reruns_nothing(node_client) -> None:
    one, first = await branching(node_client, "echo one")
    other, second = await branching(node_client, "echo two")
    assert (one.branched, other.branched) == (False, True)
    assert other.id != one.id
    assert second[:2] == first[:2]  # from the record
    lines = second[2].split()
    assert lines[:2] == ["two", first[0].strip()]
    assert len(lines) == 3  # what came after the commit is not there, and was not done again
    assert (await other.info()).spec.labels[MARKER] == "branched:3"
    third, again = await branching(node_client, "echo two")
    assert (third.id, again) == (other.id, second)  # which is on record now, too
    for sandbox in (one, other):
        await sandbox.destroy()


async def losing(client, key: str, on_unknown, **options: Any) -> tuple[Any, list[str]]:
    told = []
    async with client.rollout(key, on_unknown=on_unknown) as rollout:
        sandbox = await rollout.create(**SMALL, **options)
        try:
            told.append((await sandbox.run(f"{NONCE} | tee /root/kept")).text)
            told.append((await sandbox.commit("workspace/rollout-lost")).digest)
            told.append((await sandbox.run(f"{NONCE} | tee /root/lost")).text)
            told.append(await sandbox.files.read_text("/root/lost"))
            told.append((await sandbox.run(f"cat /root/kept /root/lost; {NONCE}")).text)
        except OutcomeUnknown as error:
            told.append(error)
        return sandbox, told


async def check_loss(client, key: str, first: list[str], lost: str, **options: Any) -> Any:
    """What came before the commit is answered; what came after it is a question, or done again."""
    for choice in ("wait", "fail"):
        sandbox, told = await losing(client, key, choice, **options)
        assert told[:2] == first[:2]
        assert isinstance(told[2], OutcomeUnknown)
        assert told[2].fields["choices"] == ["wait", "rerun", "fail"]
        assert not sandbox.rebuilt
    asked: list[Event] = []
    sandbox, told = await losing(
        client, key, lambda event: asked.append(event) or "rerun", **options
    )
    assert [event.action for event in asked] == ["run"]
    assert sandbox.rebuilt
    assert sandbox.id != lost
    assert (await sandbox.info()).spec.labels[MARKER] == "rebuilt:2"
    assert told[:2] == first[:2]
    assert told[2] == told[3] != first[2]
    assert told[4].split()[:2] == [first[0].strip(), told[2].strip()]
    again, repeated = await losing(client, key, "wait", **options)
    assert (again.id, again.rebuilt, repeated) == (sandbox.id, True, told)
    return sandbox


async def test_sandbox_that_is_gone_is_rebuilt_from_its_last_commit(node_client) -> None:
    sandbox, first = await losing(node_client, "lost/1", "wait")
    await (await node_client.sandboxes.get(sandbox.id)).destroy()  # by somebody else
    rebuilt = await check_loss(node_client, "lost/1", first, sandbox.id)
    await rebuilt.destroy()


async def test_lost_host_is_rebuilt_on_another_node_of_the_store(layer_store) -> None:
    with LiveNode(layer_store).running() as node, LiveNode(layer_store).running() as other:
        async with node.client() as client:
            sandbox, first = await losing(client, "lost/2", "wait", durability="shared")
        node.kill()
        away = Path(f"{node.state}-away")
        Path(node.state).rename(away)  # nothing of the host is within reach
        try:
            async with other.client() as client:
                lost = sandbox.id
                rebuilt = await check_loss(client, "lost/2", first, lost, durability="shared")
                await rebuilt.destroy()
        finally:
            shutil.rmtree(node.state, ignore_errors=True)
            away.rename(node.state)
            node.start()
            async with node.client() as client:
                await (await client.sandboxes.get(sandbox.id)).destroy()


async def test_restarted_node_answers_from_the_record(layer_store) -> None:
    with LiveNode(layer_store).running() as node:
        async with node.client() as client:
            sandbox, first = await losing(client, "again/1", "wait")
        node.kill()
        node.start()
        async with node.client() as client:
            again, told = await losing(client, "again/1", "wait")
            assert (again.id, again.rebuilt, told) == (sandbox.id, False, first)
            await again.destroy()


async def test_contents_are_fetched_and_a_dropped_one_is_told(layer_store) -> None:
    options = "[trajectory]\ncontent_bytes_max = 65536\n"
    with LiveNode(layer_store, options=options).running() as node:
        async with node.client() as client:
            for _ in range(2):
                async with client.rollout("long/1") as rollout:
                    sandbox = await rollout.create(**SMALL)
                    await sandbox.files.write("/root/long", b"x" * 100_000)
                    assert await sandbox.files.read("/root/long", length=50_000) == b"x" * 50_000
            async with client.rollout("long/1") as rollout:
                sandbox = await rollout.create(**SMALL)
                await sandbox.files.write("/root/long", b"x" * 100_000)
                await sandbox.files.read("/root/long", length=50_000)
                assert len(await sandbox.files.read("/root/long")) == 100_000  # live
            async with client.rollout("long/1") as rollout:
                sandbox = await rollout.create(**SMALL)
                await sandbox.files.write("/root/long", b"x" * 100_000)
                await sandbox.files.read("/root/long", length=50_000)
                with pytest.raises(ContentDropped, match="content_bytes_max"):
                    await sandbox.files.read("/root/long")
                await sandbox.destroy()


def test_sync_face_repeats_too(live_node) -> None:
    import skerry

    told = []
    for last in (False, True):
        with skerry.connect(live_node.url) as client, client.rollout("sync/1") as rollout:
            sandbox = rollout.create(**SMALL)
            told.append((sandbox.id, sandbox.rebuilt, sandbox.run(NONCE).text))
            if last:
                sandbox.destroy()
    assert told[0] == told[1]
