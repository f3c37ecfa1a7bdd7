"""A chunk list that a store has lost or holds damaged: made again from its data blob, and put back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

from skerry.errors import LayerDamaged, NotFound
from skerry.images.format.chunks import ChunkList, Codec
from skerry.images.format.relist import list_of
from skerry.images.objects.api import Objects
from skerry.images.store import keys
from skerry.images.store.store import LIST, SUFFIXES, LayerStore

log = logging.getLogger("skerry.images")

_PIECE_BYTES: Final = 4 << 20


def relist(
    store: LayerStore, digest: str, pace: Callable[[int], None] = lambda _read: None
) -> ChunkList:
    """Returns the chunk list of a data blob, which the store has again afterwards.

    Reads the whole blob; `pace` is told of every part. May wait for a collector that is just
    removing it. Raises LayerDamaged if the blob is gone or is not the one of that name either,
    StorageFailed.
    """
    # A list without its blob would tell who stores that blob anew that it is there.
    with store.adding(digest):
        return _relist(store.objects, digest, pace)


def _relist(objects: Objects, digest: str, pace: Callable[[int], None]) -> ChunkList:
    why = "its data blob is gone too"
    for codec in Codec:
        key = keys.blob(digest, SUFFIXES[codec])
        if objects.stat(key) is None:
            continue
        try:
            found = list_of(_pieces(objects, key, pace), codec)
        except (LayerDamaged, NotFound) as error:
            why = error.message
            continue
        if found.content_digest == digest:
            objects.put_bytes(keys.blob(digest, LIST), found.encode(), replace=True)
            log.warning("%s: made the chunk list of %s again", objects.where, digest)
            return found
        why = f"its data blob is {found.content_digest}"
    raise LayerDamaged(f"the chunk list of {digest} cannot be made again: {why}", digest=digest)


def _pieces(objects: Objects, key: str, pace: Callable[[int], None]) -> Iterator[bytes]:
    offset = 0
    while piece := objects.read(key, offset, _PIECE_BYTES):
        yield piece
        offset += len(piece)
        pace(len(piece))
