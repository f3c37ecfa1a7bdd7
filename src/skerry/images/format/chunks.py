r"""Chunk lists: what commits to every byte of a data blob, and lets one chunk be checked alone.

A blob is cut into chunks of 256 KiB, the last one shorter. Its name is its content digest,

    sha256("skerry chunks 1\n" + u32 chunk_bytes + u64 size + sha256 of each chunk, in order)

so whoever knows the name can check a list, and with the list any chunk, however it was stored or
carried: the codec is no part of the name. The list as a file (HEX.chunks), little-endian:

    8 bytes   "SKCHUNKS"
    u32       version, 1
    u32       codec: 0 none, 1 zstd
    u32       chunk_bytes: a power of two, 4 KiB to 4 MiB
    u32       0
    u64       size, at most 1 TiB
    32 bytes  of each chunk: the sha256 of its bytes
    u32       of each chunk, for zstd only: how long its frame is

With codec none the stored blob is the content. With zstd it is one frame a chunk, in order and
without gaps; each frame states the length of its content.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
import sys
from array import array
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import IO, Final, NamedTuple

import zstandard

from skerry.errors import InvalidRequest, LayerDamaged, StorageFailed
from skerry.images.scratch import storage_errors

CHUNK_BYTES: Final = 256 << 10
CONTENT_BYTES_MAX: Final = 1 << 40
_MAGIC: Final = b"SKCHUNKS"
_DOMAIN: Final = b"skerry chunks 1\n"
_HEADER: Final = struct.Struct("<8sIIIIQ")
_VERSION: Final = 1
_DIGEST_BYTES: Final = 32
_CHUNK_BYTES_MIN, _CHUNK_BYTES_MAX = 4 << 10, 4 << 20
_LEVEL: Final = 3


class Codec(StrEnum):
    """How the bytes of a data blob are stored."""

    NONE = "none"
    ZSTD = "zstd"


_CODES: Final = {Codec.NONE: 0, Codec.ZSTD: 1}


class Span(NamedTuple):
    """A range of bytes."""

    offset: int
    length: int


@dataclass(frozen=True)
class ChunkList:
    """The digests of a blob's chunks. Invariant: the lengths of all parts fit each other."""

    size: int
    digests: bytes  # 32 of each chunk
    codec: Codec = Codec.NONE
    lengths: array[int] | None = None  # of the frames; only for zstd
    chunk_bytes: int = CHUNK_BYTES

    @property
    def count(self) -> int:
        """How many chunks there are."""
        return len(self.digests) // _DIGEST_BYTES

    @cached_property
    def content_digest(self) -> str:
        """The name of the data blob: "sha256:" and 64 digits."""
        head = _DOMAIN + struct.pack("<IQ", self.chunk_bytes, self.size)
        return f"sha256:{hashlib.sha256(head + self.digests).hexdigest()}"

    @cached_property
    def _ends(self) -> array[int]:
        return array("Q", itertools.accumulate(self.lengths or ()))

    @property
    def stored_bytes(self) -> int:
        """How long the stored blob is."""
        if self.lengths is None:
            return self.size
        return self._ends[-1] if self.lengths else 0

    def span(self, chunk: int) -> Span:
        """Returns where a chunk lies in the content."""
        start = chunk * self.chunk_bytes
        return Span(start, min(self.chunk_bytes, self.size - start))

    def stored_span(self, chunk: int) -> Span:
        """Returns where a chunk lies in the stored blob."""
        if self.lengths is None:
            return self.span(chunk)
        return Span(self._ends[chunk] - self.lengths[chunk], self.lengths[chunk])

    def touched(self, offset: int, length: int) -> range:
        """Returns the chunks that hold any of these bytes of the content."""
        end = min(offset + length, self.size)
        if offset < 0 or offset >= end:
            return range(0)
        return range(offset // self.chunk_bytes, (end - 1) // self.chunk_bytes + 1)

    def digest(self, chunk: int) -> bytes:
        """Returns the sha256 of a chunk."""
        return self.digests[chunk * _DIGEST_BYTES : (chunk + 1) * _DIGEST_BYTES]

    def holds(self, chunk: int, content: bytes | memoryview) -> bool:
        """Says whether these are the chunk's bytes."""
        same_length = len(content) == self.span(chunk).length
        return same_length and hashlib.sha256(content).digest() == self.digest(chunk)

    def open_chunk(self, chunk: int, stored: bytes | memoryview) -> bytes | memoryview:
        """Returns the checked content of a chunk as it is stored.

        Takes no more memory than a chunk, whatever the bytes are. Raises LayerDamaged, with the
        fields `digest` and `chunk`, if they are not the chunk's.
        """
        content: bytes | memoryview | None = stored
        if self.codec is Codec.ZSTD:
            content = _decompress(stored, self.span(chunk).length)
        if content is None or not self.holds(chunk, content):
            text = f"chunk {chunk} of data blob {self.content_digest} is not what its digest says"
            raise LayerDamaged(text, digest=self.content_digest, chunk=chunk)
        return content

    def encode(self) -> bytes:
        """Returns the list as it is stored."""
        head = _HEADER.pack(_MAGIC, _VERSION, _CODES[self.codec], self.chunk_bytes, 0, self.size)
        return head + self.digests + little_endian(self.lengths or array("I")).tobytes()


def list_bytes(size: int, codec: Codec, chunk_bytes: int = CHUNK_BYTES) -> int:
    """Returns how long the list of a blob is, so that a reader can bound what it takes."""
    each = _DIGEST_BYTES + (4 if codec is Codec.ZSTD else 0)
    return _HEADER.size + -(-size // chunk_bytes) * each


def decode_list(data: bytes, digest: str | None = None) -> ChunkList:
    """Returns the list in `data`; if `digest` is given, the blob of that name is what it describes.

    Takes memory in proportion to `data`. Raises LayerDamaged for anything else than one whole list.
    """
    try:
        found = _decode(data)
    except ValueError as error:
        raise LayerDamaged(f"the chunk list of {digest or 'a data blob'}: {error}") from error
    if digest is not None and found.content_digest != digest:
        text = f"the chunk list of {digest} describes {found.content_digest}"
        raise LayerDamaged(text, digest=digest)
    return found


def _decode(data: bytes) -> ChunkList:
    if len(data) < _HEADER.size:
        raise ValueError("it is cut off")
    magic, version, code, chunk_bytes, reserved, size = _HEADER.unpack_from(data)
    codec = next((codec for codec, known in _CODES.items() if known == code), None)
    if magic != _MAGIC:
        raise ValueError("it is no chunk list")
    if version != _VERSION or reserved or codec is None:
        raise ValueError(f"version {version}, codec {code}: a newer Skerry made it")
    if not _CHUNK_BYTES_MIN <= chunk_bytes <= _CHUNK_BYTES_MAX or chunk_bytes & (chunk_bytes - 1):
        raise ValueError(f"chunks of {chunk_bytes} bytes")
    if size > CONTENT_BYTES_MAX:
        raise ValueError(f"it is of {size} bytes, more than {CONTENT_BYTES_MAX}")
    if len(data) != list_bytes(size, codec, chunk_bytes):
        raise ValueError(f"its length {len(data)} does not fit to {size} bytes of content")
    middle = _HEADER.size + -(-size // chunk_bytes) * _DIGEST_BYTES
    lengths = None
    if codec is Codec.ZSTD:
        lengths = little_endian(array("I", data[middle:]))
        if lengths and not 0 < min(lengths) <= max(lengths) <= _frame_bytes_max(chunk_bytes):
            raise ValueError("a frame of impossible length")
    return ChunkList(size, data[_HEADER.size : middle], codec, lengths, chunk_bytes)


class ChunkListBuilder:
    """Takes the bytes of a blob once, in pieces of any size; for zstd it writes the stored form.

    Takes memory for one chunk and 36 bytes a chunk seen.
    """

    def __init__(self, stored: IO[bytes] | None = None, *, level: int = _LEVEL) -> None:
        self._stored = stored
        self._compressor = zstandard.ZstdCompressor(level=level) if stored is not None else None
        self._lengths = array("I")
        self._digests = bytearray()
        self._size = 0
        self._rest = bytearray()

    def add(self, data: bytes | memoryview) -> None:
        """Takes the next bytes; raises StorageFailed if the stored form cannot be written."""
        piece = memoryview(data)
        if self._size + len(self._rest) + len(piece) > CONTENT_BYTES_MAX:
            raise InvalidRequest(f"a data blob has at most {CONTENT_BYTES_MAX} bytes")
        if self._rest:
            missing = CHUNK_BYTES - len(self._rest)
            self._rest += piece[:missing]
            piece = piece[missing:]
            if len(self._rest) < CHUNK_BYTES:
                return
            self._chunk(bytes(self._rest))
            self._rest.clear()
        while len(piece) >= CHUNK_BYTES:
            self._chunk(piece[:CHUNK_BYTES])
            piece = piece[CHUNK_BYTES:]
        self._rest += piece

    def finish(self) -> ChunkList:
        """Returns the list of all that was added; the stored form is written, not yet synced."""
        if self._rest:
            self._chunk(bytes(self._rest))
            self._rest.clear()
        if self._compressor is None:
            return ChunkList(self._size, bytes(self._digests))
        return ChunkList(self._size, bytes(self._digests), Codec.ZSTD, self._lengths)

    def _chunk(self, content: bytes | memoryview) -> None:
        self._digests += hashlib.sha256(content).digest()
        self._size += len(content)
        if self._compressor is not None and self._stored is not None:
            frame = self._compressor.compress(content)
            with storage_errors("writing a compressed data blob"):
                self._stored.write(frame)
            self._lengths.append(len(frame))


def build_list(path: str, stored: str | None = None, *, level: int = _LEVEL) -> ChunkList:
    """Reads a data file once and returns its chunk list.

    With `stored` (a path) the zstd form is written there too, and the list is that of codec zstd.
    Raises StorageFailed if the files cannot be read or written.
    """
    with storage_errors(f"reading {path}"), open(path, "rb", buffering=0) as source:
        if stored is None:
            return _feed(source, ChunkListBuilder())
        with open(stored, "xb", buffering=CHUNK_BYTES) as target:
            return _feed(source, ChunkListBuilder(target, level=level))


def _feed(source: IO[bytes], builder: ChunkListBuilder) -> ChunkList:
    while data := source.read(CHUNK_BYTES):
        builder.add(data)
    return builder.finish()


def pick_chunk(chunks: ChunkList, source: IO[bytes], chunk: int) -> bytes | memoryview:
    """Reads one chunk from an open stored blob and returns its checked content.

    Raises LayerDamaged as `open_chunk` does, StorageFailed if the file cannot be read.
    """
    span = chunks.stored_span(chunk)
    try:
        source.seek(span.offset)
        stored = source.read(span.length)
    except OSError as error:
        text = f"reading chunk {chunk} of {chunks.content_digest}: {error.strerror}"
        raise StorageFailed(text, errno=error.errno) from error
    return chunks.open_chunk(chunk, stored)


def _decompress(stored: bytes | memoryview, length: int) -> bytes | None:
    """Returns the content of one frame, which must have that length, else None."""
    try:
        # Asked first: the decompressor would allocate whatever the frame says.
        if zstandard.frame_content_size(stored) != length:
            return None
        decompressor = zstandard.ZstdDecompressor(max_window_size=_CHUNK_BYTES_MAX * 2)
        return decompressor.decompress(stored, max_output_size=length, allow_extra_data=False)
    except zstandard.ZstdError:
        return None


def _frame_bytes_max(chunk_bytes: int) -> int:
    """Returns the longest frame that zstd makes of a chunk (its documented bound, rounded up)."""
    return chunk_bytes + (chunk_bytes >> 8) + 1024


def little_endian(numbers: array[int]) -> array[int]:
    """Returns the numbers with their bytes swapped on a big-endian machine."""
    if sys.byteorder == "little":
        return numbers
    swapped = array(numbers.typecode, numbers)
    swapped.byteswap()
    return swapped
