"""Chains of commits that have become long are made short, in the background, one after another.

Commits of this node are looked at once they are packed, those of others when they are restored here, and
after a restart all that are remembered: whatever was cut off is done again, by whoever comes first.
Nobody waits for it, but a restore that could not be mounted otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from skerry.errors import NotFound, PlatformError, SkerryError, Unavailable
from skerry.images.store.restoring import commits_on_top
from skerry.node.clock import sleep
from skerry.node.parts import Parts
from skerry.spec.layers import LayerManifest

log = logging.getLogger("skerry.node")

AGAIN_S = (1.0, 10.0, 60.0)  # after a fault of the platform; then the next restore or start tries
WAITING_MAX = 1000
NEEDED_WITHIN_S = 300.0


class Chains:
    """What is to be made short. Invariant: while something waits, the one task is there."""

    def __init__(self, parts: Parts) -> None:
        self._images, self._tasks, self._clock = parts.images, parts.tasks, parts.clock
        self._owners = parts.owners
        self._most = parts.config.chain_commits_max
        self._waiting: dict[str, LayerManifest] = {}  # by name: the newest is what counts
        self._work: asyncio.Task[None] | None = None
        self._ended: dict[str, list[asyncio.Future[None]]] = {}
        self.shortened = 0
        self.failed = 0
        parts.images.restores = self

    def __len__(self) -> int:
        return len(self._waiting)

    def consider(self, commit: LayerManifest, mounted: Sequence[LayerManifest] = ()) -> None:
        """Takes a commit up if it lies on many, as far as is known; returns at once.

        `mounted` is what it was just restored as: it may be short already.
        """
        many = commits_on_top(mounted or commit.chain()) > self._most
        if not many or len(self._waiting) >= WAITING_MAX:
            return
        self._waiting[commit.name] = commit
        if self._work is None:
            self._work = self._tasks.spawn(self._all())

    async def needed(self, commit: LayerManifest) -> None:
        """Returns once it is short, as far as that can be; Unavailable if that takes too long."""
        self.consider(commit)
        if self._waiting.get(commit.name) is not commit:
            return
        ended = asyncio.get_running_loop().create_future()
        self._ended.setdefault(commit.name, []).append(ended)
        try:
            async with asyncio.timeout(NEEDED_WITHIN_S):
                await ended
        except TimeoutError:
            raise Unavailable(
                f"{commit.name} lies on too many commits, which are still being merged",
                retry_after_s=5.0,
            ) from None

    async def _all(self) -> None:
        try:
            while self._waiting:
                name, commit = next(iter(self._waiting.items()))
                try:
                    await self._one(commit)
                finally:
                    if self._waiting.get(name) is commit:
                        del self._waiting[name]
                        for ended in self._ended.pop(name, ()):
                            if not ended.done():
                                ended.set_result(None)
        finally:
            self._work = None
        self._owners.idle()  # a daemon that ends by itself may have waited for this

    async def _one(self, commit: LayerManifest) -> None:
        for pause in (*AGAIN_S, None):
            try:
                self.shortened += await self._images.shorten(commit, self._most) > 0
            except PlatformError as error:
                if pause is None:
                    log.warning("the chain of %s stays as it is: %s", commit.name, error)
                    break
                log.info("the chain of %s is tried again: %s", commit.name, error)
                await sleep(self._clock, pause)
            except NotFound:
                return  # its name is gone: nobody restores it
            except SkerryError as error:
                log.warning("the chain of %s stays as it is: %s", commit.name, error)
                break
            else:
                return
        self.failed += 1
