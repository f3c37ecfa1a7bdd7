"""The index of a segment: what it holds of whom, so that a reader opens only what it needs.

It lies beside the segment in the store (`store.py`), as msgpack of `SegmentIndex`, and is the segment's
anchor too: `sha256` is that of the shipped bytes, `head` the hash of the last record, which
the header of the next segment names. Who changes a node's own copy has not changed this one
(decision 40).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from skerry.trajectory.format.scan import Read, Scan, own
from skerry.trajectory.format.segment import (
    FORGOTTEN,
    HEADER_BYTES,
    NO_HASH,
    Count,
    Found,
    decode_header,
)

INDEX_VERSION: Final = 1
RECORDS_AT_ONCE: Final = 64
INDEX_BYTES_MAX: Final = 64 << 20
PIECE_BYTES: Final = 256 << 10

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_encode = msgspec.msgpack.Encoder().encode


class Mention(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a segment holds of one subject, records that were carried over among it."""

    first: Count  # seq
    last: Count
    from_ns: Count
    to_ns: Count
    records: Count = 0
    bytes: Count = 0
    began: bool = False  # its first record is here; then `rollout` and `job` are known
    ended: bool = False  # the record after which it has no life
    rollout: str | None = None
    job: str | None = None


class SegmentIndex(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One segment, from outside. `size` counts its bytes up to the end of the last record."""

    version: int
    node: str
    number: Count
    first_seq: Count
    last_seq: Count
    records: Count
    size: Count
    sha256: str  # of those bytes
    head: bytes  # hash of the last record
    previous: bytes  # hash of the last record of the segment before
    from_ns: Count
    to_ns: Count
    subjects: dict[str, Mention]
    blobs: tuple[str, ...] = ()  # digests of the contents that its records name
    gap: str = ""  # why there is no such segment: it was given up before it could be shipped


_decoder = msgspec.msgpack.Decoder(SegmentIndex)


def index_of(node: str, number: int, data: bytes) -> SegmentIndex:
    """Returns the index of a segment's bytes, whatever follows the last record in them."""

    def read(_: int, offset: int, length: int) -> bytes:
        return data[offset : offset + length]

    return index_by(node, number, read, len(data))


def index_by(
    node: str, number: int, read: Read, size: int, *, pause: Callable[[], object] = int
) -> SegmentIndex:
    """Returns the index of a segment of so many bytes, of this node's own, read by the piece.

    A segment as a whole would stay in the heap of each thread that was ever given one. `pause` is
    called now and then: a thread beside a busy one gives way there.
    """
    header = decode_header(read(number, 0, HEADER_BYTES))
    scan = Scan(read, number, thorough=True, bounds=own(size))
    subjects: dict[str, Mention] = {}
    blobs: dict[str, None] = {}
    records = last_seq = from_ns = to_ns = 0
    head = NO_HASH
    for found in scan:
        record, head = found.record, found.hash
        note(subjects, record.subject, found)
        blobs.update(dict.fromkeys(blobs_in(record.data)))
        records += 1
        if records % RECORDS_AT_ONCE == 0:
            pause()
        last_seq = max(last_seq, record.seq)
        from_ns = min(from_ns or record.time_ns, record.time_ns)
        to_ns = max(to_ns, record.time_ns)
    end = max(scan.end, HEADER_BYTES)
    return SegmentIndex(
        version=INDEX_VERSION,
        node=node,
        number=number,
        first_seq=header.first_seq if header is not None else 0,
        last_seq=last_seq,
        records=records,
        size=end,
        sha256=_digest(read, number, end, pause),
        head=head,
        previous=header.previous_hash if header is not None else NO_HASH,
        from_ns=from_ns,
        to_ns=to_ns,
        subjects=subjects,
        blobs=tuple(sorted(blobs)),
    )


def _digest(read: Read, number: int, end: int, pause: Callable[[], object]) -> str:
    digest = hashlib.sha256()
    for offset in range(0, end, PIECE_BYTES):
        digest.update(read(number, offset, min(PIECE_BYTES, end - offset)))
        pause()
    return digest.hexdigest()


def encode_index(index: SegmentIndex) -> bytes:
    """Returns the bytes of an `.idx` object."""
    return _encode(index)


def decode_index(data: bytes) -> SegmentIndex | None:
    """Returns the index; None if these bytes are none of this version."""
    try:
        index = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    return index if index.version == INDEX_VERSION else None


def note(subjects: dict[str, Mention], name: str, found: Found) -> None:
    """Adds a record to what is said of a subject."""
    record = found.record
    mention = subjects.get(name)
    if mention is None:
        seq, time_ns = record.seq, record.time_ns
        mention = Mention(first=seq, last=seq, from_ns=time_ns, to_ns=time_ns)
        subjects[name] = mention
    mention.first = min(mention.first, record.seq)
    mention.last = max(mention.last, record.seq)
    mention.from_ns = min(mention.from_ns, record.time_ns)
    mention.to_ns = max(mention.to_ns, record.time_ns)
    mention.records += 1
    mention.bytes += found.end - found.offset
    if record.kind == FORGOTTEN:
        mention.ended = True
    elif record.kind == "began" and isinstance(record.data, dict):
        spec = record.data.get("spec")
        fields = spec if isinstance(spec, dict) else {}
        rollout, job = fields.get("rollout"), fields.get("job")
        mention.began = True
        mention.rollout = rollout if isinstance(rollout, str) else None
        mention.job = job if isinstance(job, str) else None


def blobs_in(value: object) -> Iterator[str]:
    """Gives the digest of every blob that is named in a value of dicts, lists and scalars."""
    if isinstance(value, dict):
        digest = value.get("blob")
        if isinstance(digest, str) and _DIGEST.fullmatch(digest):
            yield digest
            return
        for one in value.values():
            yield from blobs_in(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from blobs_in(one)
