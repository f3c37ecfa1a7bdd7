"""What a trajectory is: the events of one sandbox in order, as its node recorded them.

An event is one operation with its request and what came of it. Requests and results are plain JSON.
Content (standard input, output, what a file holds) stands in them as an object with `bytes`, its
length, and exactly one of

    text      the content, which is UTF-8
    base64    the content, which is not
    blob      its sha256 in hexadecimal: it is kept once, beside the trajectory
    dropped   true, with `sha256`: it was too long to be kept

`request_digest` does not depend on which of these a node chose: see `canonical`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final

import msgspec

EVENTS_PAGE_MAX: Final = 1000
TRAJECTORIES_PAGE_MAX: Final = 1000

_DIGEST = re.compile(r"[0-9a-f]{64}")
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_encode = msgspec.json.Encoder(order="deterministic").encode


class Outcome(StrEnum):
    """What is on record about how an operation went."""

    DONE = "done"  # it has a result; a command's may be an exit status other than 0
    ERROR = "error"  # it has an error, with whose fault it is
    RUNNING = "running"  # nothing yet, and its sandbox's record has not ended
    UNKNOWN = "unknown"  # it may or may not have run: its instance or its host was lost
    VOID = "void"  # it is known not to have run


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One operation on a sandbox. `result` is None unless it is done, `error` unless it failed.

    `ordinal` counts from 0 in the order in which operations were recorded as begun, and never
    changes. `seq` and `hash` are those of the newest record of it. Times are seconds since 1970.
    """

    ordinal: int
    sandbox: str
    action: str  # "create", "run", "session.run", "file.write", "commit", "pause", ...
    op: str = ""  # operation id, 32 hexadecimal digits, where the caller gave one
    request: dict[str, Any] = {}
    request_digest: str = ""  # sha256 of the canonical JSON of request
    outcome: Outcome
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None  # code, fault, message, retryable, fields
    started: float = 0.0
    ended: float = 0.0  # 0 while there is no outcome
    usage: dict[str, Any] = {}  # cpu_seconds, memory_peak_bytes where they are known
    seq: int = 0
    hash: str = ""
    rollout: str | None = None
    job: str | None = None


class EventPage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Events in order; `next` is the ordinal to go on from, None at the end of what is recorded.

    A page is cut short where its events become too large together, so it may hold fewer than asked.
    """

    events: tuple[Event, ...]
    next: int | None = None


class TrajectoryInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sandbox's trajectory, from outside."""

    sandbox: str
    rollout: str | None = None
    job: str | None = None
    node: str = ""
    created: float = 0.0
    ended: float | None = None  # None: its record has not ended
    events: int = 0
    state: str = ""  # "live", "stopped", "failed", "deleted"; "" if no record says
    complete: bool = False  # its first record and its end are there, and all between
    bytes: int = 0  # of its records; blobs come on top


class TrajectoryPage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page of trajectories, oldest first; `cursor` is given to get the next."""

    items: tuple[TrajectoryInfo, ...]
    cursor: str | None = None


class FindingKind(StrEnum):
    """What can be wrong with a record. The last two are no crime, but something is missing."""

    DAMAGED = "damaged"  # bytes that are no record, with more behind them; or it is no file
    TRUNCATED = "truncated"  # a segment is shorter than another one says, or is missing
    TAMPERED = "tampered"  # a record that does not follow from the one before it
    HEADER = "header"  # a segment without a valid header
    MISSING_BLOB = "missing_blob"
    CHANGED_BLOB = "changed_blob"
    NOT_ANCHORED = "not_anchored"  # a segment that is not what the store's anchor says
    TORN_TAIL = "torn_tail"  # the last record was not written whole: a crash
    GAP = "gap"  # the node dropped records that it could not ship, and said so

    @property
    def innocent(self) -> bool:
        """True for what happens without anybody changing anything."""
        return self in (FindingKind.TORN_TAIL, FindingKind.GAP)


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that is wrong, and where to look."""

    kind: FindingKind
    detail: str
    node: str = ""
    segment: int | None = None
    offset: int | None = None
    sandbox: str | None = None
    blob: str | None = None


class TrajectoryCheck(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a check found; `head` is the hash of the last record, to be kept with somebody else."""

    sandbox: str | None = None  # None: a whole log
    node: str = ""
    segments: int = 0
    records: int = 0
    events: int = 0
    blobs: int = 0
    head: str = ""
    complete: bool = False
    findings: tuple[Finding, ...] = ()

    @property
    def sound(self) -> bool:
        """True if nothing was changed or lost."""
        return not self.findings


def content(data: bytes) -> dict[str, Any]:
    """Returns how bytes stand in a request or a result, in full."""
    try:
        return {"bytes": len(data), "text": data.decode()}
    except UnicodeDecodeError:
        return {"bytes": len(data), "base64": base64.b64encode(data).decode()}


def is_content(value: Any) -> bool:
    """Whether a value of a request or a result stands for content."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("bytes"), int)
        and len(value.keys() & {"text", "base64", "blob", "dropped"}) == 1
        and value.keys() <= {"bytes", "text", "base64", "blob", "dropped", "sha256"}
        and ("blob" not in value or _is_digest(value["blob"]))
        and isinstance(value.get("text", ""), str)
        and _is_base64(value.get("base64", ""))
    )


def blobs_of(value: Any) -> Iterator[str]:
    """Yields the digests of the long contents in a value; not of what a caller named like one."""
    if is_content(value):
        if "blob" in value:
            yield value["blob"]
    elif isinstance(value, dict):
        for inner in value.values():
            yield from blobs_of(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from blobs_of(inner)


def content_bytes(value: dict[str, Any]) -> bytes | None:
    """Returns content that stands in full, None if it is in a blob or was dropped."""
    if "text" in value:
        return str(value["text"]).encode()
    if "base64" in value:
        return base64.b64decode(value["base64"])
    return None


def content_sha256(value: dict[str, Any]) -> str:
    """Returns the digest of content, wherever it is."""
    data = content_bytes(value)
    if data is not None:
        return hashlib.sha256(data).hexdigest()
    return str(value.get("blob") or value.get("sha256") or "")


def as_json(value: Any) -> Any:
    """Returns a value of structs, bytes and texts as plain JSON, bytes as content."""
    if isinstance(value, bytes | bytearray | memoryview):
        return content(bytes(value))
    if isinstance(value, msgspec.msgpack.Ext):  # nobody here writes one
        return content(bytes(value.data))
    if isinstance(value, msgspec.Struct):
        return as_json(msgspec.to_builtins(value, builtin_types=(bytes,)))
    if isinstance(value, dict):
        return {str(name): as_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(inner) for inner in value]
    return value


def canonical(request: dict[str, Any]) -> bytes:
    """Returns a request's one spelling: JSON with sorted keys, content as its length and digest.

    60 and 60.0 are the same number: callers write the one, types say the other.
    """
    return _encode(_by_digest(request))


def request_digest(request: dict[str, Any]) -> str:
    """Returns the sha256 of a request's canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical(request)).hexdigest()


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _is_base64(value: Any) -> bool:
    return isinstance(value, str) and len(value) % 4 == 0 and bool(_BASE64.fullmatch(value))


def _by_digest(value: Any) -> Any:
    if is_content(value):
        return {"bytes": value["bytes"], "sha256": content_sha256(value)}
    if isinstance(value, dict):
        return {name: _by_digest(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_by_digest(inner) for inner in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
