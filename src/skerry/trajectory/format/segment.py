"""Segment files: the format on disk of the journal and of trajectories, and how a record is read.

    DIRECTORY/
      0000000001.seg   oldest
      0000000002.seg
      0000000003.seg   newest: records are appended here

    segment                                         (all numbers little-endian)
    0       magic "SKRYSEG1"
    8       u16 version 1, u16 header size 64
    12      u32 crc32 of the header with these four bytes zero
    16      u64 number          of the segment, as in its name
    24      u64 first_seq       no record with a smaller seq is new in it
    32      i64 time_ns         when it was made
    40      u64 previous_end    where the last record of the segment before it ends, 0: none
    48      16 bytes            hash of that record: a shortened predecessor is found out
    64      records, then zeros up to the preallocated size

    record
    0       u32 length of the body (never 0: a zero length is the end)
    4       u32 crc32 of the body
    8       body: msgpack [seq, subject, kind, time_ns, prev_hash, data]

`seq` counts all records of a journal. `prev_hash` is the BLAKE2b-16 hash of the body before it of
the same subject, 16 zero bytes at the first: a chain per subject. A record that was carried over
from an old segment is the same bytes again.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import msgspec

from skerry.errors import Bug, StorageFailed

MAGIC: Final = b"SKRYSEG1"
VERSION: Final = 1
HEADER_BYTES: Final = 64
HASH_BYTES: Final = 16
NO_HASH: Final = bytes(HASH_BYTES)
RECORD_HEAD_BYTES: Final = 8
DEPTH_MAX: Final = 256  # of values within values; what is deeper breaks who reads it
UNNUMBERED: Final = ".seg.new"  # how the files of segments to come end, each with a name of its own
FORGOTTEN: Final = "forgotten"  # kind of the record after which a subject has no life

_HEADER = struct.Struct("<8sHHIQQqQ16s")
_HEAD = struct.Struct("<II")
# What may stand before a value inside another one; a text has few of these bytes.
_NESTING: Final = bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0)))

# What an index, a table of places and a column of an export can hold.
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One record; `data` is whatever msgpack can hold, nested at most DEPTH_MAX deep."""

    seq: Count
    subject: str
    kind: str
    time_ns: Count
    prev_hash: bytes
    data: Any


class Fault(StrEnum):
    """What can be wrong with a journal."""

    TORN_TAIL = "torn_tail"  # the last record was not written whole: a crash, no crime
    DAMAGED = "damaged"  # bytes that are no record, with more behind them
    TRUNCATED = "truncated"  # a segment is shorter than its successor says, or one is missing
    TAMPERED = "tampered"  # a record that does not follow from the one before it
    HEADER = "header"  # a segment without a valid header


class Problem(msgspec.Struct, frozen=True):
    """One finding, with the place to look at."""

    fault: Fault
    segment: int
    offset: int
    detail: str


class Header(NamedTuple):
    """A segment's header."""

    number: int
    first_seq: int
    time_ns: int
    previous_end: int
    previous_hash: bytes


class Found(NamedTuple):
    """A record and where it is; `end` is the offset behind it."""

    record: Record
    offset: int
    end: int
    hash: bytes


_decoder = msgspec.msgpack.Decoder(Record)


def segment_path(directory: str, number: int) -> str:
    """Returns the path of a segment."""
    return os.path.join(directory, f"{number:010d}.seg")


def segment_numbers(directory: str) -> list[int]:
    """Returns the numbers of all segments, oldest first."""
    names = [name[:-4] for name in os.listdir(directory) if name.endswith(".seg")]
    return sorted(int(name) for name in names if len(name) == 10 and name.isdigit())


def body_hash(body: bytes) -> bytes:
    """Returns what the next record of the same subject carries as `prev_hash`."""
    return hashlib.blake2b(body, digest_size=HASH_BYTES).digest()


