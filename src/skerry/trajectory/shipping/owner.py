"""Whose a node's name is in a store: one state directory's, as of its last start.

    STORE/trajectories/NODE/owner   a token, drawn at each start of a node
    STATE/trajectory/owner          tokens, a line each: one stands there if the name is ours

A state directory that was copied, or brought back from a backup, holds a token that the other has
replaced since. So it is found out before it writes, and what the other wrote stays. Of two copies that
start at the same moment the last one has the name; the other notices with its next segment.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable
from typing import Final

from skerry.errors import StorageFailed
from skerry.trajectory.format.store import Store, owner_key

TOKEN_BYTES_MAX: Final = 256


class Refused(StorageFailed):
    """Another state directory writes, or has written, under this node's name."""


class Owner:
    """This state directory's hold on a name. Any thread may ask."""

    def __init__(
        self,
        store: Callable[[], Store],
        *,
        node: str,
        path: str,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._node, self._path, self._now = store, node, path, now
        self._key = owner_key(node)
        self._lock = threading.Lock()
        self._token = b""  # of this process, once it stood in the store
        self._seen_at = 0.0

    def hold(self, *, within_s: float = 0.0) -> None:
        """The name is this state directory's when this returns, or was so many seconds ago.

        Blocks. Raises Refused, StorageFailed if the store cannot be reached or nothing be written.
        """
        with self._lock:
            if self._token and self._now() - self._seen_at < within_s:
                return
            there = self._store().get(self._key, TOKEN_BYTES_MAX)
            if not self._token:
                self._claim(there)
            elif there is None:  # somebody who knows gave the name free
                self._put(self._token, there)
            elif there != self._token:
                raise self._refused()
            self._seen_at = self._now()

    def _claim(self, there: bytes | None) -> None:
        mine = self._read()
        if there is not None and there not in mine:
            raise self._refused()
        token = secrets.token_hex(16).encode()
        # What stands in the store is known here first: killed between both, this is found to be ours.
        self._write(token if there is None else there + b"\n" + token)
        self._put(token, there)
        self._write(token)
        self._token = token

    def _put(self, token: bytes, there: bytes | None) -> None:
        store = self._store()
        store.put_bytes(self._key, token, replace=there is not None)
        if store.get(self._key, TOKEN_BYTES_MAX) != token:  # another one was faster
            raise self._refused()

    def _read(self) -> list[bytes]:
        try:
            with open(self._path, "rb") as file:
                return file.read(1 << 12).split()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageFailed(f"cannot read {self._path}: {error.strerror}") from error

    def _write(self, tokens: bytes) -> None:
        try:
            with open(self._path + ".new", "wb") as file:
                file.write(tokens + b"\n")
                file.flush()
                os.fdatasync(file.fileno())
            os.rename(self._path + ".new", self._path)
        except OSError as error:
            raise StorageFailed(f"cannot write {self._path}: {error.strerror}") from error

    def _refused(self) -> Refused:
        return Refused(
            f"the name {self._node} is another state directory's in the layer store: was this one "
            "copied, or brought back from a backup? Remove its file `name`, and it takes another "
            f"one; or remove {self._key} from the store if the other is gone for good"
        )
