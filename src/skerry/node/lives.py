"""Drives sandboxes through the lifecycle table: create, pause, resume, stop, delete, death."""

from __future__ import annotations

import asyncio
import logging
from collections import deque

import msgspec

from skerry.backends.api import Backend, CreateRequest, Pausable
from skerry.errors import (
    Bug,
    Conflict,
    InvalidRequest,
    OutcomeUnknown,
    SandboxFailed,
    SkerryError,
    StorageFailed,
)
from skerry.lifecycle import table
from skerry.lifecycle.table import Command, Event
from skerry.node import ledger
from skerry.node.admission import Gone
from skerry.node.deadlines import Deadlines
from skerry.node.handles import Handles
from skerry.node.holders import JOB_LABEL, Holder
from skerry.node.link import Link
from skerry.node.operation import Past
from skerry.node.parts import Parts
from skerry.node.sandbox import ENDED, Sandbox
from skerry.node.shortage import Claim
from skerry.spec import limits
from skerry.spec.layers import RootfsPlan
from skerry.spec.sandbox import SandboxSpec, State

log = logging.getLogger("skerry.node")

RETRY_DESTROY_S = (1.0, 2.0, 5.0, 15.0, 30.0)
SETTLE_S = 5.0


class Lives:
    """What may happen to sandboxes, and what then happens. One event at a time per sandbox.

    `feed` is synchronous, so a state and its journal entry never come apart; the commands that a
    row names are carried out after it, and report back as events.
    """

    def __init__(self, parts: Parts) -> None:
        self._clock = parts.clock
        self._timers = parts.timers
        self._tasks = parts.tasks
        self._identity = parts.identity
        self._sandboxes = parts.sandboxes
        self._admission = parts.admission
        self._ledger = parts.ledger
        self._handles = Handles(parts.ledger)
        self._results = parts.results
        self._outputs = parts.outputs
        self._images = parts.images
        self._backends = parts.backends
        self._owners = parts.owners
        self._ended_max = parts.config.limits.ended_max
        self._ended: deque[Sandbox] = deque()
        self.deadlines = Deadlines(
            parts.clock, parts.timers, stop=self.stop_soon, pause=self.pause_soon
        )

    # -- create -----------------------------------------------------------------------------------

    async def create(
        self,
        spec: SandboxSpec,
        *,
        owner: str | None = None,
        tenant: str = "",
        wait_s: float = 0.0,
        gone: Gone | None = None,
        bounded: bool = True,
        reserved: list[str] | None = None,
    ) -> Sandbox:
        """Returns a running sandbox, or the one that its key names already.

        Waits for room for up to `wait_s` seconds, unless `gone` returns before (the client has
        left). `reserved` names claims of which this one takes one. Raises InvalidRequest,
        NotFound (no such layer), Conflict (the key names another spec), Overloaded, SandboxFailed,
        Unavailable; then nothing is left.
        """
        _check(spec)
        if spec.key is not None:
            known = await self._known(spec.key)
            if known is not None:
                return await self._join(known, spec)
        backend = self._backends.get(spec.backend)
        if backend is None:
            names = ", ".join(sorted(self._backends))
            raise InvalidRequest(f"backend: {spec.backend[:80]!r} is none of {names}")
        holder = Holder(tenant, owner, spec.labels.get(JOB_LABEL))
        owner = self._owners.admit(owner, detached=spec.detached)
        admission, wall, monotonic = self._admission, self._clock.wall(), self._clock.monotonic()
        sandbox = Sandbox(self._identity.sandbox_id(), spec, (), wall, wall, monotonic, owner=owner)
        claim = claim_of(sandbox)._replace(holder=holder)
        if reserved:
            admission.swap(reserved.pop(), claim)
        else:
            sandbox.waits = admission.ask(claim, wait_s=wait_s, priority=spec.priority)
        self._sandboxes.add(sandbox)
        self._owners.add(sandbox)
        try:
            if sandbox.waits is not None:
                await admission.until_admitted(sandbox.waits, gone)
                sandbox.waits = None
            async with admission.place(claim, priority=spec.priority, bounded=bounded, gone=gone):
                _check_wanted(sandbox)
                plan, sandbox.digests = await self._images.plan(spec)
                await self._make(sandbox, backend, plan, monotonic)
        except BaseException as error:
            cleaning = self._create_failed(sandbox, error)
            if cleaning is not None and isinstance(error, SkerryError):
                await asyncio.shield(cleaning)
            raise
        self._created(sandbox)
        return sandbox

    async def _known(self, key: str) -> Sandbox | None:
        """Returns what the key names; one that is being deleted is waited for, and named no more."""
        while (known := self._sandboxes.by_key.get(key)) is not None and known.deleting:
            await known.changed()
        return known

    async def _join(self, known: Sandbox, spec: SandboxSpec) -> Sandbox:
        if msgspec.msgpack.encode(known.asked_spec) != msgspec.msgpack.encode(spec):
            raise Conflict(f"the key {spec.key!r} names {known.id}, made from another spec")
        while known.state is State.CREATING and not known.gone:
            await known.changed()
        if known.gone:
            raise known.end_error or SandboxFailed("the create that this one joined was undone")
        return known

    async def _make(
        self, sandbox: Sandbox, backend: Backend, plan: RootfsPlan, began: float
    ) -> None:
        spec = sandbox.spec
        self._ledger.append(
            sandbox.id, ledger.Began(spec, sandbox.digests, sandbox.created, sandbox.owner)
        )
        instance = await backend.create(
            CreateRequest(
                instance_id=sandbox.id,
                rootfs=plan,
                hostname=spec.hostname,
                cpu=spec.cpu,
                memory_bytes=spec.memory_bytes,
                pids=spec.pids,
                nofile=spec.nofile,
                shm_bytes=spec.shm_bytes,
                disk_bytes=spec.disk_bytes,
                env=spec.env,
                cpu_class=spec.cpu_class,
                cpu_weight=spec.cpu_weight,
                cpu_burst=spec.cpu_burst,
            )
        )
        sandbox.instance = instance
        link = self.link(sandbox)
        await link.connect()
        sandbox.link = link
        sandbox.create_ms = round((self._clock.monotonic() - began) * 1000, 3)
        self._ledger.append(sandbox.id, ledger.Made(instance.record(), sandbox.create_ms))

    def link(self, sandbox: Sandbox) -> Link:
        """Returns a new link to the sandbox's instance, which reports its death here."""
        if sandbox.instance is None:
            raise Bug(f"{sandbox.id} has no instance to link to")

        def died(reason: str) -> None:
            error = OutcomeUnknown(
                f"the sandbox died while the command ran: {reason}", sandbox=sandbox.id
            )
            self.fail(sandbox, reason, error)

        return Link(
            sandbox.instance,
            self._clock,
            self._tasks.spawn,
            died,
            lambda: self._handles.new(sandbox),
        )

    def _created(self, sandbox: Sandbox) -> None:
        sandbox.touch(self._clock.wall(), self._clock.monotonic())
        self.deadlines.arm(sandbox)
        _, ready = self.feed(sandbox, Event.CREATED)
        for event in ready:
            self._tasks.spawn(self.drive(sandbox, event))

    def _create_failed(self, sandbox: Sandbox, error: BaseException) -> asyncio.Task[None] | None:
        """Undoes what a failed create left; whoever joined it gets the same error."""
        sandbox.reason = str(error) or type(error).__name__
        if isinstance(error, SkerryError):
            sandbox.end_error = type(error)(error.message, **error.fields)
        self.feed(sandbox, Event.CREATE_FAILED)
        if sandbox.instance is None:
            self._admission.release(sandbox.id)
            self._forget(sandbox)
            return None
        # the backend made it, and its agent did not answer
        return self._tasks.spawn(self.delete_quietly(sandbox))

    async def delete_quietly(self, sandbox: Sandbox) -> None:
        """Deletes it; a failure is logged, and the destruction tried again later."""
        try:
            await self.delete(sandbox)
        except SkerryError as error:
            log.warning("%s is left behind for now: %s", sandbox.id, error)

    # -- requests ---------------------------------------------------------------------------------

    async def ensure_running(self, sandbox: Sandbox) -> Link:
        """Returns the link of a running sandbox, resuming it if need be; raises why it is not."""
        while sandbox.state is not State.RUNNING:
            if sandbox.gone or not (
                table.accepts_requests(sandbox.state) or sandbox.state is State.CREATING
            ):
                raise sandbox.ended()
            changes = sandbox.changes
            if sandbox.state in {State.PAUSED, State.PAUSING}:
                await self.drive(sandbox, Event.RESUME)
            if sandbox.changes == changes:
                await sandbox.changed()
        if sandbox.link is None:
            raise Bug(f"{sandbox.id} runs without a link")
        return sandbox.link

    async def delete(self, sandbox: Sandbox) -> None:
        """Returns when nothing is left of it; idempotent, and may be called in any state."""
        if not sandbox.gone:
            sandbox.reason = sandbox.reason or "it was deleted"
            sandbox.deleting = True
            if sandbox.waits is not None:
                sandbox.waits.leave(_unwanted())
            await self.drive(sandbox, Event.DELETE)
        while not sandbox.gone:
            await sandbox.changed()

    def stop_soon(self, sandbox: Sandbox, reason: str) -> None:
        """Ends its instance in the background; its name and results stay."""
        sandbox.reason = reason
        self._tasks.spawn(self.drive(sandbox, Event.STOP))

    def pause_soon(self, sandbox: Sandbox) -> None:
        """Pauses it in the background."""
        self._tasks.spawn(self.drive(sandbox, Event.PAUSE))

    def fail(self, sandbox: Sandbox, reason: str, error: SkerryError) -> None:
        """It cannot be used any more: commands under way get `error`, its resources are freed."""
        if sandbox.gone or sandbox.state in ENDED or sandbox.state is State.STOPPING:
            return
        log.warning("%s failed: %s", sandbox.id, reason)
        sandbox.reason = reason
        sandbox.end_error = error
        self._tasks.spawn(self.drive(sandbox, Event.DIED))

    def abandon(self, sandbox: Sandbox) -> None:
        """Its owner has ended: it is deleted in the background."""
        sandbox.reason = "its owner is gone"
        self._tasks.spawn(self.delete_quietly(sandbox))

    def any_live(self) -> bool:
        """Returns whether any sandbox is more than a memory."""
        return self._admission.sandboxes > 0

    # -- the driver -------------------------------------------------------------------------------

    def feed(self, sandbox: Sandbox, event: Event) -> tuple[tuple[Command, ...], list[Event]]:
        """Takes one event into the state; returns what is to be done, and what waited for this."""
        row = table.step(sandbox.state, event)
        ready: list[Event] = []
        if row.next is not None and row.next is not sandbox.state:
            sandbox.state = row.next
            sandbox.changes += 1
            ready, sandbox.deferred = sandbox.deferred, []
            sandbox.wake()
        if Command.DEFER in row.commands and event not in sandbox.deferred:
            sandbox.deferred.append(event)
        return row.commands, ready

    async def drive(self, sandbox: Sandbox, event: Event) -> None:
        """Takes an event and carries out everything that follows from it."""
        events = [event]
        while events:
            commands, ready = self.feed(sandbox, events.pop(0))
            events += ready
            for command in commands:
                report = await self._carry_out(sandbox, command)
                if report is not None:
                    events.insert(0, report)
            # what was deferred may have lost its sense by now
            events = [e for e in events if (sandbox.state, e) in table.TABLE or e is event]
            if sandbox.gone:
                return

    async def _carry_out(self, sandbox: Sandbox, command: Command) -> Event | None:
        if command is Command.DEFER:
            return None
        if command is Command.SETTLE_OPERATIONS:
            await self._settle(sandbox)
            return None
        if command is Command.DESTROY_INSTANCE:
            return await self._destroy(sandbox)
        if command is Command.FORGET:
            self._forget(sandbox)
            return None
        return await self._stand(sandbox, pausing=command is Command.PAUSE_INSTANCE)

    async def _stand(self, sandbox: Sandbox, *, pausing: bool) -> Event:
        """Lets it stand still, or go on; what cannot be recorded does not stand still."""
        instance = sandbox.pausable
        if instance is None:
            raise Bug(f"{sandbox.id} cannot be paused, and was asked to")
        try:
            if pausing:
                await instance.pause()
                self._ledger.append(sandbox.id, ledger.Stood(True))
            else:
                self._ledger.append(sandbox.id, ledger.Stood(False))
                await instance.resume()
        except StorageFailed as error:
            log.warning("%s: not on record: %s", sandbox.id, error)
            return await self._run_on(sandbox, instance, error, pausing=pausing)
        except SkerryError as error:
            return await self._run_on(sandbox, instance, error, pausing=pausing)
        if not pausing:
            sandbox.touch(self._clock.wall(), self._clock.monotonic())
        return Event.PAUSED if pausing else Event.RESUMED

    async def _run_on(
        self, sandbox: Sandbox, instance: Pausable, error: SkerryError, *, pausing: bool
    ) -> Event:
        """After a step that failed half way: makes sure that its processes run, and says so."""
        try:
            await instance.resume()
        except SkerryError as second:
            sandbox.reason = second.message
            sandbox.pause_error = second
            if not pausing:
                return Event.RESUME_FAILED
            self.fail(sandbox, f"it may stand still for ever: {second.message}", second)
            return Event.PAUSE_FAILED
        if pausing:
            sandbox.pause_error = error
            return Event.PAUSE_FAILED
        sandbox.touch(self._clock.wall(), self._clock.monotonic())
        return Event.RESUMED

    async def _settle(self, sandbox: Sandbox) -> None:
        """Gives every command under way its last answer, recorded, before the instance goes."""
        link = sandbox.link
        if link is None:
            return
        error = sandbox.end_error or SandboxFailed(
            f"the sandbox ended while the command ran: {sandbox.reason}", sandbox=sandbox.id
        )
        await link.end(error)
        if sandbox.running:
            pending = [op.done for op in sandbox.under_way()]
            await asyncio.wait(pending, timeout=SETTLE_S)

    async def _destroy(self, sandbox: Sandbox) -> Event:
        """Returns when nothing of the instance is left; tried again later if the backend fails."""
        state = State.FAILED if sandbox.state is State.FAILED else State.STOPPED
        try:
            self._ledger.append(sandbox.id, ledger.Ending(state, sandbox.reason, sandbox.deleting))
        except StorageFailed as error:
            # Freeing does not wait for a disk that it may free. A node that is killed now comes
            # back with a failed sandbox in place of this one.
            log.warning("the end of %s is not on record: %s", sandbox.id, error)
        for timer in sandbox.timers:
            timer.cancel()
        sandbox.timers.clear()
        instance = sandbox.instance
        if instance is None:
            return Event.DESTROYED
        try:
            await instance.destroy()
        except SkerryError as error:
            delay = RETRY_DESTROY_S[min(sandbox.destroy_tries, len(RETRY_DESTROY_S) - 1)]
            sandbox.destroy_tries += 1
            log.warning("%s is not destroyed, next try in %g s: %s", sandbox.id, delay, error)
            self._timers.after(delay, lambda: self._destroy_again(sandbox))
            raise
        sandbox.link = None
        if sandbox.instance is not None:
            sandbox.instance = None
            self._admission.release(sandbox.id)
            if not sandbox.deleting:
                self.keep_ended(sandbox)
        return Event.DESTROYED

    def _destroy_again(self, sandbox: Sandbox) -> None:
        if not sandbox.gone:
            self._tasks.spawn(self.destroy_quietly(sandbox))

    async def destroy_quietly(self, sandbox: Sandbox) -> None:
        """Destroys the instance of an ended sandbox; a failure is tried again later."""
        try:
            report = await self._destroy(sandbox)
        except SkerryError:
            return  # logged, and due again
        await self.drive(sandbox, report)

    def keep_ended(self, sandbox: Sandbox) -> None:
        """Keeps an ended sandbox for a look; the oldest beyond the limit are deleted."""
        self._ended.append(sandbox)
        while len(self._ended) > self._ended_max:
            oldest = self._ended.popleft()
            if not oldest.gone:
                self._tasks.spawn(self.delete_quietly(oldest))

    def _forget(self, sandbox: Sandbox) -> None:
        """Lets go of the name, the results and the journal's part. Nothing is left."""
        for timer in sandbox.timers:
            timer.cancel()
        for op_id, op in sandbox.ops.items():
            self._results.drop(sandbox.id, op_id)
            if isinstance(op, Past) and op.spooled:
                self._outputs.drop(sandbox.id, op_id)
        sandbox.ops.clear()
        sandbox.answer_bytes = 0
        self._sandboxes.remove(sandbox)
        self._owners.remove(sandbox)
        sandbox.gone = True
        sandbox.wake()
        self.forget_record(sandbox.id)

    def forget_record(self, sandbox_id: str) -> None:
        """Lets go of the journal's part; tried again later if the disk does not let it."""
        try:
            self._ledger.forget(sandbox_id)
        except StorageFailed as error:
            log.warning("the journal keeps %s for now: %s", sandbox_id, error)
            self._timers.after(RETRY_DESTROY_S[-1], lambda: self.forget_record(sandbox_id))


def claim_of(sandbox: Sandbox) -> Claim:
    """Returns what a sandbox asks of the node."""
    spec = sandbox.spec
    holder = Holder("", sandbox.owner, spec.labels.get(JOB_LABEL))
    return Claim(sandbox.id, holder, spec.memory_bytes, spec.pids)


def _unwanted() -> SkerryError:
    return SandboxFailed("it was deleted while it waited to be made")


def _check_wanted(sandbox: Sandbox) -> None:
    if sandbox.deleting:
        raise _unwanted()


def _check(spec: SandboxSpec) -> None:
    """Raises InvalidRequest unless the whole spec can be carried out."""
    spec.check()
    for what, value in (("user", spec.user), ("workdir", spec.workdir or "/")):
        if not value or "\x00" in value or len(value.encode()) > limits.PATH_BYTES_MAX:
            raise InvalidRequest(f"{what} is empty, too long or holds a NUL")
    if spec.workdir is not None and not spec.workdir.startswith("/"):
        raise InvalidRequest(f"workdir: {spec.workdir[:80]!r} is not absolute")
    if any("\x00" in text for pair in spec.labels.items() for text in pair):
        raise InvalidRequest("labels: a NUL in a name or a value")
