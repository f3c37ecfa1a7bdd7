"""Commits: what a sandbox wrote becomes a layer (decision 38).

A commit is acknowledged from a snapshot: the sandbox stands still for a moment, the snapshot is made,
the journal says so, and then the caller is answered. From there on it needs the sandbox no more. It is
packed in the background, one after another with few at once, by a process of low priority; the next
start of the node goes on where this one ended. Where uppers have no snapshots the sandbox stands still
while it is packed, and the acknowledgement is the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Mapping

import msgspec

from skerry.backends.api import View, Viewer
from skerry.errors import (
    Bug,
    Conflict,
    InvalidRequest,
    NotFound,
    Overloaded,
    PlatformError,
    SkerryError,
    StorageFailed,
    Unavailable,
)
from skerry.node import ledger
from skerry.node.clock import sleep
from skerry.node.files import check_path
from skerry.node.life.chains import Chains
from skerry.node.life.lives import Lives
from skerry.node.life.sandbox import Sandbox
from skerry.node.life.views import views_of
from skerry.node.parts import Parts
from skerry.node.stories import CommitStory
from skerry.node.trail import commits as told
from skerry.spec import ids
from skerry.spec.layers import LayerManifest, commit_name
from skerry.spec.residue import check_rules
from skerry.wire.commits import CommitInfo, CommitState
from skerry.wire.http import CommitBody, ErrorBody

log = logging.getLogger("skerry.node")

EXCLUDES_MAX = 1000
PENDING_MAX = 256  # each holds a snapshot
PACKS_AT_ONCE = 2
AGAIN_S = (0.2, 2.0, 10.0)  # after a fault of the platform
LET_GO_AGAIN_S = 5.0
KEPT_MAX = 1000  # ended ones that are remembered


class Commit:
    """One commit, acknowledged. Invariant: its view is there until `recorded`."""

    def __init__(self, commit_id: str, entry: ledger.Acknowledged) -> None:
        self.id, self.entry = commit_id, entry
        self.layer: asyncio.Future[LayerManifest] = asyncio.get_running_loop().create_future()
        self.layer.add_done_callback(lambda layer: layer.exception())  # nobody may ask for it
        self.finished: float | None = None
        self.recorded = False  # its end is in the journal
        self.progress = "waiting for its turn"

    def info(self) -> CommitInfo:
        """Returns how it stands."""
        entry, layer = self.entry, self.layer
        error = layer.exception() if layer.done() else None
        state = CommitState.PACKING
        if layer.done():
            state = CommitState.DONE if error is None else CommitState.FAILED
        return CommitInfo(
            id=self.id,
            sandbox=entry.sandbox,
            name=str(commit_name(entry.body.name)),
            state=state,
            acknowledged=entry.time,
            freeze_seconds=entry.freeze_seconds,
            seconds=entry.seconds,
            progress="" if layer.done() else self.progress,
            finished=self.finished,
            manifest=layer.result() if layer.done() and error is None else None,
            error=ErrorBody.of(error) if isinstance(error, SkerryError) else None,
        )


class Commits:
    """The commits of a node. Invariant: the view of each pending one is held, and its layers are."""

    def __init__(self, parts: Parts, lives: Lives, chains: Chains) -> None:
        self._lives, self._chains = lives, chains
        self._clock, self._tasks, self._timers = parts.clock, parts.tasks, parts.timers
        self._ledger, self._images = parts.ledger, parts.images
        self._trail = parts.trail
        self._backends, self._sandboxes = parts.backends, parts.sandboxes
        self._owners = parts.owners
        self._known: dict[str, Commit] = {}  # oldest first
        self._beginning: dict[str, asyncio.Task[Commit | SkerryError]] = {}
        self._places = asyncio.Semaphore(PACKS_AT_ONCE)
        self._views = 0  # of ended ones that could not be dropped yet

    @property
    def pending(self) -> int:
        """How many are not at their end."""
        packing = sum(not commit.layer.done() for commit in self._known.values())
        return packing + len(self._beginning) + self._views

    def find(self, commit_id: str) -> Commit | None:
        """Returns one that was acknowledged, or None; InvalidRequest if that is no id."""
        return self._known.get(ids.check_op_id(commit_id))

    def same(self, commit: Commit, sandbox_id: str, body: CommitBody) -> Commit:
        """Returns it if it is what is asked for; else Conflict."""
        if commit.entry.sandbox != sandbox_id or commit.entry.body != _checked(body):
            raise Conflict(f"the commit {commit.id} is another one")
        return commit

    def get(self, commit_id: str) -> Commit:
        """Returns one; NotFound."""
        commit = self.find(commit_id)
        if commit is None:
            raise NotFound(f"there is no commit {commit_id}; the last {KEPT_MAX} are remembered")
        return commit

    def list_all(self, sandbox_id: str | None = None) -> list[CommitInfo]:
        """Returns those that are remembered, oldest first."""
        return [
            commit.info()
            for commit in self._known.values()
            if sandbox_id in {None, commit.entry.sandbox}
        ]

    # -- to the acknowledgement -------------------------------------------------------------------

    async def begin(self, sandbox: Sandbox, body: CommitBody) -> Commit:
        """Returns an acknowledged commit: all that was written before the call is in it.

        Once begun it goes on if the caller gives up; a repeat with its id finds it. Raises
        InvalidRequest, Conflict (the id names another one), Overloaded, and what the disk says.
        """
        body = _checked(body)
        commit_id = body.id or secrets.token_hex(16)
        body = msgspec.structs.replace(body, id=commit_id)
        making = self._beginning.get(commit_id)
        if making is None:
            known = self._known.get(commit_id)
            if known is not None:
                return self.same(known, sandbox.id, body)
            making = self._tasks.spawn(self._attempt(sandbox, commit_id, body))
            self._beginning[commit_id] = making
            making.add_done_callback(lambda _: self._beginning.pop(commit_id, None))
        commit = await asyncio.shield(making)
        if isinstance(commit, SkerryError):
            raise commit
        return self.same(commit, sandbox.id, body)

    async def _attempt(
        self, sandbox: Sandbox, commit_id: str, body: CommitBody
    ) -> Commit | SkerryError:
        try:
            return await self._begin(sandbox, commit_id, body)
        except SkerryError as error:
            return error  # for everyone who waits, and no fault of the node

    async def _begin(self, sandbox: Sandbox, commit_id: str, body: CommitBody) -> Commit:
        if self.pending > PENDING_MAX:
            raise Overloaded(
                f"{PENDING_MAX} commits are being packed", limit="commits", retry_after_s=2.0
            )
        began = self._clock.monotonic()
        with sandbox.active_while(self._clock):
            await self._lives.ensure_standing(sandbox)
            views = views_of(sandbox, self._backends)
            if views is None:
                return await self._pack_frozen(sandbox, commit_id, body, began)
            viewer, instance = views
            view = await instance.view(commit_id)
            entry = self._entry(sandbox, body, view, began, view.frozen_seconds)
            try:
                self._ledger.append(commit_id, entry)
            except BaseException:
                await viewer.drop_view(view)
                raise
        commit = self._enter(commit_id, entry)
        self._tasks.spawn(self._carry_on(commit, view))
        await self._told(sandbox, commit)
        return commit

    async def _told(self, sandbox: Sandbox, commit: Commit) -> None:
        """The sandbox's own record says so too; StorageFailed, and the commit is there all the same."""
        self._trail.note(sandbox, told.acknowledged(commit.id, commit.entry))
        await self._trail.levels.reach(sandbox.spec)

    def _entry(
        self, sandbox: Sandbox, body: CommitBody, view: View | None, began: float, frozen: float
    ) -> ledger.Acknowledged:
        seconds = round(self._clock.monotonic() - began, 6)
        return ledger.Acknowledged(
            sandbox.id,
            sandbox.spec.backend,
            body,
            view,
            sandbox.digests,
            self._clock.wall(),
            seconds,
            frozen,
            sandbox.made_of,
        )

    def _enter(self, commit_id: str, entry: ledger.Acknowledged) -> Commit:
        commit = self._known[commit_id] = Commit(commit_id, entry)
        below = () if entry.view is None else entry.view.layers
        self._sandboxes.held[commit_id] = (*entry.digests, *(one.digest for one in below))
        self._images.expect(str(commit_name(entry.body.name)), commit.layer)
        return commit

    async def _pack_frozen(
        self, sandbox: Sandbox, commit_id: str, body: CommitBody, began: float
    ) -> Commit:
        instance = sandbox.snapshotable
        if instance is None:
            raise InvalidRequest(f"the backend {sandbox.spec.backend} has no snapshots")
        async with self._places, instance.snapshot() as upper:
            manifest = await self._images.commit(
                upper,
                body,
                recipe=_recipe(sandbox.id),
                parents=sandbox.digests,
                below=sandbox.made_of,
                log=log.debug,
            )
            frozen = self._clock.monotonic() - began
        entry = self._entry(sandbox, body, None, began, frozen)
        self._ledger.append(commit_id, entry)
        commit = self._known[commit_id] = Commit(commit_id, entry)
        self._finish(commit, manifest)
        with contextlib.suppress(StorageFailed):  # a restarted node knows the layer, and not this
            self._record_end(commit)
        self._consider(commit)
        await self._told(sandbox, commit)
        return commit

    # -- from there to the layer ------------------------------------------------------------------

    async def _carry_on(self, commit: Commit, view: View) -> None:
        try:
            async with self._places:
                outcome: LayerManifest | SkerryError = await self._pack(commit, view)
        except SkerryError as error:
            log.warning("commit %s of %s failed: %s", commit.id, commit.entry.sandbox, error)
            outcome = error
        self._views += 1
        self._finish(commit, outcome)
        await self._let_go(commit, view)
        self._consider(commit)

    async def _pack(self, commit: Commit, view: View) -> LayerManifest:
        """Packs it; tries again after a fault of the platform, which may be over soon."""

        def tell(line: str) -> None:
            commit.progress = line

        tries = 0
        while True:
            commit.progress = "reading what was written"
            try:
                async with self._viewer(commit).open_view(view) as upper:
                    return await self._images.commit(
                        upper,
                        commit.entry.body,
                        recipe=_recipe(commit.entry.sandbox),
                        parents=commit.entry.digests,
                        below=commit.entry.below,
                        log=tell,
                    )
            except PlatformError as error:
                if tries == len(AGAIN_S):
                    raise
                log.warning("commit %s is tried again: %s", commit.id, error)
                commit.progress = f"to be tried again: {error.message}"
                await sleep(self._clock, AGAIN_S[tries])
                tries += 1

    def _finish(self, commit: Commit, outcome: LayerManifest | SkerryError) -> None:
        self._sandboxes.held.pop(commit.id, None)
        if commit.finished is None:
            commit.finished = self._clock.wall()
        if isinstance(outcome, SkerryError):
            commit.layer.set_exception(outcome)
        else:
            commit.layer.set_result(outcome)
        ended = [one.id for one in self._known.values() if one.layer.done()]
        for commit_id in ended[: max(0, len(ended) - KEPT_MAX)]:
            del self._known[commit_id]
            self._lives.forget_record(commit_id)

    async def _let_go(self, commit: Commit, view: View) -> None:
        """Records the end, and drops the view: in that order, or a restart could not pack it again."""
        try:
            self._record_end(commit)
            await self._viewer(commit).drop_view(view)
        except SkerryError as error:
            log.warning("the view of commit %s stays for now: %s", commit.id, error)
            self._timers.after(LET_GO_AGAIN_S, lambda: self._let_go_again(commit, view))
        else:
            self._views -= 1
            self._owners.idle()  # a daemon that ends by itself may have waited for this

    def _let_go_again(self, commit: Commit, view: View) -> None:
        self._tasks.spawn(self._let_go(commit, view))

    def _consider(self, commit: Commit) -> None:
        """Has its chain made short, if there is a layer."""
        if commit.layer.done() and commit.layer.exception() is None:
            self._chains.consider(commit.layer.result())

    def _record_end(self, commit: Commit) -> None:
        if commit.recorded:
            return
        error = commit.layer.exception()
        manifest = None if error is not None else commit.layer.result()
        fault = ErrorBody.of(error) if isinstance(error, SkerryError) else None
        self._ledger.append(commit.id, ledger.Packed(commit.finished or 0.0, manifest, fault))
        commit.recorded = True
        sandbox = self._sandboxes.find(commit.entry.sandbox)
        if sandbox is not None:
            ended = commit.finished or 0.0
            self._trail.note(sandbox, told.packed(commit.id, commit.entry, manifest, fault, ended))

    def _viewer(self, commit: Commit) -> Viewer:
        name = commit.entry.backend
        backend: object = self._backends.get(name)
        if not isinstance(backend, Viewer):
            raise Unavailable(f"the node was restarted without the backend {name}")
        return backend

    # -- restarts ---------------------------------------------------------------------------------

    def claim(self, stories: Mapping[str, CommitStory]) -> None:
        """Takes over what an earlier process knew; the backends must not sweep what is pending."""
        for commit_id, story in stories.items():
            entry, end = story.acknowledged, story.packed
            if end is None and entry.view is None:
                self._lives.forget_record(commit_id)
                continue
            commit = self._enter(commit_id, entry)
            if end is not None:
                commit.finished, commit.recorded = end.time, True
                self._finish(commit, end.manifest or _error_of(end))
            elif entry.view is not None:
                commit.progress = "taken over by a restarted node"
                backend: object = self._backends.get(entry.backend)
                if isinstance(backend, Viewer):
                    backend.claim_views((entry.view,))

    def resume(self) -> None:
        """Goes on with what is pending."""
        for commit in self._known.values():
            self._consider(commit)
            if not commit.layer.done() and commit.entry.view is not None:
                self._tasks.spawn(self._carry_on(commit, commit.entry.view))

    async def settled(self) -> None:
        """Returns when all are at their end."""
        while self.pending:
            await sleep(self._clock, 0.05)


def _checked(body: CommitBody) -> CommitBody:
    if len(body.exclude) > EXCLUDES_MAX:
        raise InvalidRequest(f"exclude: at most {EXCLUDES_MAX} prefixes")
    for prefix in body.exclude:
        if not check_path(prefix).startswith("/") or not prefix.strip("/"):
            raise InvalidRequest(f"exclude: {prefix[:80]!r} is no absolute path below /")
    if body.id is not None:
        ids.check_op_id(body.id)
    check_rules(body.scrub, git=body.scrub_git)
    return msgspec.structs.replace(body, name=str(commit_name(body.name)))


def _recipe(sandbox_id: str) -> dict[str, str]:
    return {"sandbox": sandbox_id}


def _error_of(end: ledger.Packed) -> SkerryError:
    return (
        Bug("the journal has neither layer nor error")
        if end.error is None
        else end.error.to_error()
    )
