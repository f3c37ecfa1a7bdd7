"""The blobs that are mounted: found by name, or by node number after a restart.

A blob's node number is the first 64 bits of its name, so that a process which takes over the session
knows which file is meant without having kept anything.
"""

from __future__ import annotations

import os
import stat
import threading
from typing import Final

from skerry.errors import LayerDamaged, StorageFailed
from skerry.images.format.chunks import ChunkList, decode_list
from skerry.images.lazy.protocol import ROOT

LIST_BYTES_MAX: Final = 256 << 20
_NODE_DIGITS: Final = 16
_NAME_DIGITS: Final = 64
_LIST: Final = ".chunks"


class Catalog:
    """Chunk lists by name. Invariant: at most one name has a node number."""

    def __init__(self, directory: int) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._lists: dict[int, tuple[str, ChunkList]] = {}

    def __len__(self) -> int:
        return len(self._lists)

    def find(self, name: str) -> tuple[int, ChunkList] | None:
        """Returns number and chunk list of a blob that is to be mounted; None if it is not here.

        Raises LayerDamaged if the list is not the one of that name, StorageFailed if it cannot be read,
        or if another blob has the same number.
        """
        if len(name) != _NAME_DIGITS or not set(name) <= set("0123456789abcdef"):
            return None
        node = int(name[:_NODE_DIGITS], 16)
        with self._lock:
            known = self._lists.get(node)
        if known is not None and known[0] == name:
            return node, known[1]
        if known is not None or node <= ROOT:
            raise StorageFailed(f"blobs {name} and {known and known[0]} cannot be mounted together")
        chunks = self._read(name)
        if chunks is None:
            return None
        with self._lock:
            self._lists.setdefault(node, (name, chunks))
        return node, chunks

    def by_node(self, node: int) -> tuple[str, ChunkList] | None:
        """Returns name and chunk list of what the kernel looked up, maybe from an earlier process."""
        with self._lock:
            known = self._lists.get(node)
        if known is not None:
            return known
        start = f"{node:016x}"
        names = [
            name.removesuffix(_LIST)
            for name in os.listdir(self._directory)
            if name.startswith(start) and name.endswith(_LIST)
        ]
        if len(names) != 1 or self.find(names[0]) is None:
            return None
        with self._lock:
            return self._lists.get(node)

    def forget(self, node: int) -> None:
        """Drops a list that the kernel does not need; it is read again should it be asked for."""
        with self._lock:
            self._lists.pop(node, None)

    def _read(self, name: str) -> ChunkList | None:
        path = name + _LIST
        try:
            handle = os.open(
                path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self._directory
            )
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageFailed(f"reading {path}: {error.strerror}", errno=error.errno) from error
        try:
            facts = os.fstat(handle)
            if not stat.S_ISREG(facts.st_mode) or facts.st_size > LIST_BYTES_MAX:
                raise LayerDamaged(f"{path} is no chunk list", digest=f"sha256:{name}")
            with open(handle, "rb", closefd=False) as file:
                return decode_list(file.read(), f"sha256:{name}")
        except OSError as error:
            raise StorageFailed(f"reading {path}: {error.strerror}", errno=error.errno) from error
        finally:
            os.close(handle)
