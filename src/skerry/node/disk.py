"""What a sandbox wrote: listed, given out as an archive, or made into a layer."""

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
from skerry.spec.layers import LayerManifest
from skerry.wire.http import CommitBody, DiffBody

EXCLUDES_MAX = 1000


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

    async def commit(self, sandbox: Sandbox, body: CommitBody) -> LayerManifest:
        """Makes a layer: everything written before this is in it, nothing written after."""
        if len(body.exclude) > EXCLUDES_MAX:
            raise InvalidRequest(f"exclude: at most {EXCLUDES_MAX} prefixes")
        for prefix in body.exclude:
            if not check_path(prefix).startswith("/"):
                raise InvalidRequest(f"exclude: {prefix[:80]!r} is not absolute")
        with sandbox.active_while(self._clock):
            async with await self._snapshot(sandbox) as upper:
                return await self._images.commit(upper, body.name, body.exclude)

    async def _snapshot(self, sandbox: Sandbox) -> AbstractAsyncContextManager[Upper]:
        await self._lives.ensure_running(sandbox)
        instance = sandbox.snapshotable
        if instance is None:
            raise InvalidRequest(f"the backend {sandbox.spec.backend} has no snapshots")
        return instance.snapshot()
