"""Where the segments of a node's log are: in its own directory, in a store, or in both.

A segment is read by the piece and never mapped: a file that somebody shortens under a mapping kills
whoever looks. `Blocks` remembers a bounded number of pieces.
"""

from __future__ import annotations

import logging
import math
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final, Protocol, TypeVar

from skerry.errors import NotFound, ObjectDamaged, SkerryError, StorageFailed
from skerry.trajectory.format.index import INDEX_BYTES_MAX, SegmentIndex, decode_index
from skerry.trajectory.format.scan import Scan
from skerry.trajectory.format.segment import HEADER_BYTES, segment_numbers, segment_path
from skerry.trajectory.format.store import (
    TRAJECTORIES,
    Shelf,
    Stored,
    index_key,
    node_prefix,
    segment_key,
    tail_key,
)

T = TypeVar("T")

TAIL_BYTES_MAX: Final = 256 << 20  # of a segment that only pieces were shipped of
BLOCKS_KEPT: Final = 4  # one reader goes on in one, and a node's own are in the page cache anyway
LIST_EVERY_S: Final = 5.0

log = logging.getLogger("skerry.trajectory")


class Late:
    """A shelf that is found anew for each question: one that is away at first may be back later."""

    def __init__(self, find: Callable[[], Shelf]) -> None:
        self._find = find

    def get(self, key: str, max_bytes: int) -> bytes | None:
        """Returns a small object, or None."""
        return self._find().get(key, max_bytes)

    def read(self, key: str, offset: int, length: int) -> bytes:
        """Returns a part of an object."""
        return self._find().read(key, offset, length)

    def list(self, prefix: str) -> Iterator[tuple[str, Stored]]:
        """Gives the objects below a prefix."""
        return self._find().list(prefix)

    def local_path(self, key: str) -> str | None:
        """Returns the path of the object's file, if it has one."""
        return self._find().local_path(key)


class Source(Protocol):
    """The segments of one node. All calls block, and raise StorageFailed if they cannot be read."""

    node: str
    block_bytes: int  # what is best read at once
    away: bool  # what somebody else was told of it cannot be asked for now

    def numbers(self) -> list[int]:
        """Returns the numbers of all segments, oldest first."""

    def read(self, number: int, offset: int, length: int) -> bytes:
        """Returns a part of a segment; less only at its end; NotFound if it is not there (any more)."""

    def anchor(self, number: int) -> SegmentIndex | None:
        """Returns what was said of a sealed segment when it was shipped; None if nothing was."""


def nodes_in(shelf: Shelf) -> list[str]:
    """Returns the nodes that shipped something to a store."""
    found = set()
    for key, _ in shelf.list(TRAJECTORIES):
        node, slash, _ = key.removeprefix(TRAJECTORIES).partition("/")
        if slash and node != "blobs":
            found.add(node)
    return sorted(found)


class Directory:
    """A node's own log: the directory of its journal."""

    block_bytes = 1 << 20
    away = False

    def __init__(self, path: str, node: str) -> None:
        self.node = node
        self._path = path

    def numbers(self) -> list[int]:
        """Returns the numbers of the segments that are there."""
        try:
            return segment_numbers(self._path)
        except OSError as error:
            raise StorageFailed(f"cannot read {self._path}: {error.strerror}") from error

    def read(self, number: int, offset: int, length: int) -> bytes:
        """Reads a part of a file."""
        path = segment_path(self._path, number)
        try:
            with open(path, "rb", buffering=0, opener=_waiting_for_nobody) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise ObjectDamaged(f"{path} is damaged: it is no file", key=path)
                return os.pread(file.fileno(), length, offset)
        except FileNotFoundError as error:
            raise NotFound(f"{path} is not there") from error
        except IsADirectoryError as error:
            raise ObjectDamaged(f"{path} is damaged: it is no file", key=path) from error
        except OSError as error:
            raise StorageFailed(f"cannot read {path}: {error.strerror}") from error

    def anchor(self, number: int) -> SegmentIndex | None:  # noqa: ARG002 - of the protocol
        """Nothing: a log is no witness of its own."""
        return None


