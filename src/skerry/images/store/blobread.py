"""Reading a data blob from a store so that no byte passes that its name does not vouch for.

A chunk that comes damaged is fetched again, alone: the network may have done it. One that stays
damaged is the store's: LayerDamaged, a platform fault, never wrong bytes and never a fault of what runs
in a sandbox.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from skerry.errors import ImageBroken, LayerDamaged, NotFound, StorageFailed
from skerry.images.format.chunks import CONTENT_BYTES_MAX, ChunkList, Codec, decode_list, list_bytes
from skerry.images.objects.api import Objects

log = logging.getLogger("skerry.images")

_T = TypeVar("_T")

REFETCHES = 3
REFETCH_AFTER_S = 0.2
LIST_BYTES_MAX = list_bytes(CONTENT_BYTES_MAX, Codec.ZSTD)


def until_right(where: str, fetch: Callable[[], _T]) -> _T:
    """Returns what `fetch` returns; while that is damaged (LayerDamaged) it is fetched again.

    Raises LayerDamaged if it stays so.
    """
    for tries in range(REFETCHES):
        try:
            return fetch()
        except LayerDamaged as error:
            log.warning("%s: %s; fetching it again", where, error.message)
            time.sleep(REFETCH_AFTER_S * tries)
    return fetch()


def fetch_list(objects: Objects, key: str, digest: str) -> ChunkList:
    """Returns the chunk list at `key`, which is that of the data blob `digest`.

    Raises LayerDamaged if the store has another one, StorageFailed if it has none or fails.
    """

    def fetch() -> ChunkList:
        try:
            data = objects.get(key, LIST_BYTES_MAX)
        except ImageBroken as error:
            raise LayerDamaged(error.message, digest=digest) from error
        if data is None:
            raise StorageFailed(f"the chunk list of {digest} is gone from {objects.where}")
        return decode_list(data, digest)

    return until_right(objects.where, fetch)


class BlobReader:
    """One data blob, stored at `key` in the codec of its list; for several threads.

    `damaged` counts chunks that came damaged, `refetched` those of them that a later try got right.
    """

    def __init__(
        self,
        objects: Objects,
        key: str,
        chunks: ChunkList,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.chunks = chunks
        self._objects = objects
        self._key = key
        self._sleep = sleep
        self.damaged = 0
        self.refetched = 0

    def fetch(self, first: int, count: int = 1) -> Sequence[bytes | memoryview]:
        """Returns the content of consecutive chunks, all checked, with one request if none is damaged.

        Raises LayerDamaged if the store's own copy is, StorageFailed if the store fails or the blob
        is gone.
        """
        spans = [self.chunks.stored_span(chunk) for chunk in range(first, first + count)]
        start = spans[0].offset
        data = memoryview(self._read(start, spans[-1].offset + spans[-1].length - start))
        contents = []
        for chunk, span in enumerate(spans, first):
            stored = data[span.offset - start : span.offset - start + span.length]
            try:
                contents.append(self.chunks.open_chunk(chunk, stored))
            except LayerDamaged:
                self.damaged += 1
                contents.append(self._again(chunk))
        return contents

    def read(self, offset: int, length: int) -> bytes:
        """Returns a range of the content; less only at its end. Raises as `fetch` does."""
        chunks = self.chunks.touched(offset, length)
        if not chunks:
            return b""
        content = b"".join(self.fetch(chunks.start, len(chunks)))
        begin = offset - self.chunks.span(chunks.start).offset
        return content[begin : begin + length]

    def _again(self, chunk: int) -> bytes | memoryview:
        """Fetches a chunk alone until it is right."""
        span = self.chunks.stored_span(chunk)
        name = f"chunk {chunk} of {self.chunks.content_digest}"
        log.warning("%s: %s came damaged; fetching it again", self._objects.where, name)
        for tries in range(REFETCHES):
            self._sleep(REFETCH_AFTER_S * tries)
            try:
                content = self.chunks.open_chunk(chunk, self._read(span.offset, span.length))
            except LayerDamaged:
                continue
            self.refetched += 1
            return content
        raise LayerDamaged(
            f"{name} is damaged in {self._objects.where}, however often it is fetched: "
            "make the layer again there, or restore the store",
            digest=self.chunks.content_digest,
            chunk=chunk,
        )

    def _read(self, offset: int, length: int) -> bytes:
        try:
            return self._objects.read(self._key, offset, length)
        except NotFound as error:
            digest = self.chunks.content_digest
            raise StorageFailed(
                f"the data blob {digest} is gone from {self._objects.where}", digest=digest
            ) from error
