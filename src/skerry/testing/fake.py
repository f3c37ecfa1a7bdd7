"""A backend without isolation or privilege, for tests: instances are fake agents in this process.

`FakeWorld` is what survives a restart of the node: give the same one to a second `FakeBackend` and
it recovers the instances of the first. Failure knobs are attributes of `FakeBackend.knobs`, named
for how they fail; set them before the call that shall fail.
"""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from skerry.backends.api import (
    Capabilities,
    CellLimits,
    CellUsage,
    CreateRequest,
    Exit,
    Health,
    Reclaimed,
    Record,
    Upper,
    View,
)
from skerry.errors import Conflict, SandboxFailed, SkerryError, Unavailable
from skerry.spec.sandbox import Usage
from skerry.testing.fake_agent import FakeAgent
from skerry.testing.fake_commands import Clock, RealClock
from skerry.testing.fake_connection import AgentConnection
from skerry.testing.fake_files import FakeFiles

DEFAULT_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/root"}


@dataclass
class Knobs:
    """How the fake fails. None, False or 0: it does not."""

    refuse_create: SkerryError | None = None  # raised by create
    fail_create_at: str | None = None  # create raises SandboxFailed naming this step
    fail_creates_after: int | None = None  # that many creates work, later ones raise Unavailable
    slow_create_s: float = 0.0  # on the clock
    slow_destroy_s: float = 0.0  # on the clock
    die_after_operations: int | None = None  # the instance dies when one more is started
    drop_channel_after: int | None = None  # each connection is cut after that many frames
    never_answer: bool = False  # connections are accepted and nothing is ever said
    send_garbage: bool = False  # the first bytes of each connection are no frame
    refuse_channel: bool = False  # open_channel raises Unavailable
    fail_view: SkerryError | None = None  # raised by view
    unusable: str = ""  # probe says so, start raises Unavailable


@dataclass
class FakeWorld:
    """What outlives a node: the live instances by id, views by name, and what was left behind."""

    instances: dict[str, FakeInstance] = field(default_factory=dict)
    views: dict[str, FakeFiles] = field(default_factory=dict)
    created: int = 0
    destroyed: int = 0


