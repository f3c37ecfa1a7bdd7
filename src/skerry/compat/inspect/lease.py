"""Sandboxes live on only while their evaluation does: one that is killed cannot remove them.

Each has a ttl, which is given anew from here. A model may take hours for its answer, in which nothing
happens in a sandbox: so it is not idleness that ends them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from skerry.aio import Sandbox
from skerry.errors import NotFound, SandboxFailed, SkerryError

RENEWALS = 4  # of a term: some may fail, while the node restarts
logger = logging.getLogger(__name__)


class Lease:
    """What holds sandboxes of one event loop. A sandbox that is not held any more lives out its term."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[Sandbox, asyncio.Task[None]]] = {}

    def hold(self, sandbox: Sandbox, term_s: float) -> None:
        """From here on it never has less than most of its term, until `let_go`, `give_up` or `end`."""
        self._held[sandbox.id] = (sandbox, asyncio.create_task(_renew(sandbox, term_s)))

    def let_go(self, sandbox_id: str) -> None:
        """It is about to be removed, or was."""
        if sandbox_id in self._held:
            self._held.pop(sandbox_id)[1].cancel()

    async def give_up(self) -> None:
        """All of them live on without an end."""
        held = [sandbox for sandbox, _ in self._held.values()]
        await self.end()
        for sandbox in held:
            with contextlib.suppress(SkerryError):
                await sandbox.update(ttl=None)

    async def end(self) -> None:
        """Nothing is renewed afterwards."""
        tasks = [task for _, task in self._held.values()]
        self._held.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _renew(sandbox: Sandbox, term_s: float) -> None:
    while True:
        await asyncio.sleep(term_s / RENEWALS)
        try:
            await sandbox.update(ttl=term_s)
        except (NotFound, SandboxFailed):
            return  # whoever uses it will be told
        except SkerryError as error:
            logger.info("the lease of %s is renewed later: %s", sandbox.id, error.message)
