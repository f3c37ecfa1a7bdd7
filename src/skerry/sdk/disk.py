"""What a sandbox wrote, as a client sees it: listed, fetched, made into a layer."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Literal, overload

from skerry.sdk import commits
from skerry.sdk.commits import AsyncCommitHandle
from skerry.sdk.transport import Transport
from skerry.sdk.typed import listed, typed
from skerry.spec.files import Change
from skerry.spec.layers import LayerManifest
from skerry.wire.http import CommitBody, DiffBody


class SandboxDisk:
    """The part of a sandbox that is about its disk."""

    def __init__(self, transport: Transport, root: str) -> None:
        self._transport = transport
        self._root = root

    async def diff(self) -> tuple[Change, ...]:
        """Returns what changed since it was made, sorted by path."""
        return (await self._transport.call("GET", f"{self._root}/diff", DiffBody)).changes

    async def diff_tar(self, under: str = "/") -> AsyncIterator[bytes]:
        """Yields a tar of the added and modified paths beneath `under`."""
        async for chunk in self._transport.fetch(f"{self._root}/diff/tar", {"under": under}):
            yield chunk

    @overload
    async def commit(
        self,
        name: str,
        *,
        exclude: Sequence[str] = ...,
        scrub: Sequence[str] | None = ...,
        scrub_git: bool = ...,
        wait: Literal[True] = ...,
    ) -> LayerManifest: ...
    @overload
    async def commit(
        self,
        name: str,
        *,
        exclude: Sequence[str] = ...,
        scrub: Sequence[str] | None = ...,
        scrub_git: bool = ...,
        wait: Literal[False],
    ) -> AsyncCommitHandle: ...
    @overload
    async def commit(
        self,
        name: str,
        *,
        exclude: Sequence[str] = ...,
        scrub: Sequence[str] | None = ...,
        scrub_git: bool = ...,
        wait: bool,
    ) -> LayerManifest | AsyncCommitHandle: ...
    async def commit(
        self,
        name: str,
        *,
        exclude: Sequence[str] = (),
        scrub: Sequence[str] | None = None,
        scrub_git: bool = False,
        wait: bool = True,
    ) -> LayerManifest | AsyncCommitHandle:
        """Makes the layer `kind/name[:tag]` of what it wrote: all of before the call, nothing after.

        Returns it once it can be used; without `wait` a handle as soon as it is acknowledged: then
        the layer comes whatever becomes of this sandbox. Residue of a build is left out by rules
        (`skerry.spec.residue`; `scrub` names others than the default ones) and listed in the manifest.
        """
        body = CommitBody(
            name=name,
            exclude=listed("exclude", exclude),
            scrub=None if scrub is None else listed("scrub", scrub),
            scrub_git=scrub_git,
            id=secrets.token_hex(16),
        )
        handle = await commits.begin(self._transport, self._root, typed(body))
        return await handle.wait() if wait else handle
