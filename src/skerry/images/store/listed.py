"""The records below a prefix of a store, read once and again when they have changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from skerry.errors import LayerDamaged
from skerry.images.objects.api import Objects
from skerry.images.store.records import read_record

RECORD_BYTES_MAX: Final = 4 << 20
_T = TypeVar("_T")


class Records:
    """For many threads; all calls may block."""

    def __init__(self, objects: Objects, *, reads_at_once: int) -> None:
        self._objects = objects
        self._reads_at_once = reads_at_once
        # Of each listing what was read: by key the object's version, and the record.
        self._read: dict[str, dict[str, tuple[str, object]]] = {}

    def get(self, key: str, kind: type[_T]) -> _T | None:
        """Returns the record of a key, None if there is none; LayerDamaged, StorageFailed."""
        return read_record(self._objects, key, kind, RECORD_BYTES_MAX)

    def below(
        self, prefix: str, kind: type[_T], damaged: Callable[[str], None] | None = None
    ) -> Iterator[_T]:
        """Gives the records below a prefix; only those are read that changed since the last time.

        What is damaged raises LayerDamaged, or is told to `damaged` and left out.
        """
        known = self._read.get(prefix, {})
        found = {key: stat.version for key, stat in self._objects.list(prefix)}
        fresh = [key for key, version in found.items() if known.get(key, ("",))[0] != version]
        contents = dict(zip(fresh, self._read_many(fresh, kind, damaged), strict=True))
        now = {key: known[key] for key in found if key not in contents}
        now |= {key: (found[key], one) for key, one in contents.items() if one is not None}
        self._read[prefix] = now  # whole: others may be at it too
        return (record for _, record in now.values() if isinstance(record, kind))

    def _read_many(
        self, wanted: Collection[str], kind: type[_T], damaged: Callable[[str], None] | None
    ) -> Iterable[_T | None]:
        def read(key: str) -> _T | None:
            try:
                return self.get(key, kind)
            except LayerDamaged as error:
                if damaged is None:
                    raise
                damaged(error.message)
                return None

        if len(wanted) < 4 or self._reads_at_once == 1:
            return [read(key) for key in wanted]
        with ThreadPoolExecutor(self._reads_at_once, "catalogue") as threads:
            return list(threads.map(read, wanted))
