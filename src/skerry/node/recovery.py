"""After a restart: the journal says what there was, the backends say what is left of it.

| the journal ends with | the instance is | the sandbox becomes |
|---|---|---|
| Began | anything | forgotten; `sweep` of the backend removes what there may be |
| Made | live | running; its commands are attached to again |
| Made | gone | failed; its commands under way are OutcomeUnknown |
| Ending | live or gone | destroyed; stopped or failed as it was to be, or forgotten |
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from skerry.backends.api import Instance, Sweepable
from skerry.errors import OutcomeUnknown, SkerryError
from skerry.guest.api import LiveOperation
from skerry.guest.client import GuestClient
from skerry.guest.output import MemorySink
from skerry.node import command, ledger
from skerry.node.answers import past_of
from skerry.node.node import Node
from skerry.node.operation import Op, Past
from skerry.node.sandbox import HANDLES_BLOCK, Sandbox
from skerry.spec.command import CommandSpec
from skerry.spec.sandbox import State
from skerry.trajectory.journal import Position

log = logging.getLogger("skerry.node")

AT_ONCE = 16


@dataclass
class Story:
    """What the journal tells of one sandbox. Commands are in the order of their beginning."""

    began: ledger.Began | None = None
    made: ledger.Made | None = None
    ending: ledger.Ending | None = None
    handle_top: int = HANDLES_BLOCK
    pending: dict[bytes, ledger.Asked] = field(default_factory=dict)
    chapters: dict[bytes, str] = field(default_factory=dict)  # of what is pending
    past: dict[str, Past] = field(default_factory=dict)

    def take(self, position: Position, entry: ledger.Entry) -> None:
        """Takes the next entry."""
        match entry:
            case ledger.Began():
                self.began = entry
            case ledger.Made():
                self.made = entry
            case ledger.Ending():
                self.ending = entry
            case ledger.Handles():
                self.handle_top = max(self.handle_top, entry.top)
            case ledger.Asked():
                self.pending[entry.op] = entry
                self.chapters[entry.op] = position.subject
            case ledger.Void():
                self.pending.pop(entry.op, None)
            case ledger.Answered():
                asked = self.pending.pop(entry.op, None)
                chapter = self.chapters.pop(entry.op, position.subject)
                fingerprint, spec = (
                    (b"", CommandSpec()) if asked is None else (asked.fingerprint, asked.spec)
                )
                past = past_of(chapter, fingerprint, spec, entry, position)
                self.past[entry.op.hex()] = past


def read_stories(entries: ledger.Ledger) -> dict[str, Story]:
    """Returns what the journal holds, by sandbox, oldest first."""
    stories: dict[str, Story] = {}
    for sandbox_id, position, entry in entries.replay():
        stories.setdefault(sandbox_id, Story()).take(position, entry)
    return stories


async def recover(node: Node) -> None:
    """Brings back what an earlier process left; runs before anyone is served."""
    stories = read_stories(node.ledger)
    keep = {
        (sandbox_id, op_id)
        for sandbox_id, story in stories.items()
        for op_id in (*(op.hex() for op in story.pending), *story.past)
    }
    node.outputs.sweep(keep)
    places = asyncio.Semaphore(AT_ONCE)

    async def one(sandbox_id: str, story: Story) -> None:
        async with places:
            await _recover_one(node, sandbox_id, story)

    async with asyncio.TaskGroup() as group:
        for sandbox_id, story in stories.items():
            if story.began is None or story.made is None:
                log.warning("%s was being made when the node ended: undone", sandbox_id)
                node.ledger.forget(sandbox_id)
            else:
                sandbox = _sandbox(node, sandbox_id, story, story.began, story.made)
                node.sandboxes.add(sandbox)
                group.create_task(one(sandbox_id, story))
    for backend in node.backends.values():
        if isinstance(backend, Sweepable):
            for line in await backend.sweep():
                log.warning("swept: %s", line)


def _sandbox(
    node: Node, sandbox_id: str, story: Story, began: ledger.Began, made: ledger.Made
) -> Sandbox:
    return Sandbox(
        sandbox_id,
        began.spec,
        began.digests,
        began.created,
        node.clock.wall(),
        node.clock.monotonic(),
        owner=began.owner,
        create_ms=made.create_ms,
        handle_next=story.handle_top,
        handle_top=story.handle_top,
        ops=dict(story.past),
        answer_bytes=sum(past.size for past in story.past.values()),
    )


async def _recover_one(node: Node, sandbox_id: str, story: Story) -> None:
    sandbox = node.sandboxes.get(sandbox_id)
    try:
        instance, reason = await _find(node, sandbox, story)
    except Exception:
        log.exception(
            "%s cannot be recovered: it stays in the journal for the next start", sandbox_id
        )
        node.sandboxes.remove(sandbox)
        return
    sandbox.instance = instance
    if instance is not None:
        node.admission.sandboxes += 1
    if story.ending is not None:
        await _end(node, sandbox, story, story.ending)
    elif instance is None:
        sandbox.reason = reason
        sandbox.end_error = OutcomeUnknown(reason)
        sandbox.state = State.FAILED
        node.ledger.append(sandbox.id, ledger.Ending(State.FAILED, reason))
        _lose_pending(node, sandbox, story, reason)
        node.lives.keep_ended(sandbox)
    else:
        await _adopt(node, sandbox, story)


async def _find(node: Node, sandbox: Sandbox, story: Story) -> tuple[Instance | None, str]:
    """Returns the live instance, or None and why there is none."""
    backend = node.backends.get(sandbox.spec.backend)
    if backend is None or story.made is None:
        return None, f"the node was restarted without the backend {sandbox.spec.backend}"
    instance = await backend.recover(story.made.record)
    return instance, "its instance was lost while the node was away"


async def _end(node: Node, sandbox: Sandbox, story: Story, ending: ledger.Ending) -> None:
    """Finishes a destruction that was under way."""
    sandbox.reason = ending.reason
    sandbox.state = State.FAILED if ending.state is State.FAILED else State.STOPPED
    _lose_pending(node, sandbox, story, ending.reason or "the sandbox ended")
    if ending.delete or sandbox.instance is not None:
        sandbox.state = State.FAILED  # the state from which a destruction is repeated
        sandbox.deleting = ending.delete
    if ending.delete:
        await node.lives.delete_quietly(sandbox)
    elif sandbox.instance is not None:
        await node.lives.destroy_quietly(sandbox)
        if ending.state is State.STOPPED and not sandbox.has_instance:
            sandbox.state = State.STOPPED
    else:
        node.lives.keep_ended(sandbox)


def _lose_pending(node: Node, sandbox: Sandbox, story: Story, reason: str) -> None:
    """Records that nobody will ever know what commands under way have done."""
    for asked in story.pending.values():
        op = _enter(node, sandbox, story, asked)
        error = OutcomeUnknown(
            f"the sandbox was lost while the command ran: {reason}", sandbox=sandbox.id
        )
        node.execution.finish(sandbox, op, error, None)


async def _adopt(node: Node, sandbox: Sandbox, story: Story) -> None:
    """Takes a live instance and its commands over."""
    sandbox.state = State.RUNNING
    node.owners.recover(sandbox)
    node.lives.deadlines.arm(sandbox)
    try:
        if sandbox.pausable is not None:
            await sandbox.pausable.resume()
        sandbox.link = link = node.lives.link(sandbox)
        client = await link.connect()
    except SkerryError as error:
        reason = f"its agent did not answer after a restart of the node: {error.message}"
        _lose_pending(node, sandbox, story, reason)
        node.lives.fail(sandbox, reason, OutcomeUnknown(reason))
        return
    live = {operation.op_id: operation for operation in client.live}
    used = max((operation.handle for operation in client.live), default=0) + 1
    sandbox.handle_next = sandbox.handle_top = max(sandbox.handle_top, used)
    for asked in story.pending.values():
        if live.pop(asked.agent_op, None) is None:  # it never reached the agent
            node.ledger.append(sandbox.id, ledger.Void(asked.op))
            node.outputs.drop(sandbox.id, asked.op.hex())
            continue
        op = _enter(node, sandbox, story, asked)
        node.tasks.spawn(node.execution.drive(sandbox, op, link))
    for operation in live.values():
        _let_go(client, operation)


def _enter(node: Node, sandbox: Sandbox, story: Story, asked: ledger.Asked) -> Op:
    """Counts a command of an earlier process as under way."""
    sink = node.outputs.reopen(sandbox.id, asked.op.hex(), asked.spec.output_limit)
    op = Op(
        asked.op.hex(),
        asked.spec,
        fingerprint=asked.fingerprint,
        handle=asked.handle,
        started=asked.started,
        sink=sink,
    )
    op.agent_op = asked.agent_op
    op.asked = story.chapters[asked.op]
    op.shell = command.BASH if asked.agent_op == asked.op else command.SH
    op.adopted = op.sent = True
    node.execution.enter(sandbox, op)
    return op


def _let_go(client: GuestClient, operation: LiveOperation) -> None:
    """Ends what nobody asks for any more: transfers of files, and what was answered already."""
    try:
        if operation.done:
            client.acknowledge(operation.handle)
        else:
            client.attach(operation.handle, operation.op_id, MemorySink(0), 0, 0).abandon()
    except SkerryError as error:
        log.debug("an operation of an earlier node was not ended: %s", error)