def frame_body(body: bytes) -> bytes:
    """Returns the bytes of a record."""
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def encode_header(header: Header) -> bytes:
    """Returns the 64 bytes."""
    number, first_seq, time_ns, end, digest = header

    def pack(crc: int) -> bytes:
        return _HEADER.pack(
            MAGIC, VERSION, HEADER_BYTES, crc, number, first_seq, time_ns, end, digest
        )

    return pack(zlib.crc32(pack(0)))


def decode_header(data: bytes) -> Header | None:
    """Returns the header; None if these bytes are none."""
    if len(data) < HEADER_BYTES:
        return None
    magic, version, size, _, *rest = _HEADER.unpack_from(data)
    header = Header(*rest)
    if (magic, version, size) != (MAGIC, VERSION, HEADER_BYTES):
        return None
    return header if encode_header(header) == data[:HEADER_BYTES] else None


def refuse_newer(directory: str) -> None:
    """Raises StorageFailed if a segment was written by a version that this one does not know.

    Nothing is changed then: its records would else be taken for damage, and be lost.
    """
    for number in segment_numbers(directory):
        with open(segment_path(directory, number), "rb") as file:
            data = file.read(HEADER_BYTES)
        version = int.from_bytes(data[8:10], "little")
        if data[:8] == MAGIC and version > VERSION and _sealed(data):
            raise StorageFailed(
                f"{segment_path(directory, number)} has version {version} of the format, and this "
                f"is written for {VERSION}: a newer Skerry made it; start that one"
            )


def _sealed(data: bytes) -> bool:
    """Whether a header of any version carries its own checksum: damage is no newer version."""
    crc = int.from_bytes(data[12:16], "little")
    return zlib.crc32(data[:12] + bytes(4) + data[16:HEADER_BYTES]) == crc


def is_deep(body: bytes, data: Any = None) -> bool:
    """Whether a record's body holds values that are nested more than DEPTH_MAX deep.

    `data` is the record's, if it is known.
    """
    if len(body) - len(body.translate(None, _NESTING)) <= DEPTH_MAX:
        return False
    try:
        level = [_decoder.decode(body).data if data is None else data]
    except RecursionError:
        return True
    for _ in range(DEPTH_MAX):
        level = [inner for one in level for inner in _within(one)]
        if not level:
            return False
    return True


def _within(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return (*value, *value.values())
    return value if isinstance(value, list | tuple) else ()


def parse_record(data: bytes | memoryview, offset: int) -> Found | None:
    """Returns the record that begins at `offset`; None if there is no whole, valid one."""
    if offset + RECORD_HEAD_BYTES > len(data):
        return None
    length, crc = _HEAD.unpack_from(data, offset)
    start = offset + RECORD_HEAD_BYTES
    end = start + length
    if length == 0 or end > len(data) or data[start] != 0x96:  # an array of six
        return None
    body = bytes(data[start:end])
    if zlib.crc32(body) != crc:
        return None
    try:
        record = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    if len(record.prev_hash) != HASH_BYTES or is_deep(body, record.data):
        return None
    return Found(record, offset, end, body_hash(body))


def read_segment(directory: str, number: int) -> bytes:
    """Returns a segment's bytes; raises StorageFailed."""
    path = segment_path(directory, number)
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise StorageFailed(f"cannot read {path}: {error.strerror}") from error


def pread_record(fd: int, offset: int) -> Found:
    """Returns the record written at `offset`; raises StorageFailed, or Bug if it is none."""
    try:
        head = os.pread(fd, RECORD_HEAD_BYTES, offset)
        length = int.from_bytes(head[:4], "little")
        data = head + os.pread(fd, length, offset + RECORD_HEAD_BYTES)
    except OSError as error:
        raise StorageFailed(f"cannot read the journal: {error.strerror}") from error
    found = parse_record(data, 0)
    if found is None:
        raise Bug(f"no record at offset {offset} of a segment of the journal")
    return found._replace(offset=offset, end=offset + found.end)
