"""Logs as a node writes them, for tests of what reads them."""

from __future__ import annotations

import hashlib
import itertools

from skerry.images.objects.directory import DirectoryObjects
from skerry.node.ledger import Answered, Asked, Began, Ending, Ledger, Made
from skerry.spec.command import CommandSpec, RunResult
from skerry.spec.sandbox import SandboxSpec, State
from skerry.spec.trajectory import FindingKind
from skerry.trajectory.format.index import encode_index, index_of
from skerry.trajectory.format.segment import read_segment, segment_numbers
from skerry.trajectory.format.store import BLOBS, Shelf, index_key, segment_key
from skerry.trajectory.journal.journal import Journal
from skerry.trajectory.reading.archive import Archive
from skerry.trajectory.reading.checking import check_log
from skerry.trajectory.reading.sources import Directory
from skerry.wire.http import ErrorBody

NODE = "aaaaa"


def sandbox_id(number: int) -> str:
    """Returns an id as a node gives one."""
    digits = "abcdefghijklmnopqrstuvwxyz234567"
    tail = "".join(digits[(number >> (5 * i)) & 31] for i in range(11, -1, -1))
    return f"s{NODE}aaa{tail}"


class Story:
    """A journal that is written to as a node would."""

    def __init__(self, directory: str, segment_bytes: int = 1 << 20) -> None:
        self.directory = directory
        self._clock = itertools.count(1_700_000_000_000_000_000, 1_000_000)
        self.journal = Journal.open(
            directory, now_ns=lambda: next(self._clock), segment_bytes=segment_bytes
        )
        self.ledger = Ledger(self.journal)
        self._ops = itertools.count(1)

    def close(self) -> None:
        self.journal.close()

    def create(self, number: int, **spec) -> str:
        sandbox = sandbox_id(number)
        began = Began(SandboxSpec(**spec), ("sha256:00",), 1_700_000_000.0)
        self.ledger.append(sandbox, began)
        self.ledger.append(sandbox, Made({"version": 1}, 12.5))
        return sandbox

    def ask(self, sandbox: str, *argv: str, op: bytes = b"", **spec) -> bytes:
        op = op or next(self._ops).to_bytes(16, "big")
        command = CommandSpec(argv=argv, **spec)
        self.ledger.append(sandbox, Asked(op, 1, op, b"f" * 16, command, 1_700_000_001.0))
        return op

    def answer(self, sandbox: str, op: bytes, stdout: bytes = b"", **fields) -> None:
        fields = {"exit_code": 0, "started": 1_700_000_001.0, "ended": 1_700_000_001.5, **fields}
        result = RunResult(stdout=stdout, stdout_total=len(stdout), **fields)
        self.ledger.append(sandbox, Answered(op, 1_700_000_001.0, result))

    def fail(self, sandbox: str, op: bytes, code: str, fault: str) -> None:
        error = ErrorBody(code, fault, "it went wrong", retryable=False)
        self.ledger.append(sandbox, Answered(op, 1_700_000_001.0, error=error))

    def run(self, sandbox: str, *argv: str, stdout: bytes = b"", **fields) -> bytes:
        op = self.ask(sandbox, *argv)
        self.answer(sandbox, op, stdout, **fields)
        return op

    def end(self, sandbox: str, state: State = State.STOPPED, **fields) -> None:
        self.ledger.append(sandbox, Ending(state, **fields))

    def ship(self, root: str, *, last: bool = True) -> Shelf:
        """Puts the segments into a store as a node does; without `last` the open one is left out."""
        shelf = DirectoryObjects(root)
        numbers = segment_numbers(self.directory)
        for number in numbers if last else numbers[:-1]:
            data = read_segment(self.directory, number)
            index = index_of(NODE, number, data)
            shelf.put_bytes(segment_key(NODE, number), data[: index.size], replace=True)
            shelf.put_bytes(index_key(NODE, number), encode_index(index), replace=True)
        return shelf

    def blob(self, root: str, data: bytes) -> dict:
        """Keeps a content in a store; returns how it stands in a record."""
        digest = hashlib.sha256(data).hexdigest()
        DirectoryObjects(root).put_bytes(BLOBS + digest, data, replace=True)
        return {"blob": digest, "bytes": len(data)}


def faults_of(directory: str) -> list[tuple[FindingKind, int | None, int | None]]:
    """Returns what a check of a whole journal finds, and where: kind, segment, offset."""
    archive = Archive(Directory(directory, NODE), None, lambda: 0.0)
    (log,) = archive.logs()
    found = check_log(archive, log).findings
    return [(finding.kind, finding.segment, finding.offset) for finding in found]
