"""One sandbox as the node holds it: data and invariants; what happens to it is in `lives`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from skerry.backends.api import Instance, Pausable, Reclaimed, Snapshotable
from skerry.errors import Bug, OutcomeUnknown, SandboxFailed, SkerryError
from skerry.lifecycle.table import Event
from skerry.node.admission.holders import Holder
from skerry.node.clock import Clock
from skerry.node.timers import Timer
from skerry.spec.layers import ImageConfig, LayerManifest, MountedLayer
from skerry.spec.sandbox import SandboxInfo, SandboxSpec, State

if TYPE_CHECKING:
    from skerry.network.gateway import Gateway
    from skerry.node.admission.waits import Wait
    from skerry.node.commands.operation import Op, Past
    from skerry.node.commands.session import Session
    from skerry.node.ledger import Did
    from skerry.node.life.link import Link, Port
    from skerry.trajectory.journal.journal import Position

HANDLES_BLOCK = 1024
ENDED = frozenset({State.STOPPED, State.FAILED})


class Draining(NamedTuple):
    """A drain of the node: until when those that live may live, in wall time; None: no end."""

    deadline: float | None


class Acting(NamedTuple):
    """An operation under way that is no command: where its intent stands, and its end."""

    chapter: str
    ended: asyncio.Future[None]


@dataclass(slots=True, eq=False)
class Sandbox:
    """A sandbox. Only the event loop touches it.

    Invariants: `link` is set exactly while an instance is and its agent answered once; `running`
    counts the entries of `ops` that are under way; handle_next <= handle_top, and handle_top is in
    the journal (or is the first block's, which is implied).
    """

    id: str
    spec: SandboxSpec
    digests: tuple[str, ...]
    created: float  # wall clock, as all times that users see
    last_activity: float
    active: float  # the same on the monotonic clock
    born: float  # `created` on the monotonic clock of the host's boot: a ttl counts from there
    owner: str | None = None
    holder: Holder = field(default_factory=Holder)  # as whom it is counted
    state: State = State.CREATING
    changes: int = 0  # of its state
    reason: str | None = None
    end_error: SkerryError | None = None  # why it ended, as its commands are told; None: as asked
    create_ms: float | None = None
    instance: Instance | None = None
    link: Link | None = None
    gateway: Gateway | None = None  # its way out; None: it has none
    proxy_port: Port | None = None  # where that is served inside
    image: ImageConfig = field(default_factory=ImageConfig)  # where the spec says nothing
    parent: str | None = None  # the sandbox whose disk it began with
    made_of: tuple[LayerManifest, ...] = ()  # its layers, as a commit remembers them
    restored: str | None = None  # the commit that it began with, by name and digest
    mounts: tuple[MountedLayer, ...] = ()
    network_env: dict[str, str] = field(default_factory=dict)  # set for every command
    network_turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # changes come one by one
    running: int = 0
    busy: int = 0  # transfers of files, forwards: activity too
    gone: bool = False
    deleting: bool = False  # a delete was recorded in the journal
    ops: dict[str, Op | Past] = field(default_factory=dict)
    acts: dict[str, Position] = field(default_factory=dict)  # on record, by operation id
    untold: dict[str, Did] = field(default_factory=dict)  # done, and not on record for now
    chapter: str = ""  # of the journal, where something was done last
    acting: dict[str, Acting] = field(default_factory=dict)  # under way
    answer_bytes: int = 0  # the sum of what the answers in `ops` take
    handle_next: int = 1
    handle_top: int = HANDLES_BLOCK
    deferred: list[Event] = field(default_factory=list)
    timers: list[Timer] = field(default_factory=list)
    waiters: list[asyncio.Future[None]] = field(default_factory=list)
    destroy_tries: int = 0
    sessions: dict[str, Session] = field(default_factory=dict)
    sessions_made: dict[str, asyncio.Future[None]] = field(default_factory=dict)  # just now
    asked: SandboxSpec | None = None  # the spec of its create, if it was changed since
    pause_error: SkerryError | None = None  # why the last try to pause it failed
    given: Reclaimed | None = None  # by its last pause
    paused_by: str = ""  # what of its job paused it, or does just now; "": nothing of that
    draining: Draining | None = None  # its node's, while that is being drained
    waits: Wait | None = None  # for room: it is being made by name only
    held_since: float | None = None  # monotonic; frozen, or about to be
    held_s: float = 0.0  # the sum of earlier holds

    @property
    def expires(self) -> float | None:
        """When its ttl is over."""
        return None if self.spec.ttl_s is None else self.created + self.spec.ttl_s

    def info(self) -> SandboxInfo:
        """Returns what users see of it."""
        return SandboxInfo(
            id=self.id,
            state=self.state,
            spec=self.spec,
            digests=self.digests,
            mounts=self.mounts,
            created=self.created,
            last_activity=self.last_activity,
            expires=self.expires,
            reason=self.reason,
            running_commands=self.running,
            create_ms=self.create_ms,
            pause_ms=None if self.given is None else round(self.given.seconds * 1000, 3),
            pause_freed_bytes=None if self.given is None else self.given.bytes,
            draining=self.draining is not None,
            drain_deadline=None if self.draining is None else self.draining.deadline,
            parent=self.parent,
            restored=self.restored,
        )

    @property
    def inside_spec(self) -> SandboxSpec:
        """The spec as commands see it: the image's defaults filled in, the network's settings too."""
        spec, image = self.spec, self.image
        return msgspec.structs.replace(
            spec,
            env=image.env | self.network_env | spec.env,
            workdir=spec.workdir or image.workdir,
            user=spec.user or image.user or "root",
        )

    @property
    def asked_spec(self) -> SandboxSpec:
        """The spec that its create asked for: what a repeat of that must equal."""
        return self.spec if self.asked is None else self.asked

    @property
    def has_instance(self) -> bool:
        """Whether something of an instance may be there."""
        return self.instance is not None

    @property
    def stands(self) -> bool:
        """Whether it is paused."""
        return self.state is State.PAUSED

    @property
    def pausable(self) -> Pausable | None:
        """Its instance, if that can be paused."""
        instance: object = self.instance
        return instance if isinstance(instance, Pausable) else None

    @property
    def snapshotable(self) -> Snapshotable | None:
        """Its instance, if what it wrote can be read."""
        instance: object = self.instance
        return instance if isinstance(instance, Snapshotable) else None

    def hold(self, now: float, *, held: bool) -> None:
        """The time from here on does not count for its commands, or counts again; idempotent."""
        if held and self.held_since is None:
            self.held_since = now
        elif not held and self.held_since is not None:
            self.held_s += now - self.held_since
            self.held_since = None

    def work_time(self, now: float) -> float:
        """Returns `now` (monotonic) less the time for which it was held."""
        return (now if self.held_since is None else self.held_since) - self.held_s

    def under_way(self) -> list[Op]:
        """Returns the commands that have no answer yet."""
        if not self.running:
            return []
        return [op for op in self.ops.values() if not isinstance(op, tuple)]

    def handles_in_use(self) -> set[int]:
        """Returns the handles of what the agent must keep: commands under way, and sessions."""
        sessions = {session.handle for session in self.sessions.values()}
        return sessions.union(op.handle for op in self.under_way())

    def forget_acts(self, chapter: str) -> None:
        """A chapter of the journal is gone: the operations that are on record there, too."""
        gone = [op for op, position in self.acts.items() if position.subject == chapter]
        for op in gone:
            del self.acts[op]

    def touch(self, wall: float, monotonic: float) -> None:
        """Counts as activity now."""
        self.last_activity = wall
        self.active = monotonic

    @contextmanager
    def active_while(self, clock: Clock) -> Iterator[None]:
        """Keeps the idle timeout away while the block runs."""
        self.busy += 1
        self.touch(clock.wall(), clock.monotonic())
        try:
            yield
        finally:
            self.busy -= 1
            self.touch(clock.wall(), clock.monotonic())

    def wake(self) -> None:
        """Lets everyone who waits for a change look again."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def changed(self) -> None:
        """Returns after the next change of state."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self.waiters:
                self.waiters.remove(waiter)

    @property
    def lost(self) -> bool:
        """Whether its end was asked for, or is the host's doing: nobody inside is to blame."""
        if self.end_error is None:
            return self.state is not State.FAILED
        return isinstance(self.end_error, OutcomeUnknown)

    def ended(self) -> SkerryError:
        """Returns the error for a request that comes too late."""
        fields = {"sandbox": self.id, "state": str(self.state)}
        if self.lost:
            fields["lost"] = "yes"
        because = f": {self.reason}" if self.reason else ""
        return SandboxFailed(f"the sandbox is {self.state}{because}", **fields)

    def check_invariants(self) -> None:
        """Raises Bug unless the invariants hold."""
        under_way = sum(not isinstance(op, tuple) for op in self.ops.values())
        if under_way != self.running:
            raise Bug(f"{self.id}: {self.running} counted, {under_way} operations under way")
        answers = sum(op.size for op in self.ops.values() if isinstance(op, tuple))
        if answers != self.answer_bytes:
            raise Bug(f"{self.id}: {self.answer_bytes} bytes of answers counted, {answers} there")
        if self.handle_next > self.handle_top:
            raise Bug(f"{self.id}: handle {self.handle_next} was not reserved")
        if self.link is not None and self.instance is None:
            raise Bug(f"{self.id}: a link to no instance")
        if self.gone and (self.instance is not None or self.running):
            raise Bug(f"{self.id}: gone, yet something is left")
