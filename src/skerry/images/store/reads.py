"""Several reads of a store at a time, in threads that share the caller's patience."""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

from skerry.images.objects.api import Objects
from skerry.images.sparse import CHUNK_BYTES

AT_ONCE: Final = 8
_PIECES_AT_ONCE: Final = 4
_T = TypeVar("_T")


def at_once(works: Sequence[Callable[[], _T]]) -> list[_T]:
    """Returns what each returns; raises what the first of them in order raised, once all have ended."""
    if len(works) < 2:
        return [work() for work in works]
    with ThreadPoolExecutor(min(len(works), AT_ONCE), "reads") as threads:
        return [one.result() for one in [_submit(threads, work) for work in works]]


def pieces(objects: Objects, key: str, size: int | None = None) -> Iterator[bytes]:
    """Gives an object piece by piece; NotFound. Where `size` is known, some are read at a time.

    Of an object that is longer than `size` the rest is not read; of a shorter one less comes.
    Takes memory for four pieces of a MiB.
    """
    if size is None:
        offset = 0
        while piece := objects.read(key, offset, CHUNK_BYTES):
            yield piece
            offset += len(piece)
            if len(piece) < CHUNK_BYTES:  # fewer come only at the end
                return
        return
    offsets = range(0, size, CHUNK_BYTES)
    if len(offsets) < 2:
        yield objects.read(key, 0, size)
        return
    with ThreadPoolExecutor(_PIECES_AT_ONCE, "pieces") as threads:
        coming: deque[Future[bytes]] = deque()
        for offset in offsets:
            if len(coming) == _PIECES_AT_ONCE:
                yield coming.popleft().result()
            coming.append(_submit(threads, _reading(objects, key, offset, size)))
        while coming:
            yield coming.popleft().result()


def _reading(objects: Objects, key: str, offset: int, size: int) -> Callable[[], bytes]:
    return lambda: objects.read(key, offset, min(CHUNK_BYTES, size - offset))


def _submit(threads: ThreadPoolExecutor, work: Callable[[], _T]) -> Future[_T]:
    return threads.submit(contextvars.copy_context().run, work)
