"""What is done to a sandbox is on record before it is answered, and runs once under its operation id."""

from __future__ import annotations

import asyncio
import hashlib
import math
import secrets
from pathlib import Path

import msgspec
import pytest
from test_restart import kill

from skerry.errors import Conflict, NotFound, OutcomeUnknown, StorageFailed
from skerry.node import ledger
from skerry.node.recovery import recover
from skerry.spec.command import CommandSpec
from skerry.spec.sandbox import SandboxSpec
from skerry.trajectory.options import TrajectoryOptions
from skerry.wire.control import SandboxChange
from skerry.wire.files import FileOp
from skerry.wire.http import CommitBody

OP = "0123456789abcdef" * 2


def dids(node, sandbox_id: str) -> list[ledger.Did]:
    """Returns what is on record of a sandbox, in order."""
    return [
        entry
        for subject, _, entry in node.ledger.replay()
        if subject == sandbox_id and isinstance(entry, ledger.Did)
    ]


async def of(data: bytes):
    for at in range(0, len(data), 100_000):
        yield data[at : at + 100_000]


async def write(node, sandbox, data: bytes, path: str = "/tmp/f", op: str | None = OP, **more):
    how = {"mode": None, "parents": False, "append": False, "exclusive": False} | more
    return await node.files.write(sandbox, path, None, of(data), op=op, **how)


async def read(node, sandbox, path: str = "/tmp/f") -> bytes:
    return b"".join([piece async for piece in node.files.read(sandbox, path, None)])


async def test_each_kind_of_operation_is_on_record_with_request_and_result(stand) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec(rollout="r-1"))
        await write(node, sandbox, b"hello")
        assert await read(node, sandbox) == b"hello"
        await node.files.apply(sandbox, FileOp(op="mkdir", path="/d", parents=True))
        await node.files.apply(sandbox, FileOp(op="stat", path="/tmp/f"))
        await node.control.pause(sandbox)
        await node.control.resume(sandbox)
        await node.control.change(sandbox, SandboxChange(ttl_s=500))
        commit = await node.commits.begin(sandbox, CommitBody(name="workspace/x"))
        await commit.layer
        await node.commits.settled()
        done = dids(node, sandbox.id)
        told = {did.action: did for did in done}
        assert list(told) == [
            "file.write",
            "file.read",
            "file.mkdir",
            "file.stat",
            "pause",
            "resume",
            "change",
            "commit",
            "commit.packed",
        ]
        assert told["file.write"].request == {"path": "/tmp/f", "content": b"hello"}
        assert told["file.write"].op == bytes.fromhex(OP)
        assert told["file.write"].result["size"] == 5
        assert told["file.read"].result == {"content": b"hello"}
        assert told["file.mkdir"].request == {"path": "/d", "parents": True}
        assert told["file.stat"].result["entries"][0]["size"] == 5
        assert told["change"].request == {"ttl_s": 500.0}
        assert told["commit"].op.hex() == commit.id
        assert told["commit.packed"].result["digest"].startswith("sha256:")
        assert all(0 < did.started <= did.ended and did.error is None for did in done)


async def test_failure_is_on_record_as_its_error(stand) -> None:
    async with stand.serving() as (node, api):
        sid = await api.create()
        await api.call("GET", f"/v1/sandboxes/{sid}/files?path=/none&op={OP}", status=404)
        await api.call("PUT", f"/v1/sandboxes/{sid}/files?path=/x/", data=b"x", status=400)
        first, second = dids(node, sid)
        assert (first.action, first.error.code, first.op.hex()) == ("file.read", "not_found", OP)
        assert (second.action, second.error.code) == ("file.write", "file_refused")


async def test_repeat_of_an_operation_id_gets_the_recorded_answer_and_changes_nothing(
    stand,
) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        first = await write(node, sandbox, b"one")
        await write(node, sandbox, b"two", op=None)
        assert await write(node, sandbox, b"one") == first
        assert await read(node, sandbox) == b"two"
        for change in ({"data": b"one!"}, {"path": "/tmp/g"}, {"mode": 0o600}):
            with pytest.raises(Conflict):
                await write(node, sandbox, **({"data": b"one"} | change))
        with pytest.raises(Conflict):
            await node.files.apply(sandbox, FileOp(op="mkdir", path="/tmp/f"), op=OP)
        assert await read(node, sandbox) == b"two"


