"""Layers for sandboxes: the library's blocking calls in bounded threads, plans from a short memory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from skerry.backends.api import Upper
from skerry.errors import LayerDamaged, SkerryError, StorageFailed, Unavailable
from skerry.images.commits.packing import Apart
from skerry.node.clock import Clock
from skerry.node.crossing import ChunkReader, Pieces
from skerry.node.library import Library, Log
from skerry.spec.files import Change
from skerry.spec.layers import (
    ImageConfig,
    LayerCheck,
    LayerKind,
    LayerManifest,
    RecordsCheck,
    RootfsPlan,
    composed_config,
    parse_layer_name,
)
from skerry.spec.limits import MOUNTS_MAX
from skerry.spec.residue import check_rules
from skerry.spec.sandbox import SandboxSpec
from skerry.wire.http import CommitBody

T = TypeVar("T")
_Names = tuple[str | None, ...]

log = logging.getLogger("skerry.node")

PLAN_FRESH_S = 1.0  # a tag that another process moves is seen after at most that long
PLANS_MAX = 1024
PLAN_THREADS = 8
TIDY_PAUSE_S = 600.0
LOG_LINES_MAX = 10_000
EXPECTED_MAX_S = 300.0  # a create waits that long for a layer that is being packed


class Environment(NamedTuple):
    """What a sandbox is composed of."""

    plan: RootfsPlan
    digests: tuple[str, ...]  # of its layers, lowest first
    config: ImageConfig
    made_of: tuple[LayerManifest, ...] = ()  # the same layers, as a commit remembers them
    restored: str | None = None  # the commit that it is, by name and digest
    commit: LayerManifest | None = None  # the same


class _TooLong(Unavailable):
    """A commit lies on more layers than one sandbox can mount, and they are not merged yet."""

    commit: LayerManifest | None = None

    @classmethod
    def of(cls, commit: LayerManifest, count: int) -> _TooLong:
        """Returns the error; it can be copied as all errors can."""
        error = cls(f"{commit.name} lies on {count} layers, which are not merged yet")
        error.commit = commit
        return error


class Restores(Protocol):
    """Who sees to it that chains of commits stay short."""

    def consider(self, commit: LayerManifest, mounted: Sequence[LayerManifest]) -> None:
        """Is told of one that is restored, and as what."""

    async def needed(self, commit: LayerManifest) -> None:
        """Returns once it is short, as far as that can be."""


class Images:
    """The library, for the event loop. `in_use` names the digests that must stay."""

    def __init__(
        self,
        library: Library,
        clock: Clock,
        *,
        threads_max: int,
        plan_s_max: float = 120.0,
        in_use: Callable[[], Collection[str]],
    ) -> None:
        self._library = library
        self._clock = clock
        self._in_use = in_use
        self._threads = asyncio.Semaphore(threads_max)
        self._plan_s_max = plan_s_max
        self._plan_threads = ThreadPoolExecutor(PLAN_THREADS, "plan")
        # An import waits for its client, and must keep nobody waiting but other imports.
        self._import_threads = ThreadPoolExecutor(threads_max, "import")
        self._plans: dict[_Names, tuple[float, Environment]] = {}
        self._planning: dict[_Names, asyncio.Future[Environment]] = {}
        self._tidied = clock.monotonic()
        self.restores: Restores | None = None
        self.changes = 0  # of what names stand for, as far as this node has made them
        self._expected: dict[str, list[asyncio.Future[LayerManifest]]] = {}

    async def plan(self, spec: SandboxSpec) -> Environment:
        """Returns a sandbox's root file system, its layers' digests, and what they set."""
        names = (spec.restore, *spec.made_of)
        known = self._plans.get(names)
        now = self._clock.monotonic()
        if known is not None and now - known[0] < PLAN_FRESH_S:
            return known[1]
        work = self._planning.get(names)
        if work is None:  # a burst of creates asks the store once
            work = self._planning[names] = asyncio.ensure_future(self._planned(spec))
            work.add_done_callback(lambda done: self._came_out(names, now, done))
        environment = await asyncio.shield(work)
        if now - self._tidied > TIDY_PAUSE_S:
            self._tidied = now
            await self._tidy()
        return environment

    def _came_out(self, names: _Names, began: float, work: asyncio.Future[Environment]) -> None:
        _forget(work)  # whoever asked may be gone
        if self._planning.get(names) is not work:
            return  # a name may stand for something else since
        del self._planning[names]
        if work.cancelled() or work.exception() is not None:
            return
        if len(self._plans) >= PLANS_MAX:
            self._plans.clear()
        self._plans[names] = (began, work.result())

    async def _planned(self, spec: SandboxSpec) -> Environment:
        try:
            environment = await self._looked_up(spec)
        except _TooLong as error:
            if self.restores is None or error.commit is None:
                raise
            await self.restores.needed(error.commit)
            environment = await self._looked_up(spec)
        if environment.commit is not None and self.restores is not None:
            self.restores.consider(environment.commit, environment.made_of)
        return environment

    async def _looked_up(self, spec: SandboxSpec) -> Environment:
        """Looks layers up; StorageFailed if the store does not answer within `plan_s_max`.

        Who asked is told then. The thread stays with the store until that answers, so these threads
        are nobody else's.
        """
        work = asyncio.get_running_loop().run_in_executor(self._plan_threads, self._plan, spec)
        done, _ = await asyncio.wait((work,), timeout=self._plan_s_max)
        if not done:
            work.cancel()
            work.add_done_callback(_forget)
            raise StorageFailed(
                f"the layer store has not answered for {self._plan_s_max:g} s: the sandbox's layers "
                "cannot be looked up"
            )
        return work.result()

    def _plan(self, spec: SandboxSpec) -> Environment:
        commit = restored = None
        if spec.restore is None:
            manifests = self._library.resolve(spec.made_of)
        else:
            commit, manifests = self._library.restore(spec.restore)
            restored = f"{commit.name}@{commit.digest}"
            if len({one.digest for top in manifests for one in top.layers()}) > MOUNTS_MAX:
                raise _TooLong.of(commit, len(manifests))
        self._library.hold(manifests)  # before it is looked whether all blobs are there
        return Environment(
            self._library.plan(manifests),
            tuple(one.digest for one in manifests),
            composed_config(manifests),
            tuple(one.alone() for one in manifests),
            restored,
            commit,
        )

    async def _tidy(self) -> None:
        try:
            await self._call(partial(self._library.tidy, self._in_use()))
        except SkerryError as error:
            log.warning("old copies of layers' metadata stay: %s", error)

    async def list_all(self) -> tuple[LayerManifest, ...]:
        """Returns all layers, by name."""
        return tuple(await self._call(self._library.list))

    async def inspect(self, name: str) -> LayerManifest:
        """Returns one layer; NotFound."""
        return await self._call(lambda: self._library.inspect(name))

    async def remove(self, name: str) -> LayerManifest | None:
        """Removes a layer and returns what it was, None if that is damaged; Conflict if it is in use."""
        manifest = None
        with contextlib.suppress(LayerDamaged):  # such a one has to be removable above all
            manifest = await self.inspect(name)
        self.forget_plans()
        in_use = self._in_use()
        await self._call(lambda: self._library.remove(name, in_use))
        self.forget_plans()
        return manifest

    async def verify(self, name: str, *, remove_damaged: bool) -> LayerCheck:
        """Reads a layer's bytes again and compares them with their digests."""
        try:
            return await self._call(
                lambda: self._library.verify(name, remove_damaged=remove_damaged)
            )
        finally:
            self.forget_plans()

    async def verify_records(self) -> RecordsCheck:
        """Says which records of the store are damaged, and what to do about each."""
        return await self._call(self._library.verify_records)

    async def last_check(self, name: str) -> LayerCheck:
        """Returns what the last such reading found, whoever did it."""
        return await self._call(lambda: self._library.last_check(name))

    async def pin(self, name: str, *, on: bool) -> LayerManifest:
        """Makes a layer stay, or takes that back; NotFound."""
        return await self._call(
            lambda: self._library.pin(name) if on else self._library.unpin(name)
        )

    def forget_plans(self) -> None:
        """Looks names up again at their next use: one stands for another layer now."""
        self.changes += 1
        self._plans.clear()
        self._planning.clear()

    async def import_tar(self, name: str, chunks: AsyncIterator[bytes]) -> LayerManifest:
        """Makes a layer of an archive that is read no faster than it is unpacked.

        InvalidRequest if nothing of it comes for STALL_S.
        """
        loop = asyncio.get_running_loop()
        reader = ChunkReader(chunks, loop)
        try:
            return await loop.run_in_executor(
                self._import_threads, self._library.import_tar, name, reader
            )
        finally:
            self.forget_plans()

    async def debian(
        self, name: str, suite: str, packages: Sequence[str], log: Log, *, refresh: bool
    ) -> LayerManifest:
        """Makes a base layer; `log` is called in the event loop."""
        loop = asyncio.get_running_loop()

        def tell(line: str) -> None:
            loop.call_soon_threadsafe(log, line)

        try:
            return await self._call(
                lambda: self._library.debian(name, suite, packages, tell, refresh)
            )
        finally:
            self.forget_plans()

    async def diff(self, upper: Upper) -> tuple[Change, ...]:
        """Returns what a sandbox wrote, by path."""
        return tuple(await self._call(lambda: self._library.diff(upper)))

    async def diff_tar(self, upper: Upper, under: str) -> AsyncGenerator[bytes]:
        """Gives an archive of what a sandbox wrote, in pieces of about 256 KiB."""
        pieces = Pieces(self._library.diff_tar(upper, under))
        try:
            while piece := await self._call(pieces.batch):
                yield piece
        finally:
            # In a thread: the last to close a large file that was deleted takes as long as deleting it.
            await asyncio.shield(asyncio.to_thread(pieces.close))

    async def commit(
        self,
        upper: Upper,
        body: CommitBody,
        *,
        recipe: Mapping[str, str],
        parents: tuple[str, ...],
        below: tuple[LayerManifest, ...],
        log: Log,
    ) -> LayerManifest:
        """Makes a layer of what a sandbox wrote, in a process apart; cancelled, that is ended."""
        loop = asyncio.get_running_loop()

        def tell(line: str) -> None:
            loop.call_soon_threadsafe(log, line)

        return await self._apart(
            lambda apart: self._library.commit(
                upper,
                body.name,
                exclude=body.exclude,
                scrub=check_rules(body.scrub, git=body.scrub_git),
                recipe=recipe,
                parents=parents,
                below=below,
                apart=apart,
                log=tell,
            )
        )

    async def shorten(self, commit: LayerManifest, most: int) -> int:
        """Makes its chain short, in a process apart; returns how many commits were merged.

        Cancelled, that is ended.
        """
        return await self._apart(
            lambda apart: self._library.shorten(commit, most, apart=apart, log=log.debug)
        )

    async def _apart(self, make: Callable[[Apart], T]) -> T:
        """Has a process apart work in a thread; cancelled, it is ended first."""
        apart = Apart()
        work = asyncio.ensure_future(asyncio.to_thread(make, apart))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            apart.end()
            await asyncio.wait((work,))
            if not work.cancelled():
                work.exception()
            raise
        finally:
            self.forget_plans()

    # -- layers that are being made of what a sandbox wrote ----------------------------------------

    def expect(self, name: str, layer: asyncio.Future[LayerManifest]) -> None:
        """Until it is there or cannot be, whoever names this layer waits for it."""
        self._expected.setdefault(name, []).append(layer)
        layer.add_done_callback(lambda _: self._came(name, layer))

    def _came(self, name: str, layer: asyncio.Future[LayerManifest]) -> None:
        there = self._expected.get(name, [])
        there.remove(layer)
        if not there:
            self._expected.pop(name, None)

    async def until_there(self, spec: SandboxSpec) -> None:
        """Returns when no layer of its is being made any more; Unavailable if that takes too long.

        Raises why it could not be made, if that comes out meanwhile.
        """
        if not self._expected:
            return
        names = spec.made_of
        parsed = [parse_layer_name(name, LayerKind.BASE) for name in names]
        wanted = [
            layer
            for name in parsed
            if name.digest is None
            for layer in self._expected.get(str(name), ())
        ]
        if not wanted:
            return
        done, late = await asyncio.wait(wanted, timeout=EXPECTED_MAX_S)
        if late:
            raise Unavailable("a layer is still being packed", retry_after_s=5.0)
        for layer in done:
            error = layer.exception()
            if error is not None:
                raise error

    async def _call(self, work: Callable[[], T]) -> T:
        async with self._threads:
            return await asyncio.to_thread(work)


def _forget(work: asyncio.Future[Environment]) -> None:
    """Nobody waits for it any more."""
    if not work.cancelled():
        work.exception()
