"""The journal's disk is full at one kind of record: errors are typed, and no sandbox is lost by it."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from unittest.mock import patch

import pytest
from test_restart import kill

from skerry.errors import (
    Conflict,
    OutcomeUnknown,
    Overloaded,
    PlatformError,
    SkerryError,
    StorageFailed,
)
from skerry.guest.client import GuestClient
from skerry.node import ledger
from skerry.node.ledger import Ledger
from skerry.spec.command import CommandSpec
from skerry.spec.job import JobSpec
from skerry.spec.sandbox import SandboxSpec, State
from skerry.spec.session import SessionSpec
from skerry.wire.control import SandboxChange
from skerry.wire.files import FileOp
from skerry.wire.http import CommitBody
from skerry.wire.jobs import JobChange

TRUE = CommandSpec(argv=("true",))
KINDS = list(ledger._KINDS.values())


async def refused_by_the_agent(node, sandbox) -> None:
    """A command that is on record and then never leaves: its record is made void."""
    busy = Overloaded("it does not read", limit="channel", retry_after_s=0.1)
    with patch.object(GuestClient, "start", side_effect=busy), suppress(Overloaded):
        await node.operations.run(sandbox, None, TRUE)


async def use_a_job(node) -> None:
    """A job from its beginning to its end."""
    job = node.keeping.make(JobSpec(id="j"), owner="")
    try:
        await node.keeping.pause(job)
        await node.keeping.resume(job)
        node.keeping.change(job, JobChange(priority=1))
    finally:
        await node.keeping.end(job, "it is over", delete=True)


async def do_everything(node) -> list[SkerryError]:
    """Makes a sandbox, uses it in every way, and stops it; returns what was refused."""
    refused: list[SkerryError] = []

    async def attempt(work):
        try:
            return await work
        except SkerryError as error:
            refused.append(error)
            return None

    sandbox = await attempt(node.lives.create(SandboxSpec(key="k")))
    if sandbox is None:
        return refused
    await attempt(node.operations.run(sandbox, None, TRUE))
    await attempt(refused_by_the_agent(node, sandbox))
    sandbox.handle_next = sandbox.handle_top  # the next one needs another block of them
    await attempt(node.control.pause(sandbox))
    await attempt(node.control.resume(sandbox))
    await attempt(node.control.change(sandbox, SandboxChange(ttl_s=1000)))
    await attempt(node.operations.run(sandbox, None, TRUE))
    await attempt(node.files.apply(sandbox, FileOp(op="mkdir", path="/d", parents=True)))
    await attempt(use_a_job(node))
    await attempt(node.sessions.create(sandbox, "s", SessionSpec()))
    await attempt(node.sessions.close(sandbox, "s"))
    commit = await attempt(node.commits.begin(sandbox, CommitBody(name="workspace/x")))
    if commit is not None:
        await attempt(commit.layer)
    return refused


@pytest.mark.parametrize("kind", KINDS)
async def test_full_disk_at_this_record_is_told_and_passes(stand, monkeypatch, kind) -> None:
    async with stand.alive() as node:
        real = node.ledger._journal.append

        def full(subject, record, data):
            if record == kind:
                raise StorageFailed("the disk is full")
            return real(subject, record, data)

        with monkeypatch.context() as patch:
            patch.setattr(node.ledger._journal, "append", full)
            if kind == "continued":
                patch.setattr(ledger, "CHAPTER_BYTES", 1)
            refused = await do_everything(node)
            assert all(isinstance(error, PlatformError) for error in refused)
            # only ends need no record: freeing does not wait for a disk
            assert bool(refused) == (kind not in ("ending", "session-ended", "packed", "job-ended"))
            for sandbox in node.sandboxes:
                assert sandbox.state is State.RUNNING
            assert len(stand.world.instances) == len(node.sandboxes)
        # there is room again: everything works, with the same sandbox
        assert await do_everything(node) == []
        node.check_invariants()
        assert len(node.sandboxes) == 1
    async with stand.alive() as again:
        (sandbox,) = again.sandboxes
        assert again.commits.list_all()
        assert {one.state for one in again.commits.list_all()} <= {"done", "packing"}
        await again.commits.settled()
        assert stand.world.views == {}
        assert (await again.operations.run(sandbox, None, TRUE)).ok
        await again.lives.delete(sandbox)
    assert stand.world.instances == {}


async def test_delete_with_a_full_disk_leaves_nothing_even_after_a_kill(stand, monkeypatch) -> None:
    async with stand.alive() as node:
        made = [await node.lives.create(SandboxSpec()) for _ in range(3)]

        def full(*_: object) -> None:
            raise StorageFailed("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(node.ledger._journal, "append", full)
            await asyncio.gather(*(node.lives.delete(one) for one in made))
            assert stand.world.instances == {}
            assert (node.admission.sandboxes, len(node.sandboxes)) == (0, 0)
    # the journal still tells of them: the next start finds none, and says so
    async with stand.alive() as again:
        assert {one.state for one in again.sandboxes} == {State.FAILED}
        for one in again.sandboxes:
            await again.lives.delete(one)
    async with stand.alive() as third:
        assert len(third.sandboxes) == 0


def appended(text: str) -> bytes:
    """Returns a body that is longer than what stands in a record."""
    return text.encode() * 10_000


async def append(node, sandbox, text: str, op: str) -> None:
    async def body():
        yield appended(text)

    how = {"mode": None, "parents": False, "append": True, "exclusive": False}
    await node.files.write(sandbox, "/tmp/f", None, body(), op=op, **how)


async def written(node, sandbox) -> bytes:
    return b"".join([piece async for piece in node.files.read(sandbox, "/tmp/f", None)])


@pytest.fixture
def full_at(monkeypatch):
    """Lets a node's disk be full at one kind of record within a block."""

    @contextmanager
    def full(node, kind: str):
        real = node.ledger._journal.append

        def refuse(subject, record, data):
            if record == kind:
                raise StorageFailed("the disk is full")
            return real(subject, record, data)

        with monkeypatch.context() as patch:
            patch.setattr(node.ledger._journal, "append", refuse)
            yield

    return full


