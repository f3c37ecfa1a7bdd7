"""The container backend: brings its parts up and down, and makes instances with them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager

from skerry.backends.api import (
    BlobSession,
    Capabilities,
    CreateRequest,
    Health,
    Record,
    Upper,
    View,
)
from skerry.backends.container import creation, host, recovery, uppers, views
from skerry.backends.container.backing import Backing
from skerry.backends.container.instance import ContainerInstance
from skerry.backends.container.parts import Parts, Places
from skerry.backends.shared import binaries, proc
from skerry.backends.shared.launcher import Launcher, LauncherFailed
from skerry.backends.shared.launcher_process import LauncherProcess, clear_log
from skerry.errors import Conflict, SkerryError, Unavailable
from skerry.wire import plan, replies

TRASH_TIMEOUT_S = 30.0
TRASH_POLL_S = 0.02


class ContainerBackend:
    """See the seam. A caller that gives up during `create` leaves nothing behind."""

    def __init__(self, places: Places, log: logging.Logger) -> None:
        self.places, self.log = places, log
        self.layout = host.layout()
        self._room = uppers.Room(places.state_dir)
        self._parts: Parts | None = None
        self._store: uppers.UpperPlan | None = None
        self._backing: Backing | None = None
        self._keepers: list[asyncio.Task[None]] = []
        self._closing = False
        self._session: int | None = None  # a copy of the blob session's descriptor

    @property
    def parts(self) -> Parts:
        """What was brought up by `start`; Unavailable before and after."""
        if self._parts is None:
            raise Unavailable("the container backend is not running")
        return self._parts

    @property
    def capabilities(self) -> Capabilities:
        """Facts of this host, valid after `start`."""
        features = self.parts.features
        return Capabilities(
            "container", "quota" in features, "snapshot" in features, self.layout.kind
        )

    async def probe(self) -> Health:
        """Looks at kernel, rights, binaries and places; starts nothing."""
        return await asyncio.to_thread(host.probe, self.places.state_dir, self.layout)

    async def start(self) -> None:
        """Finds or starts the launcher, opens the upper store, fills the pool of slots."""
        health = await self.probe()
        if not health.usable:
            raise Unavailable(f"containers cannot run here: {health.reason}")
        self._store = self._prepare_places()
        parts = Parts(self.places, self.layout, self.log)
        for root in parts.groups.roots():
            os.makedirs(root, mode=0o755, exist_ok=True)
        for path, text in parts.groups.prepare():
            _write(path, text)
        parts.process = LauncherProcess(
            self._launcher_argv(parts),
            self.places.run_dir,
            restore=self._restore,
            on_exited=self._exited,
            log=self.log,
        )
        self._parts = parts
        try:
            await parts.process.open()
        except BaseException:
            self._parts = None
            self._remove_places(parts)
            raise
        keepers = [parts.slots.keep_filled(), parts.layers.keep_tidy()]
        if self._store.image:
            self._backing = Backing(self._store.path, parts.upper_root, self.log)
            await asyncio.to_thread(self._backing.secure)
            keepers.append(self._backing.keep())
        self._keepers += map(asyncio.create_task, keepers)

    async def close(self, *, keep_instances: bool) -> None:
        """Ends what is shared.

        With `keep_instances` the launcher and what lives in it stay; if nothing lives, nothing does.
        """
        if self._parts is None:
            return
        parts = self._parts
        self._closing = True
        await parts.settle()
        keep_instances = keep_instances and bool(
            parts.instances or parts.unclaimed or parts.orphans or parts.views
        )
        if not keep_instances:
            await recovery.sweep(parts)
            await _all(instance.destroy for instance in list(parts.instances.values()))
        await parts.settle()
        await parts.slots.close()
        await parts.layers.close()
        if self._backing is not None:
            await self._backing.close()
        await asyncio.gather(*self._keepers)
        self._keepers.clear()
        if not keep_instances:
            await parts.layers.unmount_unused(0.0)
        if not keep_instances:
            await self._empty_trash()
        if parts.process is not None:
            await parts.process.close(stop=not keep_instances)
        if not keep_instances:
            self._remove_places(parts)
        self._let_session_go()
        self._parts, self._closing = None, False

    async def create(self, request: CreateRequest, /) -> ContainerInstance:
        """Makes a container; at most eight are being started at a time, more wait their turn."""
        parts = self.parts
        if self._closing:
            raise Unavailable("the container backend is being closed")
        if request.instance_id in parts.instances or request.instance_id in parts.making:
            raise Conflict(f"instance {request.instance_id} exists")
        self._room.check()
        parts.making.add(request.instance_id)
        making = asyncio.create_task(creation.create(parts, request))
        parts.track(making)
        making.add_done_callback(lambda _task: parts.making.discard(request.instance_id))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(lambda task: _abandon(parts, task))
            raise

    async def recover(self, record: Record, /) -> ContainerInstance | None:
        """Finds a container again, adopting it if its launcher died."""
        return await recovery.recover(self.parts, record)

    async def sweep(self) -> list[str]:
        """Destroys what no `recover` claimed."""
        return await recovery.sweep(self.parts)

    def claim_views(self, found: Iterable[View], /) -> None:
        """Takes note of views of an earlier process."""
        self.parts.views.update((view.name, view) for view in found)

    def open_view(self, view: View, /) -> AbstractAsyncContextManager[Upper]:
        """Gives a view's directories."""
        return views.opened(self.parts, view)

    async def drop_view(self, view: View, /) -> None:
        """Deletes a view."""
        await views.drop(self.parts, view.name)
        self.parts.views.pop(view.name, None)

    async def blob_session(self, held: int | None, /) -> BlobSession:
        """Asks the launcher; a launcher that follows a killed one is given what is held here."""
        process = self.parts.process
        if process is None:
            raise Unavailable("the container backend is not running")
        return await self._ask_session(await process.get(), self._session if held is None else held)

    async def _ask_session(self, launcher: Launcher, held: int | None) -> BlobSession:
        try:
            reply = await launcher.ask(plan.Blobs(), descriptor=held)
        except LauncherFailed as error:
            raise error.to_error() from error
        if reply.descriptor is None:
            raise Unavailable("the launcher sent no descriptor of the session")
        fresh = reply.blobs().state
        if fresh:
            self.parts.layers.lost_session()
        self._let_session_go()
        self._session = os.dup(reply.descriptor)
        return BlobSession(reply.descriptor, fresh)

    def _let_session_go(self) -> None:
        if self._session is not None:
            os.close(self._session)
            self._session = None

    def daemons(self) -> tuple[tuple[str, int], ...]:
        """The launcher."""
        process = None if self._parts is None else self._parts.process
        return () if process is None or not process.pid else (("launcher", process.pid),)

    def gauges(self) -> dict[str, float]:
        """Returns how full the pools are; nothing while it is not running."""
        parts = self._parts
        if parts is None:
            return {}
        return {
            "instances": len(parts.instances),
            "slots_idle": parts.slots.idle,
            "slots_taken": len(parts.slots.taken),
            "slots_stuck": len(parts.slots.stuck),
            "slots_made": parts.slots.made,
            "slots_dropped": parts.slots.dropped,
            "layers_mounted": len(parts.layers),
            "launcher_restarts": 0 if parts.process is None else parts.process.restarts,
        }

    def _prepare_places(self) -> uppers.UpperPlan:
        run = self.places.run_dir
        for path in (self.places.state_dir, run, f"{run}/i", self.places.keep_dir):
            os.makedirs(path, mode=0o700, exist_ok=True)
        return uppers.choose(
            self.places.state_dir, proc.text("/proc/self/mountinfo"), proc.text("/proc/filesystems")
        )

    def _launcher_argv(self, parts: Parts) -> tuple[str, ...]:
        argv = [str(binaries.find("skerry-spawn")), "--run", self.places.run_dir]
        argv += ["--state", self.places.state_dir, "--init", str(binaries.find("skerry-init"))]
        for path in self.places.layer_dirs:
            argv += ["--bind", path]
        for path in parts.groups.roots():
            argv += ["--cgroup", path]
        if self.places.orphan_after_s is not None:
            seconds = max(1, round(self.places.orphan_after_s))
            argv += ["--orphan-after", str(seconds), "--keep", self.places.keep_dir]
        return tuple(argv)

    async def _restore(self, launcher: Launcher, status: replies.StatusReply) -> None:
        parts, store = self.parts, self._store
        assert store is not None  # noqa: S101
        if not status.upper:
            await asyncio.to_thread(uppers.prepare, store)
        request = plan.UpperOpen(upper=store.kind, path=store.path)
        parts.features = frozenset((await launcher.ask(request)).upper().feature)
        await recovery.restore(parts, launcher, status)
        if self._session is not None:
            os.close((await self._ask_session(launcher, self._session)).descriptor)

    def _exited(self, event: replies.Exited) -> None:
        instance = self._parts.instances.get(event.instance) if self._parts else None
        if instance is not None:
            instance.exited(event.wait_status)

    async def _empty_trash(self) -> None:
        """Waits for what the launcher is deleting, within a bound."""
        for _ in range(int(TRASH_TIMEOUT_S / TRASH_POLL_S)):
            if self._store is None or not uppers.trash(self._store):
                return
            await asyncio.sleep(TRASH_POLL_S)
        self.log.warning("not everything that sandboxes wrote has been deleted yet")

    def _remove_places(self, parts: Parts) -> None:
        for root in parts.groups.roots():
            _quietly(os.rmdir, root)
        run = self.places.run_dir
        _quietly(os.rmdir, f"{run}/ns")
        _quietly(os.rmdir, f"{run}/i")
        _quietly(os.rmdir, self.places.keep_dir)
        clear_log(run)
        if self._store is not None:
            uppers.remove(self._store)


def _abandon(parts: Parts, making: asyncio.Task[ContainerInstance]) -> None:
    """Destroys an instance whose creator gave up."""
    if not making.cancelled() and making.exception() is None:
        parts.track(asyncio.get_running_loop().create_task(making.result().destroy()))


async def _all(calls: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Awaits all of them and then raises the first platform error."""
    results = await asyncio.gather(*(call() for call in calls), return_exceptions=True)
    for result in results:
        if isinstance(result, SkerryError):
            raise result


def _quietly(call: Callable[[str], None], path: str) -> None:
    """Removes what is there and empty; the leak census tells of the rest."""
    try:
        call(path)
    except OSError:
        return


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
