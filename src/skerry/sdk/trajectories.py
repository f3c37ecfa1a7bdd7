"""Trajectories: what was done to sandboxes, living ones and others, as their nodes recorded it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator
from urllib.parse import quote

from skerry.errors import LayerDamaged, NotFound
from skerry.sdk.inturn import in_thread
from skerry.sdk.transport import Transport
from skerry.spec.trajectory import (
    EVENTS_PAGE_MAX,
    TRAJECTORIES_PAGE_MAX,
    Event,
    EventPage,
    TrajectoryCheck,
    TrajectoryInfo,
    TrajectoryPage,
)


class AsyncTrajectories:
    """Trajectories that a node knows: its own, and those of all nodes of its layer store."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(
        self,
        *,
        rollout: str | None = None,
        job: str | None = None,
        sandbox: str | None = None,
    ) -> list[TrajectoryInfo]:
        """Returns the trajectories with this rollout key, job or sandbox, or all; oldest first."""
        return [info async for info in self.iterate(rollout=rollout, job=job, sandbox=sandbox)]

    async def iterate(
        self,
        *,
        rollout: str | None = None,
        job: str | None = None,
        sandbox: str | None = None,
    ) -> AsyncIterator[TrajectoryInfo]:
        """Yields the same page by page, for those who have very many."""
        given = {"rollout": rollout, "job": job, "sandbox": sandbox}
        params = {name: value for name, value in given.items() if value is not None}
        params["limit"] = str(TRAJECTORIES_PAGE_MAX)
        while True:
            page = await self._transport.call(
                "GET", "/v1/trajectories", TrajectoryPage, repeatable=True, params=params
            )
            for info in page.items:
                yield info
            if page.cursor is None:
                return
            params["cursor"] = page.cursor

    async def page(
        self, sandbox: str, start: int = 0, *, limit: int = EVENTS_PAGE_MAX
    ) -> EventPage:
        """Returns up to 1000 events of a sandbox from an ordinal on; NotFound if none is on record.

        `next` is where to go on; a page may be shorter than asked where its events are large.
        """
        return await self._transport.call(
            "GET",
            f"/v1/trajectories/{quote(sandbox, safe='')}/events",
            EventPage,
            repeatable=True,
            params={"from": str(start), "limit": str(limit)},
        )

    async def events(self, sandbox: str, start: int = 0) -> AsyncIterator[Event]:
        """Yields the events of a sandbox in order, from an ordinal on; NotFound."""
        following: int | None = start
        while following is not None:
            page = await self.page(sandbox, following)
            for event in page.events:
                yield event
            following = page.next

    async def verify(self, sandbox: str) -> TrajectoryCheck:
        """The node reads all records of a sandbox again, and says what is wrong; NotFound."""
        return await self._transport.call(
            "GET",
            f"/v1/trajectories/{quote(sandbox, safe='')}/verify",
            TrajectoryCheck,
            repeatable=True,
        )

    async def export(
        self,
        path: str | os.PathLike[str],
        *,
        format: str | None = None,  # noqa: A002 - what it is called everywhere
        rollout: str | None = None,
        job: str | None = None,
        sandbox: str | None = None,
    ) -> int:
        """Writes the events of the trajectories asked for to a local file; returns how many.

        `format` is "jsonl" or "parquet" (which needs skerry[parquet]); without it the file's name
        says. The file appears whole or not at all. A trajectory that was removed before its turn came
        is left out. Raises StorageFailed, Unavailable without pyarrow.
        """
        from skerry.trajectory.reports.export import export, kind_of

        kind = format or kind_of(os.fspath(path))

        async def events() -> AsyncIterator[Event]:
            async for info in self.iterate(rollout=rollout, job=job, sandbox=sandbox):
                async for event in unless_gone(self.events(info.sandbox)):
                    yield event

        return await in_thread(lambda found: export(found, os.fspath(path), kind), events())

    async def blob(self, digest: str) -> bytes:
        """Returns a long content that an event names by its sha256, checked against it.

        Raises NotFound, LayerDamaged if it is another one.
        """
        pieces = self._transport.fetch(f"/v1/trajectories/blobs/{quote(digest, safe='')}")
        data = b"".join([piece async for piece in pieces])
        if hashlib.sha256(data).hexdigest() != digest:
            raise LayerDamaged(f"the content {digest} came as another one", digest=digest)
        return data


async def unless_gone(events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    """Yields the events of a sandbox that was listed; none if nothing of them is there any more.

    What is told by an index may have been removed since, or the index lies.
    """
    begun = False
    try:
        async for event in events:
            begun = True
            yield event
    except NotFound:
        if begun:
            raise