async def test_change_whose_end_found_no_room_is_not_done_again_by_its_repeat(
    stand, full_at
) -> None:
    first, second = "1" * 32, "2" * 32
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        with full_at(node, "did"):
            for _ in range(2):  # the second time it only tries to record it
                with pytest.raises(StorageFailed):
                    await append(node, sandbox, "a", first)
        await append(node, sandbox, "a", first)
        assert await written(node, sandbox) == appended("a")
        with pytest.raises(Conflict):
            await append(node, sandbox, "b", first)
        # what nobody asks for again is on record before the next change
        with full_at(node, "did"), pytest.raises(StorageFailed):
            await append(node, sandbox, "b", second)
        await node.files.apply(sandbox, FileOp(op="mkdir", path="/d", parents=True))
        told = [
            entry.op.hex() or entry.action
            for subject, _, entry in node.ledger.replay()
            if subject == sandbox.id and isinstance(entry, ledger.Did)
        ]
        assert told[0] == first
        assert told.index(second) < len(told) - 1
        assert sandbox.untold == {}
        assert (await node.trajectories.check(sandbox.id)).findings == ()
    async with stand.alive() as again:
        (sandbox,) = again.sandboxes
        await append(again, sandbox, "b", second)
        assert await written(again, sandbox) == appended("a") + appended("b")


async def test_change_under_way_at_a_kill_is_unknown_though_the_next_node_has_no_room(
    stand, full_at, monkeypatch
) -> None:
    op = "3" * 32
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        with full_at(node, "did"), pytest.raises(StorageFailed):
            await append(node, sandbox, "a", op)
        await kill(node)
    real = Ledger.append

    def refuse(self, subject, entry, *more):
        if isinstance(entry, ledger.Did):
            raise StorageFailed("the disk is full")
        return real(self, subject, entry, *more)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "append", refuse)
        async with stand.alive() as again:
            (sandbox,) = again.sandboxes
            with pytest.raises(StorageFailed):
                await append(again, sandbox, "a", op)
            patch.setattr(Ledger, "append", real)
            with pytest.raises(OutcomeUnknown):
                await append(again, sandbox, "a", op)
            assert await written(again, sandbox) == appended("a")