class FakeInstance:
    """One fake instance; Pausable, Reclaimable, Snapshotable, Viewable and Celled."""

    def __init__(
        self, world: FakeWorld, request: CreateRequest, knobs: Knobs, clock: Clock
    ) -> None:
        self.request = request
        self.knobs = knobs
        view = request.view
        self.files = FakeFiles() if view is None else world.views[view.name].duplicate()
        self.agent = FakeAgent(clock, self.files, DEFAULT_ENV | request.env, self._count)
        self._world = world
        self._clock = clock
        self._operations = 0
        self.memory, self.swapped, self.major_faults = 1 << 20, 0, 0
        self.cell_limits: dict[int, CellLimits] = {}  # as each cell was opened last
        self.cell_used: dict[int, CellUsage] = {}  # what is said of it; for tests to set
        self.full_cells: set[int] = set()  # cannot be opened; for tests to fill
        self._exit: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._transports: list[asyncio.BaseTransport] = []

    def _count(self) -> None:
        self._operations += 1
        limit = self.knobs.die_after_operations
        if limit is not None and self._operations > limit:
            self.die(Exit(signal=9))

    @property
    def alive(self) -> bool:
        """False once it died or was destroyed."""
        return not self._exit.done()

    async def open_channel(self, factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        """Connects to the fake agent over a socket pair."""
        if not self.alive or self.knobs.refuse_channel:
            raise Unavailable(f"the agent of {self.request.instance_id} cannot be reached")
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        self.agent.never_answer = self.knobs.never_answer

        def agent_side() -> AgentConnection:
            return AgentConnection(self.agent, self.knobs.drop_channel_after)

        try:
            served, _ = await loop.create_unix_connection(agent_side, sock=theirs)
        except BaseException:  # nobody else knows of it
            ours.close()
            raise
        if self.knobs.send_garbage:
            served.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" + os.urandom(64))
        try:
            transport, _ = await loop.create_unix_connection(factory, sock=ours)
        except BaseException:
            served.abort()
            raise
        self._transports = [t for t in self._transports if not t.is_closing()]
        self._transports += [served, transport]
        return transport

    async def wait(self) -> Exit:
        """Returns when it died or was destroyed."""
        return await asyncio.shield(self._exit)

    async def usage(self) -> Usage:
        """Returns plausible numbers."""
        running = sum(op.done is None for op in self.agent.operations.values())
        return Usage(
            cpu_seconds=0.001 * self._operations,
            memory_bytes=self.memory - self.swapped,
            memory_peak_bytes=2 << 20,
            pids=running,
            memory_swapped=self.swapped,
            major_faults=self.major_faults,
        )

    @property
    def cells(self) -> int:
        """As many as were asked for."""
        return self.request.cells

    def open_cell(self, cell: int, limits: CellLimits, /) -> bool:
        """Takes note of the limits, and says of it again what is said of an empty one."""
        if cell in self.full_cells:
            return False
        self.cell_limits[cell] = limits
        self.cell_used.pop(cell, None)
        return True

    def cell_usage(self, cell: int, /) -> CellUsage:
        """Returns what the test says, or plausible numbers."""
        return self.cell_used.get(cell, CellUsage(memory_peak_bytes=1 << 20, cpu_us=1000))

    def cell_residue(self, _cell: int, /) -> int:
        """Nothing is left in a fake."""
        return 0

    async def destroy(self) -> None:
        """Ends it and forgets it; idempotent."""
        if self._world.instances.get(self.request.instance_id) is not self:
            return
        if self.knobs.slow_destroy_s:
            await self._clock.sleep(self.knobs.slow_destroy_s)
        self.die(Exit(signal=9))
        for transport in self._transports:
            transport.close()
        if self._world.instances.pop(self.request.instance_id, None) is not None:
            self._world.destroyed += 1
        await asyncio.sleep(0)

    def record(self) -> Record:
        """Returns the id."""
        return Record("fake", 1, {"instance": self.request.instance_id})

    def die(self, exit_: Exit) -> None:
        """Ends PID 1 by itself, as a crash would; for tests."""
        if not self._exit.done():
            self._exit.set_result(exit_)
        self.agent.stop()

    def drop_channel(self) -> None:
        """Cuts the channel, leaving the operations running; for tests."""
        if self.agent.connection is not None and self.agent.connection.transport is not None:
            self.agent.connection.transport.abort()

    async def pause(self) -> Reclaimed:
        """New operations stand still; idempotent."""
        self.agent.running.clear()
        return await self.reclaim(1 << 62)

    async def resume(self) -> None:
        """They go on, and all memory is back; idempotent."""
        self.agent.running.set()
        self.swapped = 0

    async def reclaim(self, max_bytes: int, /) -> Reclaimed:
        """Moves from one number to another."""
        moved = min(max_bytes, self.memory - self.swapped)
        self.swapped += moved
        return Reclaimed(moved, 0.001)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Upper]:
        """Gives what was written as a host directory; deletions of initial files are not shown."""
        with exported(self.files) as upper:
            yield upper

    async def view(self, name: str, /) -> View:
        """Keeps a copy of what was written."""
        if self.knobs.fail_view is not None:
            raise self.knobs.fail_view
        self._world.views[name] = self.files.duplicate()
        layers = self.request.rootfs.layers
        return View(name=name, layers=layers, uid_base=0, frozen_seconds=0.001)


@contextmanager
def exported(files: FakeFiles) -> Iterator[Upper]:
    """Gives files as a host directory for the block."""
    with tempfile.TemporaryDirectory(prefix="skerry-fake-") as directory:
        export(files, Path(directory))
        yield Upper(directory, os.getuid(), (), 0.001)


