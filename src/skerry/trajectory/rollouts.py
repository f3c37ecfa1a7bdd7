"""A job's record: JSON lines, each chained to the one before, readable after any crash.

    JOBS/
      <job>/
        rollouts.jsonl         one line a record, version 1 (`skerry.spec.rollout.Line`)
        blobs/<sha256>         outputs and submissions that are too large for a line

The first line is of kind `job`, the last of kind `end`; between them `event`, `attempt` and
`rollout`. A line is written with one `write`, so a killed worker leaves whole lines and at most one
torn one at the end. A hash chain convicts only others (decision 40): whoever can write the file can
write another chain, unless the digest of its end was given to another party.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from skerry.errors import Conflict, StorageFailed
from skerry.spec.rollout import Line, RolloutRecord
from skerry.wire.http import printable

FILE = "rollouts.jsonl"
GENESIS = "0" * 64
INLINE_BYTES = 2048  # longer outputs go to a blob, with their beginning kept in the line

_encode = msgspec.json.Encoder(order="deterministic").encode


class JobLog:
    """The writer of one job; only one may exist for a job.

    Invariant: what `append` returned for is on its way to the disk in order, and survives a kill.
    """

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self.folder = folder
        self._clock = clock
        self._seq = 0
        self._prev = GENESIS
        self._end = 0  # of the last line
        try:
            folder.mkdir(parents=True)
            (folder / "blobs").mkdir()
            self._file: BinaryIO = (folder / FILE).open("xb", buffering=0)
        except FileExistsError as error:
            raise Conflict(f"the job {folder.name} exists already") from error
        except OSError as error:
            raise StorageFailed(f"{folder}: {error.strerror}") from error

    def append(self, kind: str, data: dict[str, Any], *, durable: bool = False) -> str:
        """Writes a line and returns its sha256; with `durable` it is on the disk when this returns.

        Texts that are no UTF-8 carry U+FFFD there: what a policy names cannot keep it off the record.
        """
        data = printable(data)
        line = Line(seq=self._seq, prev=self._prev, time=self._clock(), kind=kind, data=data)
        digest = digest_of(line)
        raw = encode_line(msgspec.structs.replace(line, sha256=digest))
        try:
            whole = self._file.write(raw) == len(raw)
            if whole and durable:
                os.fdatasync(self._file.fileno())
        except OSError as error:
            self._cut_back()
            raise StorageFailed(f"{self.folder / FILE}: {error.strerror}") from error
        if not whole:
            self._cut_back()
            raise StorageFailed(f"{self.folder / FILE}: the disk took only part of a line")
        self._seq += 1
        self._prev = digest
        self._end += len(raw)
        return digest

    def _cut_back(self) -> None:
        """Removes what there is of a line that was not recorded: the next one must begin a line."""
        with contextlib.suppress(OSError):
            self._file.seek(self._end)
            self._file.truncate()

    def rollout(self, record: RolloutRecord) -> None:
        """Writes a rollout's end."""
        self.append("rollout", to_plain(record), durable=True)

    def blob(self, content: bytes) -> str:
        """Keeps content beside the file; returns its sha256."""
        digest = hashlib.sha256(content).hexdigest()
        target = self.folder / "blobs" / digest
        if not target.exists():
            partial = target.with_name(f".{digest}.part")
            try:
                partial.write_bytes(content)
                partial.replace(target)
            except OSError as error:
                raise StorageFailed(f"{target}: {error.strerror}") from error
        return digest

    def output(self, content: bytes) -> dict[str, Any]:
        """Returns how an output stands in a line: whole, or its beginning and the blob's digest."""
        if len(content) <= INLINE_BYTES:
            return {"text": content.decode("utf-8", "replace"), "bytes": len(content)}
        head = content[:INLINE_BYTES].decode("utf-8", "replace")
        return {"text": head, "bytes": len(content), "blob": self.blob(content)}

    def close(self) -> None:
        """Ends writing; the lines are on the disk."""
        os.fdatasync(self._file.fileno())
        self._file.close()


def digest_of(line: Line) -> str:
    """Returns the sha256 that belongs into a line."""
    return hashlib.sha256(_encode(msgspec.structs.replace(line, sha256=""))).hexdigest()


def encode_line(line: Line) -> bytes:
    """Returns the one spelling of a line."""
    return _encode(line) + b"\n"


def to_plain(value: Any) -> dict[str, Any]:
    """Returns a struct as plain objects, for a line's data."""
    plain: dict[str, Any] = msgspec.to_builtins(value)
    return plain


def read_lines(folder: Path) -> Iterator[tuple[int, bytes, Line | None]]:
    """Yields line number, raw bytes and the parsed line (None if it cannot be read)."""
    decode = msgspec.json.Decoder(Line).decode
    with (folder / FILE).open("rb") as file:
        for number, raw in enumerate(file, 1):
            try:
                parsed = decode(raw)
            except msgspec.DecodeError:
                parsed = None
            yield number, raw, parsed
