"""Ships sealed segments, and the contents that they name, to a store that outlives the node.

    STORE/trajectories/         segments, indices, tails and contents (trajectory/format/store.py)
    STATE/trajectory/shipped    how far this has come (`Progress`, msgpack)

Nothing is put or removed unless the name is this state directory's (trajectory/shipping/owner.py).

A reader begins with an .idx: when it is there, so are the segment and its blobs. Tails are there only
of segments to which somebody at the level `shared` has written; they may overlap, and are removed once
the segment is whole in the store. A segment that had to be given up has an .idx that says so (`gap`).

Whatever is cut off is done again from its beginning, with the same result: every object is written
whole, and a name that is taken is only believed if it holds the same. All calls block. Segments are
shipped one at a time; tails may go out beside that.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from skerry.errors import StorageFailed
from skerry.trajectory.format.index import (
    INDEX_BYTES_MAX,
    INDEX_VERSION,
    SegmentIndex,
    decode_index,
    encode_index,
    index_by,
)
from skerry.trajectory.format.segment import HEADER_BYTES, NO_HASH, decode_header, segment_path
from skerry.trajectory.format.store import (
    BLOBS,
    TRAJECTORIES,
    Store,
    index_key,
    node_prefix,
    segment_key,
    tail_key,
    tail_prefix,
)
from skerry.trajectory.shipping.contents import Contents
from skerry.trajectory.shipping.owner import Owner, Refused

DAY_S: Final = 86_400.0
GIVE_WAY_S: Final = 0.0005
PIECE_BYTES: Final = 1 << 20
HELD_S: Final = 30.0  # pieces of open segments ask only so often whose the name is


class Lost(msgspec.Struct, frozen=True):
    """A segment that was given up and is not named in the store yet."""

    number: int
    first_seq: int
    from_ns: int
    reason: str


class Progress(msgspec.Struct, frozen=True):
    """How far shipping has come: all up to `through` is in the store, or lost."""

    through: int = 0
    lost: tuple[Lost, ...] = ()


class Shipper:
    """Ships for one node."""

    def __init__(
        self,
        store: Callable[[], Store],
        *,
        node: str,
        journal: str,
        contents: Contents,
        progress: str,
        owner: Owner,
    ) -> None:
        """`journal` is the directory of segments, `progress` the file of `Progress`.

        `store` is asked for each time: one that is away at first may be back later.
        """
        self._store, self._journal, self._contents = store, journal, contents
        self._node = node
        self._path = progress
        self._owner = owner
        self._tails = threading.Lock()
        self.through = 0  # up to here segments are in the store, or lost
        self.bytes = 0  # shipped by this process

    def read_progress(self) -> Progress:
        """Returns how far earlier processes came; StorageFailed."""
        try:
            with open(self._path, "rb") as file:
                return msgspec.msgpack.decode(file.read(), type=Progress)
        except FileNotFoundError:
            return Progress()
        except msgspec.MsgspecError:
            return Progress()  # everything that is here is shipped again, which changes nothing
        except OSError as error:
            raise StorageFailed(f"cannot read {self._path}: {error.strerror}") from error

    def write_progress(self, progress: Progress) -> None:
        """Records it, as a whole; StorageFailed."""
        try:
            with open(self._path + ".new", "wb") as file:
                file.write(msgspec.msgpack.encode(progress))
                file.flush()
                os.fdatasync(file.fileno())
            os.rename(self._path + ".new", self._path)
        except OSError as error:
            raise StorageFailed(f"cannot write {self._path}: {error.strerror}") from error

    # -- sealed segments --------------------------------------------------------------------------

    def ship(self, number: int, end: int, blobs: list[str]) -> None:
        """A sealed segment of so many bytes is in the store, with its index, when this returns.

        `blobs` are the contents that may be named in it. Raises StorageFailed, and Refused for good.
        """
        self._owner.hold()
        path = segment_path(self._journal, number)
        index = self._index(path, number, end)
        refreshed = self._ship_blobs(set(blobs) | set(index.blobs))
        try:
            os.truncate(path, end)
        except OSError as error:
            raise StorageFailed(f"cannot shorten {path}: {error.strerror}") from error
        key = segment_key(self._node, number)
        if not self._store().put_file(key, path):
            self._check_same(key, index)
        key = index_key(self._node, number)
        self._store().put_bytes(key, encode_index(index), replace=False)
        # Whoever prunes may have taken an old blob away before he could see the index.
        self._ship_blobs(refreshed)
        with self._tails:
            self.through = number
        for key, _ in list(self._store().list(tail_prefix(self._node, number))):
            self._store().delete(key)
        self.bytes += end

    def _index(self, path: str, number: int, end: int) -> SegmentIndex:
        try:
            with open(path, "rb") as file:

                def read(_: int, offset: int, length: int) -> bytes:
                    return os.pread(file.fileno(), max(0, min(length, end - offset)), offset)

                return index_by(self._node, number, read, end, pause=_give_way)
        except OSError as error:
            raise StorageFailed(f"cannot read {path}: {error.strerror}") from error

    def _check_same(self, key: str, index: SegmentIndex) -> None:
        digest, offset = hashlib.sha256(), 0
        while piece := self._store().read(key, offset, PIECE_BYTES):
            digest.update(piece)
            offset += len(piece)
            _give_way()
        if digest.hexdigest() != index.sha256:
            raise Refused(f"{key} in the store is another segment of a node of this name")

    def _ship_blobs(self, blobs: set[str]) -> set[str]:
        """Puts contents into the store; returns those that were there for long, made young again."""
        refreshed = set()
        now = time.time()
        for digest in sorted(blobs):
            key, path = BLOBS + digest, self._contents.path(digest)
            if not os.path.exists(path):
                continue  # shipped with an earlier segment; or somebody's words, and no content
            if self._store().put_file(key, path):
                continue
            seen = self._store().stat(key)
            if seen is None or now - seen.modified > DAY_S:
                self._store().put_bytes(key, _read(path, 0), replace=True)
                refreshed.add(digest)
        return refreshed

    def tell_lost(self, progress: Progress) -> Progress:
        """Names what was given up in the store; returns the progress without it."""
        self._owner.hold()
        for lost in progress.lost:
            index = SegmentIndex(
                version=INDEX_VERSION,
                node=self._node,
                number=lost.number,
                first_seq=lost.first_seq,
                last_seq=0,
                records=0,
                size=0,
                sha256="",
                head=NO_HASH,
                previous=NO_HASH,
                from_ns=lost.from_ns,
                to_ns=lost.from_ns,
                subjects={},
                gap=lost.reason,
            )
            key = index_key(self._node, lost.number)
            self._store().put_bytes(key, encode_index(index), replace=False)
        return Progress(progress.through)

    def lose(self, progress: Progress, number: int, reason: str) -> Progress:
        """Returns the progress after giving a segment up."""
        header = decode_header(_read(segment_path(self._journal, number), 0, HEADER_BYTES))
        first_seq, from_ns = (header.first_seq, header.time_ns) if header is not None else (0, 0)
        lost = (*progress.lost, Lost(number, first_seq, from_ns, reason))
        return Progress(number, lost)

    # -- open segments ----------------------------------------------------------------------------

    def ship_tail(self, number: int, start: int, end: int, blobs: list[str]) -> None:
        """The bytes of an open segment from `start` to `end`, and these blobs, are in the store."""
        self._owner.hold(within_s=HELD_S)
        self._ship_blobs(set(blobs))
        data = _read(segment_path(self._journal, number), start, end)
        key = tail_key(self._node, number, start)
        with self._tails:
            if number > self.through:
                self._store().put_bytes(key, data, replace=True)

    # -- retention --------------------------------------------------------------------------------

    def prune(self, keep_s: float) -> int:
        """Removes this node's segments older than that, and blobs that no segment of any node names.

        Returns how many segments went. Raises StorageFailed if an index of any node cannot be read:
        what it names is not known, so segments have gone then, and no blob.
        """
        self._owner.hold()
        now, gone, unread = time.time(), 0, ""
        named: set[str] = set()
        for key, _ in list(self._store().list(TRAJECTORIES)):
            if not key.endswith(".idx") or key.startswith(BLOBS):
                continue
            data = self._store().get(key, INDEX_BYTES_MAX)
            index = decode_index(data) if data is not None else None
            if index is None:
                unread = key if data is not None else unread
                continue
            if key.startswith(node_prefix(self._node)) and now - index.to_ns / 1e9 > keep_s:
                self._store().delete(key)  # first: who finds it must find the rest
                self._store().delete(key.removesuffix(".idx") + ".seg")
                gone += 1
            else:
                named.update(index.blobs)
        if unread:
            raise StorageFailed(f"{unread} cannot be read: no content is removed")
        for key, seen in list(self._store().list(BLOBS)):
            # One that is young may be named by a segment, or a tail, that is just being shipped.
            if key.removeprefix(BLOBS) not in named and now - seen.modified > max(
                keep_s, 2 * DAY_S
            ):
                self._store().delete(key)
        return gone


def _give_way() -> None:
    """Lets the event loop have the interpreter."""
    time.sleep(GIVE_WAY_S)


def _read(path: str, start: int, end: int | None = None) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(-1 if end is None else end - start)
    except OSError as error:
        raise StorageFailed(f"cannot read {path}: {error.strerror}") from error