async def test_recorded_error_is_told_again_and_nothing_is_tried(stand) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        mkdir = FileOp(op="mkdir", path="/a/b")
        with pytest.raises(NotFound):
            await node.files.apply(sandbox, mkdir, op=OP)
        await node.files.apply(sandbox, FileOp(op="mkdir", path="/a", parents=True))
        with pytest.raises(NotFound):
            await node.files.apply(sandbox, mkdir, op=OP)
        await node.files.apply(sandbox, mkdir, op=secrets.token_hex(16))


async def test_repeat_joins_the_one_that_runs(stand) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        gate = asyncio.Event()

        async def slow():
            yield b"a"
            await gate.wait()
            yield b"b"

        how = {"mode": None, "parents": False, "append": False, "exclusive": False, "op": OP}
        first = asyncio.create_task(node.files.write(sandbox, "/tmp/f", None, slow(), **how))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(write(node, sandbox, b"ab"))
        await asyncio.sleep(0.05)
        assert not second.done()
        gate.set()
        assert await first == await second
        assert [did.action for did in dids(node, sandbox.id)] == ["file.write"]


async def test_intent_without_an_end_is_an_unknown_outcome_after_a_kill(stand) -> None:
    node = stand.build()
    await stand.backend.start()
    await recover(node)
    sandbox = await node.lives.create(SandboxSpec())
    gate = asyncio.Event()

    async def stuck():
        yield b"a"
        await gate.wait()

    how = {"mode": None, "parents": False, "append": False, "exclusive": False, "op": OP}
    writing = asyncio.create_task(node.files.write(sandbox, "/tmp/f", None, stuck(), **how))
    await asyncio.sleep(0.05)
    await kill(node)
    writing.cancel()
    await asyncio.wait((writing,))
    for _ in range(2):  # it is on record from the first start on
        async with stand.alive() as again:
            found = again.sandboxes.get(sandbox.id)
            with pytest.raises(OutcomeUnknown):
                await write(again, found, b"a")
            (did,) = dids(again, sandbox.id)
            assert (did.action, did.error.code) == ("file.write", "outcome_unknown")


async def test_recorded_answers_are_found_by_the_next_node(stand) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        first = await write(node, sandbox, b"x" * 300_000)
    async with stand.alive() as again:
        found = again.sandboxes.get(sandbox.id)
        await write(again, found, b"two", op=None)
        assert await write(again, found, b"x" * 300_000) == first
        with pytest.raises(Conflict):
            await write(again, found, b"y" * 300_000)
        assert await read(again, found) == b"two"


async def test_upload_that_a_client_breaks_off_may_be_repeated_under_its_id(stand) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())

        async def torn():
            yield b"half"
            raise ConnectionError("the client is gone")

        how = {"mode": None, "parents": False, "exclusive": False, "op": OP}
        with pytest.raises(ConnectionError):
            await node.files.write(sandbox, "/tmp/f", None, torn(), append=False, **how)
        assert (await write(node, sandbox, b"whole"))["size"] == 5
        first, second = dids(node, sandbox.id)
        assert first.error.code == "unavailable"
        assert second.error is None
        # half of what is appended may be there: nobody may do that again silently
        how["op"] = secrets.token_hex(16)
        with pytest.raises(ConnectionError):
            await node.files.write(sandbox, "/tmp/f", None, torn(), append=True, **how)
        with pytest.raises(OutcomeUnknown):
            await write(node, sandbox, b"half", append=True, op=how["op"])


async def test_long_contents_stand_once_by_digest_or_only_by_it(stand, shared) -> None:
    stand.shared = shared
    big, huge = b"b" * 200_000, b"h" * 3_000_000
    options = TrajectoryOptions(content_bytes_max=1_000_000)
    async with stand.alive(trajectory=options) as node:
        sandbox = await node.lives.create(SandboxSpec())
        await write(node, sandbox, big, op=None)
        assert await read(node, sandbox) == big
        await write(node, sandbox, huge, op=None)
        first, second, third = dids(node, sandbox.id)
        digest = hashlib.sha256(big).hexdigest()
        assert first.request["content"] == {"blob": digest, "bytes": len(big)}
        assert second.result["content"] == first.request["content"]
        dropped = {"dropped": True, "sha256": hashlib.sha256(huge).hexdigest(), "bytes": len(huge)}
        assert third.request["content"] == dropped
        contents = node.trail.contents
        assert Path(contents.path(digest)).read_bytes() == big
        assert contents.bytes == len(big)


