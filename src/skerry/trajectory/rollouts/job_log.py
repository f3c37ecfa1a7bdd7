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
from array import array
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

    Invariant: what `append` returned for is on its way to the disk in order, and survives a kill;
    `_steps` holds every event with a step of a rollout that has no end, `_ended` the others.
    """

    def __init__(self, folder: Path, clock: Callable[[], float], *, resume: bool = False) -> None:
        """Begins the record of a job, or goes on with the one that is there.

        Raises Conflict if there is one and `resume` is not set, StorageFailed.
        """
        self.folder = folder
        self._clock = clock
        self._seq = 0
        self._prev = GENESIS
        self._end = 0  # of the last line
        self._ends = array("Q")  # of each line
        self._steps: dict[str, set[str]] = {}
        self._ended: set[str] = set()
        self.finished = False  # the line `end` is there
        try:
            (folder / "blobs").mkdir(parents=True, exist_ok=resume)
            if resume and (folder / FILE).exists():
                self._read_again()
            self._file: BinaryIO = (folder / FILE).open("r+b" if self._seq else "wb", buffering=0)
            self._file.truncate(self._end)  # a torn line
            self._file.seek(self._end)
        except FileExistsError as error:
            raise Conflict(f"the job {folder.name} exists already") from error
        except OSError as error:
            raise StorageFailed(f"{folder}: {error.strerror}") from error

    def _read_again(self) -> None:
        for number, raw, line in read_lines(self.folder):
            if line is None:
                if raw.endswith(b"\n"):
                    raise StorageFailed(f"{self.folder / FILE}: line {number} is damaged")
                return
            self._took(line, raw)
            rollout = str(line.data.get("rollout"))
            if line.kind == "rollout":
                self._ends_with(rollout)
            elif "step" in line.data:
                self._steps.setdefault(rollout, set()).add(str(line.data["step"]))

    def _ends_with(self, rollout: str) -> None:
        self._ended.add(rollout)
        self._steps.pop(rollout, None)

    def _took(self, line: Line, raw: bytes) -> None:
        self._seq = line.seq + 1
        self._prev = line.sha256
        self._end += len(raw)
        self._ends.append(self._end)
        self.finished = line.kind == "end"

    @property
    def lines(self) -> int:
        """How many lines there are."""
        return self._seq

    def has_end(self, rollout: str) -> bool:
        """Returns whether the end of a rollout is on record."""
        return rollout in self._ended

    def event(self, rollout: str, step: str, data: dict[str, Any], *, kind: str = "event") -> None:
        """Writes what a step of a rollout was, unless that step is there already."""
        steps = self._steps.setdefault(rollout, set())
        if step not in steps and rollout not in self._ended:
            self.append(kind, {"rollout": rollout, "step": step, **data})
            steps.add(step)

    def read(self, first: int, count: int, bytes_max: int) -> tuple[Line, ...]:
        """Returns lines from a number on: at most so many, at least one if there is one."""
        last = min(first + count, self._seq)
        if first >= last:
            return ()
        start = self._ends[first - 1] if first else 0
        while last > first + 1 and self._ends[last - 1] - start > bytes_max:
            last -= 1
        with (self.folder / FILE).open("rb") as file:
            file.seek(start)
            raw = file.read(self._ends[last - 1] - start)
        return tuple(msgspec.json.decode(one, type=Line) for one in raw.splitlines())

    def append(
        self,
        kind: str,
        data: dict[str, Any],
        *,
        durable: bool = False,
        time: float | None = None,
    ) -> str:
        """Writes a line and returns its sha256; with `durable` it is on the disk when this returns.

        A line that is copied keeps its `time`; others have that of the clock.
        Texts that are no UTF-8 carry U+FFFD there: what a policy names cannot keep it off the record.
        """
        data = printable(data)
        at = self._clock() if time is None else time
        line = Line(seq=self._seq, prev=self._prev, time=at, kind=kind, data=data)
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
        self._took(msgspec.structs.replace(line, sha256=digest), raw)
        return digest

    def _cut_back(self) -> None:
        """Removes what there is of a line that was not recorded: the next one must begin a line."""
        with contextlib.suppress(OSError):
            self._file.seek(self._end)
            self._file.truncate()

    def rollout(self, record: RolloutRecord) -> None:
        """Writes a rollout's end, unless it is there already."""
        if record.rollout not in self._ended:
            self.append("rollout", to_plain(record), durable=True)
            self._ends_with(record.rollout)

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
