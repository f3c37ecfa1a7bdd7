"""The map of a block disk: which chunk of which data blob each chunk of the disk is.

A disk has chunks of 256 KiB. A map is complete: what no run covers is zeros, and no other map has to
be read, however many snapshots were made before. Little-endian:

    8 bytes   "SKDISKMP"
    u32       version, 1
    u32       chunk_bytes, 262,144
    u64       size: at least a chunk, at most 1 TiB, whole chunks
    u32       how many data blobs, at most 256
    u32       how many runs
    32 bytes  sha256 of the map of the snapshot before, zeros if there is none: history, never read
    40 bytes  of each data blob: its content digest (`chunks.py`), u64 its size: whole chunks
    16 bytes  of each run: u32 first chunk of the disk, u32 count, u32 blob, u32 first chunk in there

Runs are in order and do not overlap; each blob has one at least. The sha256 of the map, the disk's
digest, stands for every byte of the disk: map -> content digest -> chunk list -> bytes.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from skerry.errors import InvalidRequest, LayerDamaged
from skerry.images.format.chunks import CHUNK_BYTES, CONTENT_BYTES_MAX, little_endian

DISK_BYTES_MAX: Final = CONTENT_BYTES_MAX
BLOBS_MAX: Final = 256
_MAGIC: Final = b"SKDISKMP"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sIIQII32s")
_BLOB: Final = struct.Struct("<32sQ")
_RUN_NUMBERS: Final = 4
MAP_BYTES_MAX: Final = (
    _HEADER.size + BLOBS_MAX * _BLOB.size + DISK_BYTES_MAX // CHUNK_BYTES * 4 * _RUN_NUMBERS
)


@dataclass(frozen=True)
class BlobRef:
    """A data blob that a map names."""

    digest: str  # "sha256:" and 64 digits
    size: int

    @property
    def count(self) -> int:
        """How many chunks it has."""
        return self.size // CHUNK_BYTES


class Place(NamedTuple):
    """Where a chunk of the disk lies."""

    blob: int
    chunk: int


@dataclass(frozen=True)
class DiskMap:
    """A map whose parts fit each other: whoever makes one goes through `make_map` or `decode_map`."""

    size: int
    blobs: tuple[BlobRef, ...] = ()
    parent: str | None = None
    runs: array[int] = field(default_factory=lambda: array("I"))  # four numbers each

    @property
    def count(self) -> int:
        """How many chunks the disk has."""
        return self.size // CHUNK_BYTES

    @cached_property
    def digest(self) -> str:
        """The sha256 of the encoded map: the disk's digest."""
        return f"sha256:{hashlib.sha256(self.encode()).hexdigest()}"

    @cached_property
    def _firsts(self) -> array[int]:
        return self.runs[::_RUN_NUMBERS]

    def find(self, chunk: int) -> Place | None:
        """Returns where a chunk lies; None: it is zeros."""
        at = bisect_right(self._firsts, chunk) - 1
        if at < 0:
            return None
        first, count, blob, start = self.runs[at * _RUN_NUMBERS : (at + 1) * _RUN_NUMBERS]
        return Place(blob, start + chunk - first) if chunk < first + count else None

    def zero_until(self, chunk: int) -> int:
        """Returns the first chunk from here on that is no zeros; the end of the disk if all are."""
        at = bisect_right(self._firsts, chunk) - 1
        if at >= 0 and chunk < self.runs[at * _RUN_NUMBERS] + self.runs[at * _RUN_NUMBERS + 1]:
            return chunk
        return self._firsts[at + 1] if at + 1 < len(self._firsts) else self.count

    def places(self) -> Iterator[tuple[int, Place]]:
        """Gives every chunk that is no zeros, in order."""
        for at in range(0, len(self.runs), _RUN_NUMBERS):
            first, count, blob, start = self.runs[at : at + _RUN_NUMBERS]
            for number in range(count):
                yield first + number, Place(blob, start + number)

    def live(self) -> list[int]:
        """Returns how many chunks of each data blob the disk has."""
        counts = [0] * len(self.blobs)
        for at in range(0, len(self.runs), _RUN_NUMBERS):
            counts[self.runs[at + 2]] += self.runs[at + 1]
        return counts

    def encode(self) -> bytes:
        """Returns the map as it is stored."""
        parent = bytes.fromhex(self.parent.removeprefix("sha256:")) if self.parent else bytes(32)
        runs = len(self.runs) // _RUN_NUMBERS
        head = _HEADER.pack(_MAGIC, _VERSION, CHUNK_BYTES, self.size, len(self.blobs), runs, parent)
        blobs = b"".join(
            _BLOB.pack(bytes.fromhex(blob.digest.removeprefix("sha256:")), blob.size)
            for blob in self.blobs
        )
        return head + blobs + little_endian(self.runs).tobytes()


