"""The record of one sandbox as somebody needs it who repeats what stands there: by operation id."""

from __future__ import annotations

import asyncio
import contextlib

from skerry.sdk.trajectories import AsyncTrajectories
from skerry.spec.trajectory import Event, EventPage, Outcome


class Story:
    """Reads page after page, one ahead; what is not asked for is let go of.

    Events without an operation id are the node's own. Of two with the same id the newer one counts.
    Memory is that of two pages, unless an operation is looked for that is not there: then all that
    follows is read.
    """

    def __init__(self, trajectories: AsyncTrajectories, sandbox: str) -> None:
        self.sandbox = sandbox
        self.packed: dict[str, str] = {}  # commits that became layers: NAME@DIGEST
        self._trajectories = trajectories
        self._open: dict[str, Event] = {}
        self._next: int | None = 0
        self._ahead: asyncio.Task[EventPage] | None = None
        self._turn = asyncio.Lock()
        self._pages = 0

    async def find(self, *ops: str) -> Event | None:
        """Returns what became of the operation with one of these ids; None if it never began."""
        while True:
            for op in ops:
                event = self._open.pop(op, None)
                if event is not None:
                    return event
            if not await self._load():
                return None

    async def layer_of(self, commit: str) -> str | None:
        """Returns which layer a commit became, by name and digest; None if none is on record."""
        while commit not in self.packed and await self._load():
            pass
        return self.packed.get(commit)

    async def close(self) -> None:
        """Nothing is read any more."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await ahead

    async def _load(self) -> bool:
        """Takes the next page; False at the end of what was recorded when it was read."""
        seen = self._pages
        async with self._turn:
            if self._pages != seen:
                return True  # another one has
            if self._next is None:
                return False
            ahead, self._ahead = self._ahead, None
            page = await (ahead or self._trajectories.page(self.sandbox, self._next))
            self._pages += 1
            self._next = page.next
            if page.next is not None:
                following = self._trajectories.page(self.sandbox, page.next)
                self._ahead = asyncio.create_task(following)
            for event in page.events:
                if event.op:
                    self._open[event.op] = event
                elif event.action == "commit.packed" and event.outcome is Outcome.DONE:
                    self._packed(event)
            return True

    def _packed(self, event: Event) -> None:
        result = event.result or {}
        name, digest = result.get("name"), result.get("digest")
        if name and digest:
            self.packed[str(event.request.get("commit"))] = f"{name}@{digest}"