async def test_long_streams_of_commands_are_kept_by_digest(stand, shared) -> None:
    stand.shared = shared
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        data = b"i" * (2 << 20)
        spec = CommandSpec(shell="cat", stdin=data, output_limit=4 << 20)
        result = await node.operations.run(sandbox, OP, spec)
        assert result.stdout == data
        entries = [entry for _, _, entry in node.ledger.replay()]
        (asked,) = [entry for entry in entries if isinstance(entry, ledger.Asked)]
        (answered,) = [entry for entry in entries if isinstance(entry, ledger.Answered)]
        content = {"blob": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        assert asked.kept == {"stdin": content}
        assert answered.kept == {"stdout": content}


async def test_full_disk_refuses_before_anything_is_done(stand, monkeypatch) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        with monkeypatch.context() as full:
            real = node.ledger.append

            def append(sandbox_id, entry):
                if isinstance(entry, ledger.Doing):
                    raise StorageFailed("the disk is full")
                return real(sandbox_id, entry)

            full.setattr(node.ledger, "append", append)
            with pytest.raises(StorageFailed):
                await write(node, sandbox, b"one")
        assert (await write(node, sandbox, b"one", exclusive=True))["size"] == 3


async def test_chapters_are_linked_and_let_go_of_in_turn(stand, monkeypatch) -> None:
    monkeypatch.setattr("skerry.node.ledger.CHAPTER_BYTES", 4096)
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        for number in range(120):
            await write(node, sandbox, b"%d" % number * 100, op=f"{number:032x}")
        records = list(node.ledger._journal.replay())
        heads = {}
        links = 0
        for record in records:
            if record.kind == "continued":
                links += 1
                before = record.data["chapter"]
                assert record.data["hash"] == heads.get(before, record.data["hash"])
                assert len(record.data["hash"]) == 16
            heads[record.subject] = node.ledger._journal.head(record.subject)
        assert 2 <= links <= 7  # older chapters are gone
        assert len(sandbox.acts) < 120
        last = await write(node, sandbox, b"119" * 100, op=f"{119:032x}")
        assert last["size"] == 300


async def test_harness_adds_verdicts_once_and_only_in_its_own_name(stand) -> None:
    async with stand.serving() as (node, api):
        sid = await api.create()
        url = f"/v1/sandboxes/{sid}/events"
        verdict = {"action": "verdict", "request": {"task": "t"}, "result": {"reward": 1.0}}
        body = {"events": [{"action": "harness.step", "usage": {"tokens": 3}}, verdict]}
        taken = await api.call("POST", f"{url}?op={OP}", body)
        assert taken["count"] == 2
        assert await api.call("POST", f"{url}?op={OP}", body) == taken
        other = {"events": [verdict | {"result": {"reward": 0.0}}]}
        await api.call("POST", f"{url}?op={OP}", other, status=409)
        first, second = dids(node, sid)
        assert (first.action, first.usage) == ("harness.step", {"tokens": 3})
        assert (second.action, second.result) == ("verdict", {"reward": 1.0})
        for bad in (
            {"events": []},
            {"events": [{"action": "file.write"}]},
            {"events": [{"action": "harness."}]},
            {"events": [verdict] * 1001},
            {"events": [verdict | {"error": {"code": "x", "fault": "bug", "message": "m"}}]},
            {"events": [{"action": "verdict", "result": 3}]},
        ):
            await api.call("POST", url, bad, status=422)
        odd = msgspec.msgpack.encode({"events": [{"action": "verdict", "result": {"x": {1: 2}}}]})
        head = {"content-type": "application/msgpack", "accept": "application/json"}
        async with api.session.post(url, data=odd, headers=head) as answer:
            assert answer.status in {200, 422}
        for name, value in (("result", {"reward": math.nan}), ("usage", {"x": [math.inf]}),
                            ("started", -math.inf), ("ended", math.nan)):  # fmt: skip
            endless = msgspec.msgpack.encode({"events": [{"action": "verdict", name: value}]})
            async with api.session.post(url, data=endless, headers=head) as answer:
                assert (answer.status, "not finite" in await answer.text()) == (422, True)
        assert len(dids(node, sid)) <= 3
        await api.call("POST", f"/v1/sandboxes/{sid}/stop")
        await api.call("POST", url, {"events": [verdict]})
        await api.call("DELETE", f"/v1/sandboxes/{sid}")
        await api.call("POST", url, {"events": [verdict]}, status=404)
