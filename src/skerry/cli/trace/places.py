"""Where `skerry trace` reads trajectories: from a node, or from a store or a state directory alone."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import click

from skerry.cli.app import App
from skerry.errors import InvalidRequest, NotFound, StorageFailed, Unavailable
from skerry.spec.ids import JOB_PATTERN, SANDBOX_PATTERN

if TYPE_CHECKING:
    from skerry.aio import Client
    from skerry.spec.trajectory import Event, TrajectoryCheck, TrajectoryInfo
    from skerry.trajectory.format.store import Shelf
    from skerry.trajectory.reading.archive import Archive

PAGE = 1000
ANSWERS_WITHIN_S = 5.0


class Place(NamedTuple):
    """Where a caller says that trajectories are; nothing given: the node."""

    store: str | None = None
    config: str | None = None

    @property
    def given(self) -> bool:
        """Whether no node is wanted."""
        return self != Place()


class Traces(Protocol):
    """Trajectories, wherever they are."""

    where: str

    def select(
        self, *, rollout: str | None = None, job: str | None = None, sandbox: str | None = None
    ) -> AsyncIterator[TrajectoryInfo]:
        """Yields those that are asked for, oldest first."""

    def events(self, sandbox: str, start: int = 0) -> AsyncIterator[Event]:
        """Yields a sandbox's events from an ordinal on; NotFound."""

    async def check(self, sandbox: str) -> TrajectoryCheck:
        """Checks all that is recorded of a sandbox; NotFound."""

    def check_all(self) -> AsyncIterator[TrajectoryCheck]:
        """Checks everything that is there."""

    def blob(self, digest: str) -> AsyncIterator[bytes]:
        """Yields a long content in pieces, and raises at its end if it is another one."""


class NodeTraces:
    """Over a node."""

    def __init__(self, client: Client, where: str) -> None:
        self._trajectories = client.trajectories
        self.where = where

    def select(
        self, *, rollout: str | None = None, job: str | None = None, sandbox: str | None = None
    ) -> AsyncIterator[TrajectoryInfo]:
        """Asks page by page."""
        return self._trajectories.iterate(rollout=rollout, job=job, sandbox=sandbox)

    def events(self, sandbox: str, start: int = 0) -> AsyncIterator[Event]:
        """Asks page by page."""
        return self._trajectories.events(sandbox, start)

    async def check(self, sandbox: str) -> TrajectoryCheck:
        """Lets the node check."""
        return await self._trajectories.verify(sandbox)

    async def check_all(self) -> AsyncIterator[TrajectoryCheck]:
        """Lets the node check one sandbox after the other, but those that went meanwhile."""
        async for info in self._trajectories.iterate():
            try:
                yield await self._trajectories.verify(info.sandbox)
            except NotFound:
                continue

    async def blob(self, digest: str) -> AsyncIterator[bytes]:
        """Gets it as a whole."""
        yield await self._trajectories.blob(digest)


class OfflineTraces:
    """Without a node: from the objects of a store, or also from a state directory."""

    def __init__(self, archive: Archive, where: str) -> None:
        self._archive = archive
        self.where = where

    async def select(
        self, *, rollout: str | None = None, job: str | None = None, sandbox: str | None = None
    ) -> AsyncIterator[TrajectoryInfo]:
        """Reads page by page, in a thread."""
        from skerry.trajectory.reading.archive import Wanted

        wanted, cursor = Wanted(rollout, job, sandbox), None
        while True:
            page = await asyncio.to_thread(self._archive.select, wanted, PAGE, cursor)
            for info in page.items:
                yield info
            cursor = page.cursor
            if cursor is None:
                return

    async def events(self, sandbox: str, start: int = 0) -> AsyncIterator[Event]:
        """Reads page by page, in a thread."""
        following: int | None = start
        while following is not None:
            page = await asyncio.to_thread(self._archive.page, sandbox, following, PAGE)
            for event in page.events:
                yield event
            following = page.next

    async def check(self, sandbox: str) -> TrajectoryCheck:
        """Checks in a thread."""
        from skerry.trajectory.reading.checking import check_sandbox

        return await asyncio.to_thread(check_sandbox, self._archive, sandbox)

    async def check_all(self) -> AsyncIterator[TrajectoryCheck]:
        """Checks the log of one node after the other."""
        from skerry.trajectory.reading.checking import check_log

        for log in await asyncio.to_thread(self._archive.logs):
            yield await asyncio.to_thread(check_log, self._archive, log)

    async def blob(self, digest: str) -> AsyncIterator[bytes]:
        """Reads piece by piece."""
        pieces = self._archive.blobs.pieces(digest)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece


