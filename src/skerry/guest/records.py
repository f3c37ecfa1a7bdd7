"""What the file helper prints, parsed: records of files, of events, of usage, and its failures.

All of it is hostile input: lengths are bounded before they are used, and what does not fit raises
FileRefused (EIO).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from skerry.errors import DiskFull, FileDenied, FileRefused, NotFound, SkerryError
from skerry.guest.api import Outcome
from skerry.spec.files import FileInfo, FileType, TreeUsage, WatchEvent, WatchKind

NAME_BYTES_MAX: Final = 32_768
_EIO, _ENOENT, _EINTR, _ETIMEDOUT = 5, 2, 4, 110
_NO_USER = (0, 2, 5, 22)  # the agent's words for a name that it cannot find; 5: it said none
_SAID: Final = {  # (step, errno) of a helper whose number alone would say little
    ("user", 22): "unknown user",
    ("group", 22): "unknown group",
    ("archive", 74): "no tar, or a damaged one (what is compressed is unpacked first)",
    ("truncated", 5): "the tar ends without its end mark: it is cut off, compressed, or none",
}
_DENIED: Final = frozenset({1, 13, 30})  # EPERM, EACCES, EROFS
_FULL: Final = frozenset({28, 122})  # ENOSPC, EDQUOT
_HEAD_BYTES_MAX: Final = 192
_RECORD = re.compile(
    rb"([fdlpscbD]) ([0-7]{1,6}) ([0-9]{1,10}) ([0-9]{1,10}) ([0-9]{1,19}) (-?[0-9]{1,20})"
    rb" ([0-9]{1,5}) ([0-9]{1,5})(?: ([0-9]{1,20}))?\n"
)
_EVENT = re.compile(rb"([rcmvdao]) ([df]) ([0-9]{1,5}) ([0-9]{1,5})\n")
_USAGE = re.compile(rb"([0-9]{1,20}) ([0-9]{1,20}) ([0-9]{1,20}) ([0-9]{1,20}) ([0-9]{1,20})\n")
_FAILURE = re.compile(rb"([0-9]{1,4}) ([ -~]{1,64})")
_KINDS: Final = {
    b"r": WatchKind.READY,
    b"c": WatchKind.CREATED,
    b"m": WatchKind.MODIFIED,
    b"v": WatchKind.MOVED,
    b"d": WatchKind.REMOVED,
    b"a": WatchKind.ATTRIBUTES,
    b"o": WatchKind.OVERFLOW,
}

T = TypeVar("T")


class RecordReader(Generic[T]):
    """Records out of a stream that is cut anywhere; holds at most one that is incomplete.

    A record is a line that ends with two lengths (and perhaps more), then that many bytes twice.
    """

    def __init__(
        self,
        head: re.Pattern[bytes],
        lengths: tuple[int, int],
        make: Callable[[re.Match[bytes], bytes, bytes], T],
    ) -> None:
        self._head = head
        self._lengths = lengths
        self._make = make
        self._rest = b""

    def feed(self, data: bytes) -> list[T]:
        """Returns the records that are complete now; raises FileRefused if they are none."""
        data = self._rest + data if self._rest else data
        first, second = self._lengths
        found: list[T] = []
        at = 0
        while at < len(data):
            match = self._head.match(data, at)
            if match is None:
                if len(data) - at < _HEAD_BYTES_MAX and b"\n" not in data[at:]:
                    break
                raise _broken(f"is no record at byte {at}")
            middle = match.end() + _length(match[first])
            end = middle + _length(match[second])
            if end > len(data):
                break
            one, two = data[match.end() : middle], data[middle:end]
            if b"\0" in one or b"\0" in two:
                raise _broken("has a NUL in a name")
            found.append(self._make(match, one, two))
            at = end
        self._rest = data[at:]
        return found

    def finish(self) -> None:
        """Raises FileRefused if the stream ended within a record."""
        if self._rest:
            raise _broken("is cut off")


def _broken(how: str) -> FileRefused:
    return FileRefused(f"the file helper's answer {how}", errno=_EIO)


def _length(digits: bytes) -> int:
    length = int(digits)
    if length > NAME_BYTES_MAX:
        raise _broken(f"has a name of {length} bytes")
    return length


def _info(match: re.Match[bytes], name: bytes, link: bytes) -> FileInfo:
    if not name:
        raise _broken("has a record without a name")
    kind, mode, uid, gid, size, mtime, _, _, allocated = match.groups()
    return FileInfo(
        name=os.fsdecode(name),
        type=FileType.DIRECTORY if kind == b"D" else FileType(kind.decode()),
        mode=int(mode, 8),
        uid=int(uid),
        gid=int(gid),
        size=int(size),
        mtime=int(mtime) / 1e9,
        target=os.fsdecode(link) if kind == b"l" else None,
        allocated=None if allocated is None else int(allocated),
        unreadable=kind == b"D",
    )


def info_reader() -> RecordReader[FileInfo]:
    """Returns a reader of what `stat`, `list`, `walk` and `write` print."""
    return RecordReader(_RECORD, (7, 8), _info)


def event_reader(top: str) -> RecordReader[WatchEvent]:
    """Returns a reader of what `watch` prints; paths in its events begin with `top`."""
    base = top.rstrip("/") + "/" if top != "/" else "/"

    def path(name: bytes) -> str:
        return base + os.fsdecode(name) if name else top

    def make(match: re.Match[bytes], name: bytes, before: bytes) -> WatchEvent:
        kind = _KINDS[match[1]]
        return WatchEvent(
            kind=kind,
            path=path(name),
            directory=match[2] == b"d",
            source=path(before) if kind is WatchKind.MOVED else None,
        )

    return RecordReader(_EVENT, (3, 4), make)


def parse_records(data: bytes) -> list[FileInfo]:
    """Returns all records of a whole answer; raises FileRefused if it is none."""
    reader = info_reader()
    found = reader.feed(data)
    reader.finish()
    return found


def parse_usage(data: bytes) -> TreeUsage:
    """Returns what `usage` printed."""
    match = _USAGE.fullmatch(data)
    if match is None:
        raise _broken("is no usage")
    size, allocated, files, directories, unreadable = (int(number) for number in match.groups())
    return TreeUsage(
        size=size,
        allocated=allocated,
        files=files,
        directories=directories,
        unreadable=unreadable,
    )


def helper_error(outcome: Outcome, stderr: bytes, path: str) -> SkerryError | None:
    """Returns the error that a helper's end means; None if it succeeded."""
    if outcome.exit_code == 0:
        return None
    errno, step = _EIO, "helper"
    match = _FAILURE.match(stderr)
    if outcome.error_step is not None:
        errno, step = outcome.errno or _EIO, outcome.error_step
    elif outcome.timed_out:
        errno, step = _ETIMEDOUT, "timeout"
    elif outcome.signal is not None:
        errno, step = _EINTR, f"killed by signal {outcome.signal}"
    elif match is not None:
        errno, step = int(match[1]), match[2].decode("ascii")
    message = f"{path}: {_SAID.get((step, errno)) or f'{os.strerror(errno)} ({step})'}"
    if outcome.error_step == "user" and errno in _NO_USER:
        message = f"{path}: unknown user"
    if outcome.error_step is None:
        if errno == _ENOENT:
            return NotFound(message, errno=errno, path=path)
        if errno in _DENIED:
            return FileDenied(message, errno=errno, path=path, step=step)
        if errno in _FULL:
            return DiskFull(message, errno=errno, path=path, step=step)
    return FileRefused(message, errno=errno, path=path, step=step)
