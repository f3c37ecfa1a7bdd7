"""Images of other systems, for the event loop: imports, pushes and collapses in bounded threads.

They take minutes and wait for clients and registries, so they have threads of their own: what makes
sandboxes never waits for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from skerry.errors import InvalidRequest, StorageFailed, Unavailable
from skerry.images.oci.images import CollapseWish
from skerry.images.oci.skopeo import AUTH_BYTES_MAX, Access
from skerry.node.crossing import ChunkReader
from skerry.node.images import Images
from skerry.node.library import Log, Reader
from skerry.spec.layers import LayerManifest

T = TypeVar("T")

LAYERS_MAX = 100


class Oci(Protocol):
    """What the node needs of `skerry.images.oci.images.OciImages`; every call may block for long."""

    def import_archive(
        self, name: str, fileobj: Reader, *, tag: str | None = None, platform: str | None = None
    ) -> LayerManifest:
        """Makes a layer of an image that came as an archive."""

    def import_registry(
        self, name: str, reference: str, *, access: Access, platform: str | None, log: Log
    ) -> LayerManifest:
        """Makes a layer of an image of a registry."""

    def push(self, names: Sequence[str], reference: str, *, access: Access, log: Log) -> str:
        """Takes layers to a registry; returns the digest of the image there."""

    def collapse(
        self,
        names: Sequence[str],
        into: str,
        *,
        threshold: int | None,
        wish: CollapseWish,
        log: Log,
    ) -> LayerManifest:
        """Makes one layer of several."""


class Imports:
    """The node's way to other systems' images. `auth_file` serves where a caller gives none."""

    def __init__(
        self, oci: Oci | None, images: Images, *, threads_max: int, auth_file: str | None = None
    ) -> None:
        self._oci = oci
        self._images = images
        self._auth_file = auth_file
        self._threads = ThreadPoolExecutor(threads_max, "oci")

    async def archive(
        self, name: str, chunks: AsyncIterator[bytes], *, tag: str | None, platform: str | None
    ) -> LayerManifest:
        """Makes a layer of an image that is read no faster than it can be kept."""
        reader = ChunkReader(chunks, asyncio.get_running_loop())
        oci = self._working()
        return await self._run(lambda: oci.import_archive(name, reader, tag=tag, platform=platform))

    async def registry(
        self,
        name: str,
        reference: str,
        *,
        auth: str | None,
        tls_verify: bool,
        platform: str | None,
        log: Log,
    ) -> LayerManifest:
        """Makes a layer of an image of a registry; `log` is called in the event loop."""
        oci, tell = self._working(), _in_loop(log)
        return await self._run(
            lambda: oci.import_registry(
                name, reference, access=self._access(auth, tls_verify), platform=platform, log=tell
            )
        )

    async def push(
        self,
        names: Sequence[str],
        reference: str,
        *,
        auth: str | None,
        tls_verify: bool,
        log: Log,
    ) -> str:
        """Takes layers to a registry; returns the digest of the image there."""
        _check_names(names)
        oci, tell = self._working(), _in_loop(log)
        return await self._run(
            lambda: oci.push(names, reference, access=self._access(auth, tls_verify), log=tell)
        )

    async def collapse(
        self,
        names: Sequence[str],
        into: str,
        *,
        threshold: int | None,
        wish: CollapseWish,
        log: Log,
    ) -> LayerManifest:
        """Makes one layer of several."""
        _check_names(names)
        oci, tell = self._working(), _in_loop(log)
        return await self._run(
            lambda: oci.collapse(names, into, threshold=threshold, wish=wish, log=tell)
        )

    def _working(self) -> Oci:
        if self._oci is None:
            raise Unavailable("this node cannot work with images of other systems")
        return self._oci

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._images.forget_plans()

    def _access(self, auth: str | None, tls_verify: bool) -> Access:
        if auth is not None:
            return Access(auth.encode("utf-8", "surrogatepass"), tls_verify)
        if self._auth_file is None:
            return Access(None, tls_verify)
        try:
            with open(self._auth_file, "rb") as file:
                return Access(file.read(AUTH_BYTES_MAX + 1), tls_verify)
        except OSError as error:
            raise StorageFailed(
                f"the node's registry_auth_file cannot be read: {error.strerror}"
            ) from error


def _in_loop(log: Log) -> Log:
    loop = asyncio.get_running_loop()

    def tell(line: str) -> None:
        loop.call_soon_threadsafe(log, line)

    return tell


def _check_names(names: Sequence[str]) -> None:
    if not 1 <= len(names) <= LAYERS_MAX:
        raise InvalidRequest(f"layers: between 1 and {LAYERS_MAX} names")
