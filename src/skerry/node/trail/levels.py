"""How durable a record is before its answer leaves (decision 12), and what that costs whom.

| level | the record survives | how |
|---|---|---|
| process | kill -9 of the node | one write() before the answer; nobody waits |
| local | loss of the host's power | fdatasync in a thread of its own |
| shared | loss of the host | its bytes are put into the layer store |

A commit is for a group: one is in flight, and the next takes everything that was recorded meanwhile.
What waits here is an answer, never the loop. An intent is written before it acts and waited for by
nobody: what it guards, that nothing runs twice, ends with the host at the latest, whose sandboxes are
gone with it. A record that cannot be made durable is StorageFailed to
whoever waits for it; it stays where it is, and a repeat of the operation asks for it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from queue import SimpleQueue
from typing import Final, TypeAlias

from skerry.errors import Bug, InvalidRequest, SkerryError, StorageFailed
from skerry.images.objects.patience import patient_at_most
from skerry.spec.sandbox import Durability, SandboxSpec
from skerry.trajectory.format.segment import HEADER_BYTES
from skerry.trajectory.journal.journal import Journal
from skerry.trajectory.shipping.contents import Contents
from skerry.trajectory.shipping.shipper import Shipper

WITHIN_S: Final = 30.0  # a disk or store that takes longer is taken for one that is away
_PATIENCE_S: Final = 20.0

log = logging.getLogger("skerry.node")

Work: TypeAlias = Callable[[], None]
Tell: TypeAlias = Callable[[SkerryError | None], None]  # raises nothing
Commit: TypeAlias = tuple[asyncio.AbstractEventLoop, Work, Work]  # ..., and what follows it there


class Group:
    """One commit in flight, and those who wait for the next.

    The way from a record to its answer is short on purpose: each turn of a loop that is busy with many
    sandboxes takes longer than the disk. One turn gathers who else is ready, and one tells them.
    """

    def __init__(self, begin: Callable[[], tuple[Work, Work]], name: str) -> None:
        """`begin` returns the work that covers all that is recorded, and what to do after it."""
        self._begin, self._name = begin, name
        with patient_at_most(_PATIENCE_S):
            self._context = contextvars.copy_context()
        self._commits: SimpleQueue[Commit | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._waiting: list[Tell] = []
        self._in_flight: list[Tell] = []
        self._running = False
        self._timer: asyncio.TimerHandle | None = None
        self.commits = 0
        self.failures = 0

    async def reached(self) -> None:
        """Returns when everything that is recorded now is durable; StorageFailed."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.when_reached(partial(_resolve, done))
        await done

    def when_reached(self, tell: Tell) -> None:
        """Tells later when everything that is recorded now is durable, or why it is not."""
        self._waiting.append(tell)
        if not self._running:
            self._running = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._next, loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begins a commit for those who wait, if anybody does."""
        self._in_flight, self._waiting = self._waiting, []
        if not self._in_flight:
            self._running = False
            return
        if self._thread is None:
            serve = partial(self._context.run, self._serve)
            self._thread = threading.Thread(target=serve, name=self._name, daemon=True)
            self._thread.start()
        self._timer = loop.call_later(WITHIN_S, self._late, loop)
        failed = _tried(lambda: self._commits.put((loop, *self._begin())))
        if failed is not None:
            self._ended(loop, _nothing, failed)

    def _serve(self) -> None:
        """Does one commit after another, in the thread."""
        while (commit := self._commits.get()) is not None:
            loop, work, after = commit
            failed = _tried(work)
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(self._ended, loop, after, failed)

    def _late(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tells those who wait for it, and those who came meanwhile and would wait behind it."""
        _tell((*self._in_flight, *self._waiting), _too_late())
        self._in_flight, self._waiting = [], []
        self._timer = loop.call_later(WITHIN_S, self._late, loop)

    def _ended(
        self, loop: asyncio.AbstractEventLoop, after: Work, failed: SkerryError | None
    ) -> None:
        """Begins the next, and tells those who waited for this one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        failed = failed or _tried(after)
        self.commits += failed is None
        self.failures += failed is not None
        waited = self._in_flight
        self._next(loop)
        _tell(waited, failed)

    def close(self) -> None:
        """Ends the thread; what it does now it may finish."""
        self._commits.put(None)


def _tried(work: Work) -> SkerryError | None:
    """Does it; returns why it failed, None if it did not. Nobody may wait for ever."""
    try:
        work()
    except SkerryError as error:
        return error
    except Exception as error:
        log.exception("a record cannot be made durable")
        return Bug(f"a record cannot be made durable: {type(error).__name__}: {error}")
    return None


def _tell(waiting: Iterable[Tell], error: SkerryError | None) -> None:
    for tell in waiting:  # each an error of its own: it gets a traceback where it is raised
        tell(None if error is None else type(error)(error.message, **error.fields))


def _resolve(done: asyncio.Future[None], error: SkerryError | None) -> None:
    if done.done():
        return  # who waited has gone
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def _too_late() -> SkerryError:
    return StorageFailed(
        f"the operation is done and recorded, but its record is not durable after {WITHIN_S:g} s: "
        "ask again with the same operation id"
    )


class Levels:
    """Waits for what a sandbox's durability asks for."""

    def __init__(
        self,
        journal: Journal,
        contents: Contents,
        shipper: Shipper | None,
        default: Durability,
    ) -> None:
        self._journal, self._contents, self._shipper = journal, contents, shipper
        self._default = default
        self._local = Group(self._begin_local, "record-sync")
        self._shared = Group(self._begin_shared, "record-put")
        self._unsynced, self._unshared = contents.feed(), contents.feed()
        self._sent: dict[int, int] = {}  # of each segment that is not shipped: bytes in the store
        self.tails = 0  # of the segment that is open

    def check(self, spec: SandboxSpec) -> None:
        """Raises InvalidRequest if this node cannot keep what the spec asks for."""
        if self.of(spec) is Durability.SHARED and self._shipper is None:
            raise InvalidRequest(
                "durability: shared needs a node that ships its trajectories (trajectory.ship)"
            )

    def of(self, spec: SandboxSpec) -> Durability:
        """Returns the level of a sandbox."""
        return spec.durability or self._default

    def at_once(self, spec: SandboxSpec) -> bool:
        """Whether nobody has to wait: a record that is written is durable enough."""
        return self.of(spec) is Durability.PROCESS

    async def reach(self, spec: SandboxSpec) -> None:
        """Returns when all that is recorded is as durable as the sandbox asks for; StorageFailed."""
        level = self.of(spec)
        if level is Durability.LOCAL:
            await self._local.reached()
        elif level is Durability.SHARED:
            await self._shared.reached()

    def when_reached(self, spec: SandboxSpec, tell: Tell) -> None:
        """As `reach`, but tells; at once if nobody has to wait."""
        level = self.of(spec)
        if level is Durability.LOCAL:
            self._local.when_reached(tell)
        elif level is Durability.SHARED:
            self._shared.when_reached(tell)
        else:
            tell(None)

    def gauges(self) -> dict[str, float]:
        """Returns plain counts by name."""
        return {
            "trajectory_local_commits_total": self._local.commits,
            "trajectory_shared_commits_total": self._shared.commits,
            "trajectory_commit_failures_total": self._local.failures + self._shared.failures,
        }

    def shipped(self, number: int) -> None:
        """Segments up to this one are whole in the store."""
        self._sent = {one: end for one, end in self._sent.items() if one > number}

    def rolled(self) -> None:
        """Another segment is open."""
        self.tails = 0

    def close(self) -> None:
        """Ends the threads."""
        self._local.close()
        self._shared.close()

    def _begin_local(self) -> tuple[Work, Work]:
        pending = self._journal.pending()
        blobs = list(self._unsynced)
        self._unsynced.clear()

        def work() -> None:
            try:
                self._contents.sync(blobs)  # first: a record on the disk names only what is there
            except StorageFailed:
                self._unsynced.update(dict.fromkeys(blobs))
                pending.drop()
                raise
            pending.carry_out()

        return work, _nothing

    def _begin_shared(self) -> tuple[Work, Work]:
        shipper = self._shipper
        if shipper is None:
            raise Bug("a sandbox is shared on a node without a store")
        parts = [
            (number, self._sent.get(number, 0), end)
            for number, end in (*self._journal.sealed(), self._journal.mark())
            if number > shipper.through and end > max(self._sent.get(number, 0), HEADER_BYTES)
        ]
        blobs = list(self._unshared)
        self._unshared.clear()

        def work() -> None:
            try:
                for number, start, end in parts:
                    shipper.ship_tail(number, start, end, blobs)
            except StorageFailed:
                self._unshared.update(dict.fromkeys(blobs))
                raise

        def after() -> None:
            self.tails += 1
            self._sent.update((number, end) for number, _, end in parts)

        return work, after


def _nothing() -> None:
    """There is nothing to do."""
