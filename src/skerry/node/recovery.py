"""After a restart: the journal says what there was, the backends say what is left of it.

| the journal ends with | the instance is | the sandbox becomes |
|---|---|---|
| Began | anything | forgotten; `sweep` of the backend removes what there may be |
| Made | live | running, or paused as it was; its commands are attached to again |
| Made | gone | failed; its commands under way are OutcomeUnknown |
| Ending | live or gone | destroyed; stopped or failed as it was to be, or forgotten |

Commits that were acknowledged and not packed are packed. A fork that was under way is undone: its view
goes with the sweep.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from skerry.backends.api import Instance, Sweepable
from skerry.backends.shared import proc
from skerry.errors import Bug, OutcomeUnknown, PlatformError, SkerryError, StorageFailed
from skerry.guest.client import GuestClient
from skerry.node import ledger
from skerry.node.admission.holders import JOB_LABEL, Holder
from skerry.node.clock import born_at, sleep
from skerry.node.commands import command
from skerry.node.commands.inputs import ShortInput, SpooledInput
from skerry.node.commands.operation import Op
from skerry.node.life.creation import claim_of
from skerry.node.life.link import RECONNECT_S, Link, let_go
from skerry.node.life.sandbox import Sandbox
from skerry.node.node import Node
from skerry.node.stories import Story, read_stories
from skerry.spec.sandbox import State
from skerry.wire.guest import KnownOperation
from skerry.wire.http import ErrorBody

log = logging.getLogger("skerry.node")

AT_ONCE = 16
FIRST_CONNECT_S = 2.0  # an agent that takes longer is waited for while others are served
CONNECT_AGAIN_S = 0.5
FIND_AGAIN_S = (0.1, 0.5, 2.0)


async def recover(node: Node) -> None:
    """Brings back what an earlier process left; runs before anyone is served.

    One sandbox that cannot be brought back is failed with its reason, and never keeps the others,
    or the node, from starting.
    """
    node.owners.expect()
    stories, commits, jobs = read_stories(node.ledger)
    node.keeping.recall(jobs)
    node.commits.claim(commits)
    keep = {
        (sandbox_id, op_id)
        for sandbox_id, story in stories.items()
        for op_id in (*(op.hex() for op in story.pending), *story.past)
    }
    node.outputs.sweep(keep)
    places = asyncio.Semaphore(AT_ONCE)

    async def one(sandbox: Sandbox, story: Story) -> None:
        async with places:
            await _recover_one(node, sandbox, story)

    async with asyncio.TaskGroup() as group:
        for sandbox_id, story in stories.items():
            if story.began is None or story.made is None:
                log.warning("%s was being made when the node ended: undone", sandbox_id)
                node.lives.forget_record(sandbox_id)
                continue
            sandbox = _sandbox(node, sandbox_id, story, story.began, story.made)
            try:
                node.sandboxes.add(sandbox)
            except SkerryError:
                log.exception("%s cannot be listed: undone", sandbox_id)
                node.lives.forget_record(sandbox_id)
                continue
            _end_acts(node, sandbox, story)
            # Ended ones too: nobody else deletes what its owner can no longer ask for.
            node.owners.recover(sandbox)
            node.jobs.recover_member(sandbox)
            group.create_task(one(sandbox, story))
    for name, backend in node.backends.items():
        if isinstance(backend, Sweepable):
            try:
                lines = await backend.sweep()
            except SkerryError:
                log.exception("backend %s: not everything of an earlier node is removed", name)
                # A function container that is left may use the device that it was made with.
                node.calls.devices.desk.withhold(
                    "containers of an earlier node could not be removed, which may use devices: "
                    "restart the node"
                )
                continue
            for line in lines:
                log.warning("swept: %s", line)
    node.commits.resume()
    node.keeping.go_on(jobs)


def _sandbox(
    node: Node, sandbox_id: str, story: Story, began: ledger.Began, made: ledger.Made
) -> Sandbox:
    return Sandbox(
        sandbox_id,
        began.spec if story.changed is None else story.changed.spec,
        began.digests,
        began.created,
        node.clock.wall(),
        node.clock.monotonic(),
        born_at(node.clock, began.created, began.born, same_boot=began.boot == proc.boot_id()),
        owner=began.owner,
        holder=Holder(began.tenant, began.owner, began.spec.labels.get(JOB_LABEL)),
        asked=None if story.changed is None else began.spec,
        image=began.image,
        parent=began.parent,
        made_of=began.made_of,
        restored=began.restored,
        mounts=began.mounts,
        create_ms=made.create_ms,
        handle_next=story.handle_top,
        handle_top=story.handle_top,
        ops=dict(story.past),
        acts=dict(story.acts),
        answer_bytes=sum(past.size for past in story.past.values()),
    )


def _end_acts(node: Node, sandbox: Sandbox, story: Story) -> None:
    """Records of what was being done beside commands that nobody will ever know how it ended."""
    now = node.clock.wall()
    unknown = OutcomeUnknown("the node was killed while it was being done", sandbox=sandbox.id)
    for doing in story.doing.values():
        error, times = ErrorBody.of(unknown), (doing.started, now)
        did = ledger.Did(doing.action, doing.request, doing.op, None, error, *times)
        node.trail.untold(sandbox, did)  # what cannot be recorded, the next start finds again


async def _recover_one(node: Node, sandbox: Sandbox, story: Story) -> None:
    try:
        await _take_over(node, sandbox, story)
    except Exception as error:
        log.exception("%s cannot be recovered", sandbox.id)
        reason = f"it could not be taken over by the restarted node: {error}"
        if sandbox.state is State.CREATING:
            _lost(node, sandbox, story, reason)
        else:
            node.lives.fail(sandbox, reason, OutcomeUnknown(reason))


async def _take_over(node: Node, sandbox: Sandbox, story: Story) -> None:
    instance, reason = await _find(node, sandbox, story)
    sandbox.instance = instance
    if instance is not None:
        node.admission.count(claim_of(sandbox))
    if story.ending is not None:
        await _end(node, sandbox, story, story.ending)
    elif instance is None:
        _lost(node, sandbox, story, reason)
    else:
        with contextlib.suppress(SkerryError):  # then its network is closed, and the log says so
            await node.networks.check(sandbox.spec.network)
        await _adopt(node, sandbox, story)


def _lost(node: Node, sandbox: Sandbox, story: Story, reason: str) -> None:
    """Nothing of its instance is left, or can be used: it is failed, and its commands unknown."""
    sandbox.reason = reason
    sandbox.end_error = OutcomeUnknown(reason)
    sandbox.state = State.FAILED
    try:
        node.ledger.append(sandbox.id, ledger.Ending(State.FAILED, reason, lost=True))
    except StorageFailed as error:
        log.warning("the end of %s is not on record: %s", sandbox.id, error)
    _lose_pending(node, sandbox, story, reason)
    node.lives.keep_ended(sandbox)


async def _find(node: Node, sandbox: Sandbox, story: Story) -> tuple[Instance | None, str]:
    """Returns the live instance, or None and why there is none."""
    backend = node.backends.get(sandbox.spec.backend)
    if backend is None or story.made is None:
        return None, f"the node was restarted without the backend {sandbox.spec.backend}"
    tries = 0
    while True:
        try:
            instance = await backend.recover(story.made.record)
        except PlatformError:
            if tries == len(FIND_AGAIN_S):
                raise
            await sleep(node.clock, FIND_AGAIN_S[tries])
            tries += 1
        else:
            return instance, "its instance was lost while the node was away"


async def _end(node: Node, sandbox: Sandbox, story: Story, ending: ledger.Ending) -> None:
    """Finishes a destruction that was under way."""
    sandbox.reason = ending.reason
    if ending.lost:
        sandbox.end_error = OutcomeUnknown(ending.reason or "the sandbox ended")
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
    """Takes a live instance and its commands over; an agent that is slow is waited for apart."""
    sandbox.state = State.RESUMING  # requests wait until it is known how it stands
    node.lives.deadlines.arm(sandbox)
    if sandbox.pausable is not None and not story.paused:
        await sandbox.pausable.resume()
    sandbox.hold(node.clock.monotonic(), held=story.paused)
    sandbox.paused_by = story.paused_by if story.paused else ""
    sandbox.link = node.lives.link(sandbox)
    try:
        client = await sandbox.link.connect(FIRST_CONNECT_S)
    except SkerryError as error:
        log.warning("%s: its agent does not answer yet: %s", sandbox.id, error.message)
        node.tasks.spawn(_adopt_late(node, sandbox, story, sandbox.link))
        return
    _attach(node, sandbox, story, client)


async def _adopt_late(node: Node, sandbox: Sandbox, story: Story, link: Link) -> None:
    """Asks again until the agent answers, or for so long that it never will."""
    until = node.clock.monotonic() + RECONNECT_S
    if sandbox.pausable is not None and story.paused:
        story.paused, sandbox.paused_by = (
            False,
            "",
        )  # where the agent stands still with the rest, it must run to answer
        with contextlib.suppress(SkerryError):
            await sandbox.pausable.resume()
        sandbox.hold(node.clock.monotonic(), held=False)
        await link.hold(held=False)
    while sandbox.state is State.RESUMING:
        try:
            client = await link.connect()
        except SkerryError as error:
            final = not isinstance(error, PlatformError)
            if not final and node.clock.monotonic() < until:
                await sleep(node.clock, CONNECT_AGAIN_S)
                continue
            reason = f"its agent did not answer after a restart of the node: {error.message}"
            _lose_pending(node, sandbox, story, reason)
            node.lives.fail(sandbox, reason, OutcomeUnknown(reason))
            return
        _attach(node, sandbox, story, client)
        return


def _attach(node: Node, sandbox: Sandbox, story: Story, client: GuestClient) -> None:
    """Goes on with the commands that the agent knows; the others never reached it."""
    link = sandbox.link
    if link is None:
        raise Bug(f"{sandbox.id} has an agent and no link")
    live = {operation.op_id: operation for operation in client.live}
    used = max((operation.handle for operation in client.live), default=0) + 1
    sandbox.handle_next = sandbox.handle_top = max(sandbox.handle_top, used)
    for began in story.sessions.values():
        inside = live.pop(began.op, None) if _is_live(began, live) else None
        node.sessions.adopt(sandbox, began, story.seqs.get(began.id, 0), inside)
    for asked in story.pending.values():
        in_session = asked.spec.session is not None  # the session tells, or nobody can
        if not in_session and live.pop(asked.agent_op, None) is None:  # it never reached the agent
            _void(node, sandbox, asked)
            continue
        op = _enter(node, sandbox, story, asked)
        node.tasks.spawn(node.execution.drive(sandbox, op, link))
    for operation in live.values():  # transfers of files, and what was answered already
        let_go(client, operation)
    sandbox.state = State.PAUSED if story.paused else State.RUNNING
    sandbox.changes += 1
    ready, sandbox.deferred = sandbox.deferred, []
    sandbox.wake()
    for event in ready:
        node.tasks.spawn(node.lives.drive(sandbox, event))


def _is_live(began: ledger.SessionBegan, live: dict[bytes, KnownOperation]) -> bool:
    return began.op in live and not live[began.op].done


def _void(node: Node, sandbox: Sandbox, asked: ledger.Asked) -> None:
    try:
        node.ledger.append(sandbox.id, ledger.Void(asked.op))
    except StorageFailed as error:  # the next start finds out again that it never ran
        log.warning("%s: not on record that a command never ran: %s", sandbox.id, error)
    node.outputs.drop(sandbox.id, asked.op.hex())


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
    if asked.stdin_spooled:
        path = node.outputs.input_path(sandbox.id, op.id)
        op.input = SpooledInput(path, asked.stdin_spooled)
    elif asked.spec.stdin is not None:
        op.input = ShortInput(asked.spec.stdin)
    op.agent_op = asked.agent_op
    op.asked = story.chapters[asked.op]
    op.shell = command.BASH if asked.agent_op == asked.op else command.SH
    op.seq = asked.seq
    op.adopted = op.sent = True
    node.execution.enter(sandbox, op)
    return op
