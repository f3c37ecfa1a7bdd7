"""Answers of finished commands: the newest in memory, all of them in the journal."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

from skerry.errors import SkerryError
from skerry.spec.command import RunResult
from skerry.wire.http import ErrorBody

Answer: TypeAlias = RunResult | ErrorBody

_OVERHEAD = 600  # bytes that one entry costs beside its output


class Results:
    """A bounded cache by sandbox and operation; what falls out is read from the journal again.

    Invariant: bytes == the sum over entries of output and overhead, and <= maximum.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._entries: OrderedDict[tuple[str, str], Answer] = OrderedDict()

    def put(self, sandbox_id: str, op_id: str, answer: Answer) -> None:
        """Keeps the answer as the newest; the oldest ones make room."""
        self.drop(sandbox_id, op_id)
        self._entries[sandbox_id, op_id] = answer
        self.bytes += _size(answer)
        while self.bytes > self._bytes_max:
            _, oldest = self._entries.popitem(last=False)
            self.bytes -= _size(oldest)

    def get(self, sandbox_id: str, op_id: str) -> Answer | None:
        """Returns the answer if it is in memory still."""
        return self._entries.get((sandbox_id, op_id))

    def drop(self, sandbox_id: str, op_id: str) -> None:
        """Forgets one answer, if it is there."""
        answer = self._entries.pop((sandbox_id, op_id), None)
        if answer is not None:
            self.bytes -= _size(answer)


def unwrap(answer: Answer) -> RunResult:
    """Returns the result, or raises the recorded error."""
    if isinstance(answer, ErrorBody):
        raise answer.to_error()
    return answer


def wrap(answer: RunResult | SkerryError) -> Answer:
    """Returns the answer as it is recorded."""
    return ErrorBody.of(answer) if isinstance(answer, SkerryError) else answer


def _size(answer: Answer) -> int:
    if isinstance(answer, ErrorBody):
        return _OVERHEAD
    return len(answer.stdout) + len(answer.stderr) + _OVERHEAD