def export(files: FakeFiles, directory: Path) -> None:
    """Writes what differs from the initial tree below a host directory."""
    for path, node in sorted(files.nodes.items()):
        where = Path(f"{directory}{path}")
        if node.type == "d":
            where.mkdir(parents=True, exist_ok=True)
        elif path in files.initial:
            continue
        elif node.type == "l":
            where.symlink_to(node.target)
        else:
            where.write_bytes(node.content)
            where.chmod(node.mode)


class FakeBackend:
    """The seam, faked. `world` lives on when a backend is closed with its instances kept."""

    def __init__(self, *, world: FakeWorld | None = None, clock: Clock | None = None) -> None:
        self.world = world if world is not None else FakeWorld()
        self.clock: Clock = clock if clock is not None else RealClock()
        self.knobs = Knobs()
        self.started = False
        self._claimed: set[str] = set()

    @property
    def capabilities(self) -> Capabilities:
        """It claims to be a container with disk limits and snapshots."""
        return Capabilities(isolation="container", disk_limit=True, snapshot=True, cgroup="none")

    async def start(self) -> None:
        """Starts; Unavailable if the knob says so."""
        if self.knobs.unusable:
            raise Unavailable(self.knobs.unusable)
        self.started = True

    async def close(self, *, keep_instances: bool) -> None:
        """Destroys what lives, or leaves it in the world."""
        for instance in list(self.world.instances.values()):
            if keep_instances:
                instance.drop_channel()
            else:
                await instance.destroy()
        self.started = False

    async def probe(self) -> Health:
        """Says what the knob says."""
        return Health(not self.knobs.unusable, self.knobs.unusable, {"isolation": "none: a fake"})

    async def create(self, request: CreateRequest, /) -> FakeInstance:
        """Makes a fake instance, or fails as the knobs say and leaves nothing."""
        if not self.started:
            raise Unavailable("the backend was not started")
        if self.knobs.refuse_create is not None:
            raise self.knobs.refuse_create
        limit = self.knobs.fail_creates_after
        if limit is not None and self.world.created >= limit:
            raise Unavailable("the launcher does not answer")
        if request.instance_id in self.world.instances:
            raise Conflict(f"instance {request.instance_id} exists")
        if self.knobs.slow_create_s:
            await self.clock.sleep(self.knobs.slow_create_s)
        if self.knobs.fail_create_at is not None:
            step = self.knobs.fail_create_at
            raise SandboxFailed(f"create failed at {step}", step=step)
        instance = FakeInstance(self.world, request, self.knobs, self.clock)
        self.world.instances[request.instance_id] = instance
        self.world.created += 1
        return instance

    def claim_views(self, found: Iterable[View], /) -> None:
        """Takes note of them: `sweep` spares them."""
        self._claimed.update(view.name for view in found)

    @asynccontextmanager
    async def open_view(self, view: View, /) -> AsyncIterator[Upper]:
        """Gives a view as a host directory."""
        files = self.world.views.get(view.name)
        if files is None:
            raise Unavailable(f"the view {view.name} is lost")
        with exported(files) as upper:
            yield upper

    async def drop_view(self, view: View, /) -> None:
        """Forgets it; idempotent."""
        self.world.views.pop(view.name, None)

    async def sweep(self) -> list[str]:
        """Forgets views that nobody claimed."""
        swept = sorted(set(self.world.views) - self._claimed)
        for name in swept:
            del self.world.views[name]
        return [f"view {name}" for name in swept]

    async def recover(self, record: Record, /) -> FakeInstance | None:
        """Finds an instance of the world again; a dead one is removed."""
        instance = self.world.instances.get(str(record.data.get("instance")))
        if instance is not None and not instance.alive:
            await instance.destroy()
            return None
        return instance


def build_backend(**_arguments: object) -> FakeBackend:
    """Entry point form: takes and ignores what real backends need."""
    return FakeBackend()
