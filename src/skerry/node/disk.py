"""What a sandbox wrote: listed, or given out as an archive."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing

from skerry.backends.api import Upper
from skerry.errors import InvalidRequest
from skerry.node.clock import Clock
from skerry.node.files import check_path
from skerry.node.images import Images
from skerry.node.life.lives import Lives
from skerry.node.life.sandbox import Sandbox
from skerry.wire.http import DiffBody


class Disk:
    """Snapshots of sandboxes. The view is released whatever happens to the reader."""

    def __init__(self, lives: Lives, images: Images, clock: Clock) -> None:
        self._lives = lives
        self._images = images
        self._clock = clock

    async def diff(self, sandbox: Sandbox) -> DiffBody:
        """Returns what differs from the layers, by path."""
        with sandbox.active_while(self._clock):
            async with await self._snapshot(sandbox) as upper:
                return DiffBody(await self._images.diff(upper), upper.frozen_seconds)

    async def diff_tar(self, sandbox: Sandbox, under: str) -> AsyncIterator[bytes]:
        """Gives an archive of what was added or modified at and below a path."""
        check_path(under)
        with sandbox.active_while(self._clock):
            async with (
                await self._snapshot(sandbox) as upper,
                aclosing(self._images.diff_tar(upper, under)) as pieces,
            ):
                async for piece in pieces:
                    yield piece

    async def _snapshot(self, sandbox: Sandbox) -> AbstractAsyncContextManager[Upper]:
        await self._lives.ensure_running(sandbox)
        instance = sandbox.snapshotable
        if instance is None:
            raise InvalidRequest(f"the backend {sandbox.spec.backend} has no snapshots")
        return instance.snapshot()