def _waiting_for_nobody(path: str, flags: int) -> int:
    """Opens a file; a FIFO in its place is opened too, and at once."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


class Shipped:
    """What a node shipped to a store, which is asked for new segments at most every few seconds."""

    block_bytes = 4 << 20
    away = False

    def __init__(self, shelf: Shelf, node: str, now: Callable[[], float]) -> None:
        self.node = node
        self._shelf = shelf
        self._now = now
        self._numbers: list[int] = []
        self._list_at = -math.inf
        self._tails: dict[int, list[int]] = {}  # of what is not sealed yet: offsets of its pieces
        self._joined: tuple[int, bytes] | None = None

    def numbers(self) -> list[int]:
        """Returns the numbers of the segments, and of those of which only a tail is there yet."""
        if self._now() >= self._list_at:
            self._numbers = self._list()
            self._list_at = self._now() + LIST_EVERY_S
        return self._numbers

    def look_again(self) -> None:
        """What was listed is too old: the store is asked the next time."""
        self._list_at = -math.inf

    def _list(self) -> list[int]:
        sealed: set[int] = set()
        tails: dict[int, list[int]] = {}
        root = node_prefix(self.node)
        for key, _ in self._shelf.list(root):
            name, _, offset = key.removeprefix(root).partition("/")
            number, _, kind = name.partition(".")
            if not number.isdecimal() or len(number) != 10:
                continue
            if kind in ("seg", "idx") and not offset:  # an index alone tells of a gap
                sealed.add(int(number))
            elif kind == "tail" and offset.isdecimal() and int(offset) < TAIL_BYTES_MAX:
                tails.setdefault(int(number), []).append(int(offset))
        self._joined = None
        self._tails = {number: sorted(at) for number, at in tails.items() if number not in sealed}
        return sorted(sealed | tails.keys())

    def read(self, number: int, offset: int, length: int) -> bytes:
        """Reads a part of a segment, or of what its tail holds."""
        if number not in self._tails:
            return self._shelf.read(segment_key(self.node, number), offset, length)
        if self._joined is None or self._joined[0] != number:
            self._joined = (number, self._join(number))
        return self._joined[1][offset : offset + length]

    def anchor(self, number: int) -> SegmentIndex | None:
        """Returns the index that was shipped beside a segment."""
        data = self._shelf.get(index_key(self.node, number), INDEX_BYTES_MAX)
        return decode_index(data) if data is not None else None

    def _join(self, number: int) -> bytes:
        """Returns a segment of which only pieces were shipped; what is missing between is zeros."""
        data = bytearray()
        for offset in self._tails[number]:
            key = tail_key(self.node, number, offset)
            piece = self._shelf.get(key, TAIL_BYTES_MAX)
            if piece is None:
                raise NotFound(f"{key} is gone: its segment was sealed meanwhile")
            piece = piece[: TAIL_BYTES_MAX - offset]  # what lies beyond is of no segment
            data.extend(bytes(max(0, offset - len(data))))
            data[offset : offset + len(piece)] = piece
        return bytes(data)


class Both:
    """A node's own log, and what it shipped of what is gone; alone while the store is away."""

    block_bytes = 1 << 20

    def __init__(self, own: Directory, shipped: Shipped, now: Callable[[], float]) -> None:
        self.node = own.node
        self.away = False
        self._own = own
        self._shipped = shipped
        self._now = now
        self._ask_at = -math.inf  # a store that cannot be reached is left alone until then
        self._open = 0  # the segment that is written to
        self._missed = 0  # the segment that was looked for again last

    def numbers(self) -> list[int]:
        """Returns the numbers of all."""
        numbers = self._own.numbers()
        self._open = numbers[-1] if numbers else 0
        shipped = self._asked(self._shipped.numbers) or []
        before = numbers[0] - 1 if numbers else 0
        if before > self._missed and before not in shipped:  # shipped since the store was listed
            self._missed = before
            self._shipped.look_again()
            shipped = self._asked(self._shipped.numbers) or []
        return sorted({*numbers, *shipped})

    def read(self, number: int, offset: int, length: int) -> bytes:
        """Reads a part of a segment, of the own one if it is there."""
        try:
            return self._own.read(number, offset, length)
        except NotFound:
            return self._shipped.read(number, offset, length)

    def anchor(self, number: int) -> SegmentIndex | None:
        """Returns what the store says of a segment; None of the one that is written to."""
        if number == self._open:
            return None
        return self._asked(lambda: self._shipped.anchor(number))

    def _asked(self, ask: Callable[[], T]) -> T | None:
        """Returns what the store says, None if it is away."""
        if self._now() < self._ask_at:
            return None
        try:
            found = ask()
        except ObjectDamaged:  # it is not away
            raise
        except SkerryError as error:
            log.warning("trajectories: the store is away: %s", error.message)
            self.away, self._ask_at = True, self._now() + LIST_EVERY_S
            return None
        self.away = False
        return found


def scan(source: Source, number: int, start: int = HEADER_BYTES, *, thorough: bool = False) -> Scan:
    """Returns a scan of a segment's records from an offset on, in pieces that suit the source."""
    return Scan(source.read, number, start, window=source.block_bytes // 4, thorough=thorough)


class Blocks:
    """Pieces of segments, the last ones kept. A piece may be older than what was appended to it."""

    def __init__(self, segments: Source) -> None:
        self.segments = segments
        self._size = segments.block_bytes
        self._kept: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    def read(self, number: int, offset: int, length: int) -> bytes:
        """Returns a part of a segment; less only at its end."""
        first, last = offset // self._size, (offset + length - 1) // self._size
        data = b"".join(self._block(number, block) for block in range(first, last + 1))
        start = offset - first * self._size
        return data[start : start + length]

    def forget(self, number: int) -> None:
        """Reads a segment anew from now on."""
        for key in [key for key in self._kept if key[0] == number]:
            del self._kept[key]

    def clear(self) -> None:
        """Keeps nothing."""
        self._kept.clear()

    def _block(self, number: int, block: int) -> bytes:
        key = (number, block)
        data = self._kept.get(key)
        if data is None:
            data = self.segments.read(number, block * self._size, self._size)
            self._kept[key] = data
            while len(self._kept) > BLOCKS_KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(key)
        return data