def check_size(size: int) -> int:
    """Returns the size if a disk may have it; raises InvalidRequest."""
    if not CHUNK_BYTES <= size <= DISK_BYTES_MAX or size % CHUNK_BYTES:
        raise InvalidRequest(
            f"a disk of {size} bytes: whole chunks of 256 KiB, at least one, at most 1 TiB"
        )
    return size


def make_map(
    size: int,
    blobs: Iterable[BlobRef],
    places: Iterable[tuple[int, Place]],
    parent: str | None,
) -> DiskMap:
    """Returns the map of chunks given in order; blobs that have none are left out.

    Raises InvalidRequest for more blobs than a map names, or a size that no disk has.
    """
    given = tuple(blobs)
    numbers: dict[int, int] = {}
    runs = array("I")
    for chunk, (blob, at) in places:
        number = numbers.setdefault(blob, len(numbers))
        if runs and (runs[-4] + runs[-3], runs[-2], runs[-1] + runs[-3]) == (chunk, number, at):
            runs[-3] += 1
        else:
            runs.extend((chunk, 1, number, at))
    if len(numbers) > BLOBS_MAX:
        raise InvalidRequest(f"a disk of {len(numbers)} data blobs: {BLOBS_MAX} at most")
    return DiskMap(check_size(size), tuple(given[blob] for blob in numbers), parent, runs)


def decode_map(data: bytes, digest: str | None = None) -> DiskMap:
    """Returns the map in `data`; if `digest` is given, the one of that name.

    Takes memory in proportion to `data`. Raises LayerDamaged for anything else than one whole map.
    """
    if digest is not None and f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
        raise LayerDamaged(f"the map of the disk {digest} has another digest", digest=digest)
    try:
        return _decode(data)
    except ValueError as error:
        raise LayerDamaged(f"the map of a disk: {error}", digest=digest) from error


def _decode(data: bytes) -> DiskMap:
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        raise ValueError("it is no map")
    _, version, chunk_bytes, size, blobs, runs, parent = _HEADER.unpack_from(data)
    if version != _VERSION or chunk_bytes != CHUNK_BYTES:
        raise ValueError(f"version {version}, chunks of {chunk_bytes}: a newer Skerry made it")
    if not CHUNK_BYTES <= size <= DISK_BYTES_MAX or size % CHUNK_BYTES or blobs > BLOBS_MAX:
        raise ValueError(f"it is of {size} bytes, with {blobs} data blobs")
    middle = _HEADER.size + blobs * _BLOB.size
    if runs > size // CHUNK_BYTES or len(data) != middle + runs * 4 * _RUN_NUMBERS:
        raise ValueError(f"its length {len(data)} does not fit to {blobs} blobs and {runs} runs")
    found = DiskMap(
        size,
        tuple(
            BlobRef(f"sha256:{raw.hex()}", length)
            for raw, length in _BLOB.iter_unpack(data[_HEADER.size : middle])
        ),
        f"sha256:{parent.hex()}" if any(parent) else None,
        little_endian(array("I", data[middle:])),
    )
    _check(found)
    return found


def _check(found: DiskMap) -> None:
    """Raises ValueError unless all runs lie within the disk and within their blobs, in order."""
    sizes = [blob.count for blob in found.blobs]
    if len({blob.digest for blob in found.blobs}) != len(sizes):
        raise ValueError("it names a data blob twice")
    if any(blob.size % CHUNK_BYTES or not 0 < blob.size <= DISK_BYTES_MAX for blob in found.blobs):
        raise ValueError("a data blob of an impossible size")
    end = 0
    used = bytearray(len(sizes))
    numbers = iter(found.runs)
    for first, count, blob, at in zip(numbers, numbers, numbers, numbers, strict=True):
        if first < end or not count or blob >= len(sizes) or at + count > sizes[blob]:
            raise ValueError(f"the run at chunk {first} is out of place")
        end = first + count
        used[blob] = 1
    if end > found.count or not all(used):
        raise ValueError("a run beyond the end, or a data blob without one")
