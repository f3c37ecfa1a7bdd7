"""The answers of finished commands: recorded once, and found again by whoever repeats."""

from __future__ import annotations

import msgspec

from skerry.errors import Bug, SkerryError, StorageFailed
from skerry.guest.api import Stream
from skerry.node import command, ledger
from skerry.node.operation import Op, Past
from skerry.node.parts import Parts
from skerry.node.results import Answer, wrap
from skerry.node.sandbox import Sandbox
from skerry.spec.command import RunResult
from skerry.wire.http import ErrorBody

INLINE_BYTES_MAX = 1 << 20  # of a stream in the journal; a longer one stays in its spool file


class Answers:
    """Records answers in the journal before anyone hears them, and reads them back.

    What is remembered of a sandbox is bounded: the oldest operation ids are forgotten first.
    """

    def __init__(self, parts: Parts) -> None:
        self._ledger = parts.ledger
        self._results = parts.results
        self._outputs = parts.outputs
        self._per_sandbox_max = parts.config.limits.results_per_sandbox_max

    def find(self, sandbox: Sandbox, op_id: str, past: Past) -> Answer:
        """Returns an answer: from memory, or from the journal."""
        kept = self._results.get(sandbox.id, op_id)
        if kept is None:
            kept = self._recall(sandbox.id, op_id, past)
            self._results.put(sandbox.id, op_id, kept)
        return kept

    def record(self, sandbox: Sandbox, op: Op, answer: RunResult | SkerryError) -> None:
        """Records the answer of an operation, which is past from here on; StorageFailed."""
        recorded = wrap(answer)
        spooled: tuple[int, ...] = ()
        if isinstance(recorded, ErrorBody):
            entry = ledger.Answered(op.raw, op.started, error=recorded)
        else:
            inline, spooled = _without_long(recorded)
            entry = ledger.Answered(op.raw, op.started, inline, spooled=spooled)
        position = self._ledger.append(sandbox.id, entry)
        self._results.put(sandbox.id, op.id, recorded)
        lost = entry.error is not None
        text = command.text(op.spec)
        sandbox.ops[op.id] = Past(
            op.fingerprint, position, text, op.started, lost, spooled=bool(spooled)
        )
        if spooled:
            op.sink.finish()
            op.sink.detach()
        else:
            op.sink.close()
        self._forget_oldest(sandbox)

    def _recall(self, sandbox_id: str, op_id: str, past: Past) -> Answer:
        """Returns an answer from the journal, and from its spool files where they are long."""
        entry = self._ledger.read(sandbox_id, past.position)
        if not isinstance(entry, ledger.Answered) or entry.op.hex() != op_id:
            raise Bug(f"record {past.position} is not the answer of {op_id}")
        if entry.error is not None:
            return entry.error
        if entry.result is None:
            raise Bug(f"record {past.position} answers nothing")
        result = entry.result
        if entry.spooled:
            sink = self._outputs.reopen(sandbox_id, op_id, 0)
            try:
                for stream in map(Stream, entry.spooled):
                    if not sink.total(stream):
                        raise StorageFailed(f"the {stream.name.lower()} of {op_id} is lost")
                    result = msgspec.structs.replace(
                        result, **{stream.name.lower(): sink.output(stream)}
                    )
            finally:
                sink.detach()
        return result

    def _forget_oldest(self, sandbox: Sandbox) -> None:
        """Keeps what is remembered of finished operations within its bound."""
        while len(sandbox.ops) - sandbox.running >= self._per_sandbox_max:
            op_id, oldest = next((k, v) for k, v in sandbox.ops.items() if isinstance(v, Past))
            del sandbox.ops[op_id]
            self._results.drop(sandbox.id, op_id)
            if oldest.spooled:
                self._outputs.drop(sandbox.id, op_id)


def _without_long(result: RunResult) -> tuple[RunResult, tuple[int, ...]]:
    """Returns the result as it fits into a record, and the streams that were left out."""
    out, err = len(result.stdout) > INLINE_BYTES_MAX, len(result.stderr) > INLINE_BYTES_MAX
    if not out and not err:
        return result, ()
    short = msgspec.structs.replace(
        result,
        stdout=b"" if out else result.stdout,
        stderr=b"" if err else result.stderr,
    )
    return short, (int(Stream.STDOUT),) * out + (int(Stream.STDERR),) * err