def store_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --store and --config."""
    function = click.option(
        "--config", metavar="FILE", help="A node's configuration: how a bucket is reached."
    )(function)
    option = click.option(
        "--store",
        metavar="PLACE",
        help="Without a node: a layer store, DIR or s3://BUCKET/PREFIX.",
    )
    return option(function)


def node_is_there(app: App) -> bool:
    """Whether a node was named, or one runs here: none is started to read what was recorded."""
    if app.settings.url is not None:
        return True
    with socket.socket(socket.AF_UNIX) as found:
        found.settimeout(ANSWERS_WITHIN_S)
        try:
            found.connect(app.settings.socket)  # one that was killed leaves its name
        except OSError:
            return False
    return True


@asynccontextmanager
async def open_traces(app: App, place: Place) -> AsyncIterator[Traces]:
    """Gives the trajectories of a store, else of the node, else of this machine's state directory.

    Raises Unavailable if there is none of these.
    """
    if place.given:
        shelf = await asyncio.to_thread(shelf_of, app, place)
        yield OfflineTraces(_archive(shelf), place.store or "the store of the configuration")
        return
    if node_is_there(app):
        async with app.client() as client:
            yield NodeTraces(client, app.settings.url or app.settings.socket)
        return
    state = app.settings.state
    if not os.path.isdir(os.path.join(state, "journal")):
        raise Unavailable(
            f"no node answers at {app.settings.socket}, and {state} holds no record",
            hint="name a node with --url, or a layer store with --store",
        )
    app.note(f"no node runs here: reading {state}")
    yield OfflineTraces(await asyncio.to_thread(_local, state), state)


def shelf_of(app: App, place: Place) -> Shelf:
    """Returns the objects of a store; InvalidRequest, NotFound, StorageFailed."""
    from skerry.cli.node import node_config, read_config
    from skerry.images.objects.directory import DirectoryObjects

    where, options = place.store or "", None
    if place.config is not None:
        made = node_config(app.settings, read_config(place.config), given={})
        where, options = where or made.store or made.store_dir, made.s3
    if not where.startswith("s3://"):
        if not os.path.isdir(where):
            raise NotFound(f"there is no directory {where}")
        return DirectoryObjects(os.path.abspath(where))
    from skerry.images.objects.s3 import S3Objects
    from skerry.images.objects.s3_options import S3Options

    return S3Objects(where, options or S3Options())


def _local(state: str) -> Archive:
    """Returns what a state directory holds, and the store in it."""
    from skerry.images.objects.directory import DirectoryObjects
    from skerry.trajectory.reading.sources import Directory

    try:
        with open(os.path.join(state, "name"), encoding="ascii") as file:
            name = file.read().strip()
    except (OSError, ValueError) as error:
        raise StorageFailed(f"{state} does not say which node it is of: {error}") from error
    store = os.path.join(state, "store")
    shelf = DirectoryObjects(store) if os.path.isdir(store) else None
    blobs = os.path.join(state, "trajectory", "blobs")
    return _archive(shelf, Directory(os.path.join(state, "journal"), name), blobs)


def _archive(shelf: Shelf | None, own: Any = None, blobs: str | None = None) -> Archive:
    from skerry.trajectory.reading.archive import Archive

    return Archive(own, shelf, time.monotonic, own_blobs=blobs)


async def named(traces: Traces, name: str) -> list[TrajectoryInfo]:
    """Returns the trajectories of a sandbox's id, of a rollout's key, or else of a job; NotFound."""
    if SANDBOX_PATTERN.fullmatch(name) is not None:
        found = [info async for info in traces.select(sandbox=name)]
    else:
        found = [info async for info in traces.select(rollout=name)]
        if not found and JOB_PATTERN.fullmatch(name) is not None:
            found = [info async for info in traces.select(job=name)]
    if not found:
        raise NotFound(f"no trajectory of {name[:80]!r} in {traces.where}")
    return found


async def one_named(traces: Traces, name: str) -> TrajectoryInfo:
    """Returns the one trajectory of that name; InvalidRequest if a rollout has several sandboxes."""
    found = await named(traces, name)
    if len(found) > 1:
        ids = ", ".join(info.sandbox for info in found[:8])
        raise InvalidRequest(f"{name[:80]!r} has several sandboxes: give one of {ids}")
    return found[0]
