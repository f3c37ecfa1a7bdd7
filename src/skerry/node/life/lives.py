"""Drives sandboxes through the lifecycle table: create, pause, resume, stop, delete, death."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from skerry.backends.api import Pausable
from skerry.errors import (
    Bug,
    OutcomeUnknown,
    SandboxFailed,
    SkerryError,
    StorageFailed,
)
from skerry.lifecycle import table
from skerry.lifecycle.table import Command, Event
from skerry.node import ledger
from skerry.node.life.creation import Creation, unwanted
from skerry.node.life.deadlines import Deadlines
from skerry.node.life.handles import Handles
from skerry.node.life.link import Link
from skerry.node.life.sandbox import ENDED, Sandbox
from skerry.node.parts import Parts
from skerry.spec.sandbox import State

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
        self._sandboxes = parts.sandboxes
        self._admission = parts.admission
        self._ledger = parts.ledger
        self._trail = parts.trail
        self.handles = Handles(parts.ledger)
        self._results = parts.results
        self._outputs = parts.outputs
        self._owners = parts.owners
        self._jobs = parts.jobs
        self._networks = parts.networks
        self._uplinks = parts.uplinks
        self._ended_max = parts.config.limits.ended_max
        self._ended: dict[str, Sandbox] = {}  # that are not deleted yet, oldest first
        # Told of every change of state, after it; raises nothing.
        self.observe: Callable[[Sandbox, State], None] = lambda _sandbox, _before: None
        self.deadlines = Deadlines(
            parts.clock, parts.timers, stop=self.stop_soon, pause=self.pause_soon
        )
        self.create = Creation(parts, self).create

    # -- links and ends ---------------------------------------------------------------------------

    def link(self, sandbox: Sandbox) -> Link:
        """Returns a new link to the sandbox's instance, which reports its death here."""
        if sandbox.instance is None:
            raise Bug(f"{sandbox.id} has no instance to link to")

        def died(reason: str) -> None:
            error = OutcomeUnknown(
                f"the sandbox died while the command ran: {reason}", sandbox=sandbox.id
            )
            self.fail(sandbox, reason, error)

        link = Link(
            sandbox.instance,
            self._clock,
            self._tasks.spawn,
            died,
            lambda: self.handles.new(sandbox),
            wanted=sandbox.handles_in_use,
            held=sandbox.held_since is not None,
        )
        self._networks.attach(sandbox, link)
        self._uplinks.attach(sandbox, link, self.ensure_running)
        return link

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
                # Whoever asked may leave meanwhile: what was begun is brought to its end all the same.
                await asyncio.shield(self._tasks.spawn(self._resume(sandbox)))
            if sandbox.changes == changes:
                await sandbox.changed()
        if sandbox.link is None:
            raise Bug(f"{sandbox.id} runs without a link")
        return sandbox.link

    async def _resume(self, sandbox: Sandbox) -> None:
        if sandbox.state in {State.PAUSED, State.PAUSING}:
            await self.drive(sandbox, Event.RESUME)

    async def ensure_standing(self, sandbox: Sandbox) -> None:
        """Returns once it runs or is paused: what it wrote can be looked at; raises why it cannot."""
        while sandbox.state not in {State.RUNNING, State.PAUSED}:
            if sandbox.gone or not (
                table.accepts_requests(sandbox.state) or sandbox.state is State.CREATING
            ):
                raise sandbox.ended()
            await sandbox.changed()

    async def delete(self, sandbox: Sandbox) -> None:
        """Returns when nothing is left of it; idempotent, and may be called in any state."""
        if not sandbox.gone:
            sandbox.reason = sandbox.reason or "it was deleted"
            sandbox.deleting = True
            if sandbox.waits is not None:
                sandbox.waits.leave(unwanted())
            await self.drive(sandbox, Event.DELETE)
        while not sandbox.gone:
            await sandbox.changed()

    def withdrawn(self, sandbox: Sandbox, reason: str) -> None:
        """The platform is about to end it: what its commands did is not known, and not their fault."""
        if sandbox.state in ENDED or sandbox.state is State.STOPPING:
            return
        sandbox.reason = reason
        sandbox.end_error = sandbox.end_error or OutcomeUnknown(
            f"the sandbox ended meanwhile: {reason}", sandbox=sandbox.id
        )

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
            before, sandbox.state = sandbox.state, row.next
            sandbox.changes += 1
            self.observe(sandbox, before)
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
            self.forget(sandbox)
            return None
        return await self._stand(sandbox, pausing=command is Command.PAUSE_INSTANCE)

    async def _stand(self, sandbox: Sandbox, *, pausing: bool) -> Event:
        """Lets it stand still, or go on; what cannot be recorded does not stand still."""
        instance = sandbox.pausable
        if instance is None:
            raise Bug(f"{sandbox.id} cannot be paused, and was asked to")
        began = self._clock.wall()
        if pausing:
            await self._hold(sandbox, held=True)
        try:
            if pausing:
                sandbox.given = await instance.pause()
                self._ledger.append(sandbox.id, ledger.Stood(True, sandbox.paused_by))
                given = sandbox.given
                freed = {} if given is None else {"freed_bytes": given.bytes}
                self._note(sandbox, "pause", began, freed)
            else:
                self._ledger.append(sandbox.id, ledger.Stood(False))
                await instance.resume()
                self._note(sandbox, "resume", began, {})
        except StorageFailed as error:
            log.warning("%s: not on record: %s", sandbox.id, error)
            return await self._run_on(sandbox, instance, error, pausing=pausing)
        except SkerryError as error:
            return await self._run_on(sandbox, instance, error, pausing=pausing)
        if not pausing:
            sandbox.paused_by = ""
            await self._hold(sandbox, held=False)
            sandbox.touch(self._clock.wall(), self._clock.monotonic())
        return Event.PAUSED if pausing else Event.RESUMED

    def _note(self, sandbox: Sandbox, action: str, began: float, result: dict[str, Any]) -> None:
        done = ledger.Did(action, result=result, started=began, ended=self._clock.wall())
        self._trail.note(sandbox, done)

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
        sandbox.paused_by = ""
        await self._hold(sandbox, held=False)
        if pausing:
            sandbox.pause_error = error
            return Event.PAUSE_FAILED
        sandbox.touch(self._clock.wall(), self._clock.monotonic())
        return Event.RESUMED

    async def _hold(self, sandbox: Sandbox, *, held: bool) -> None:
        """No deadline of its commands passes while it is held: neither inside nor here."""
        sandbox.hold(self._clock.monotonic(), held=held)
        if sandbox.link is not None:
            await sandbox.link.hold(held=held)

    async def _settle(self, sandbox: Sandbox) -> None:
        """Gives every command under way its last answer, recorded, before the instance goes."""
        link = sandbox.link
        if link is None:
            return
        text = f"the sandbox ended meanwhile: {sandbox.reason}"
        # Without an error it did not end by itself: nobody inside can be blamed.
        error = sandbox.end_error or SandboxFailed(text, sandbox=sandbox.id, lost="yes")
        await link.end(error)
        if sandbox.running:
            pending = [op.done for op in sandbox.under_way()]
            await asyncio.wait(pending, timeout=SETTLE_S)

    async def _destroy(self, sandbox: Sandbox) -> Event:
        """Returns when nothing of the instance is left; tried again later if the backend fails."""
        state = State.FAILED if sandbox.state is State.FAILED else State.STOPPED
        try:
            end = ledger.Ending(state, sandbox.reason, sandbox.deleting, sandbox.lost)
            self._ledger.append(sandbox.id, end)
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
        self._ended[sandbox.id] = sandbox
        while len(self._ended) > self._ended_max:
            oldest = self._ended.pop(next(iter(self._ended)))
            if not oldest.gone:
                self._tasks.spawn(self.delete_quietly(oldest))

    def forget(self, sandbox: Sandbox) -> None:
        """Lets go of the name, the results and the journal's part. Nothing is left."""
        for timer in sandbox.timers:
            timer.cancel()
        for op_id, op in sandbox.ops.items():
            self._results.drop(sandbox.id, op_id)
            if isinstance(op, tuple) and op.spooled:
                self._outputs.drop(sandbox.id, op_id)
        sandbox.ops.clear()
        sandbox.answer_bytes = 0
        self._sandboxes.remove(sandbox)
        self._jobs.remove(sandbox)
        self._owners.remove(sandbox)
        self._ended.pop(sandbox.id, None)
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
