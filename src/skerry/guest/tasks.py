"""The tasks of one guest channel, which end with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from skerry.errors import SkerryError
from skerry.guest.forward import Connection, OnConnection

_log = logging.getLogger("skerry.guest")


class Tasks:
    """What runs for one channel, beside it."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Begins a task; what it raises is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._reap)

    def serve(self, on_connection: OnConnection, connection: Connection) -> None:
        """Begins one for a connection from inside, which is reset if it is left open."""

        async def serve() -> None:
            try:
                await on_connection(connection)
            except SkerryError as error:
                _log.debug("a forwarded connection ended: %s", error)
            finally:
                connection.reset()

        self.spawn(serve())

    def cancel(self) -> None:
        """Cancels all of them."""
        for task in self._tasks:
            task.cancel()

    async def end(self) -> None:
        """Cancels all but the one that calls; returns when they have ended."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _reap(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a task of a guest channel failed", exc_info=task.exception())
