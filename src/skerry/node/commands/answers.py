"""The answers of finished commands: recorded once, and found again by whoever repeats."""

from __future__ import annotations

import logging

import msgspec

from skerry.errors import Bug, SkerryError, StorageFailed
from skerry.guest.api import Stream
from skerry.node import ledger
from skerry.node.commands import command
from skerry.node.commands.inputs import SpooledInput
from skerry.node.commands.operation import Op, Past
from skerry.node.commands.results import Answer, wrap
from skerry.node.life.sandbox import Sandbox
from skerry.node.parts import Parts
from skerry.spec.command import CommandSpec, RunResult
from skerry.trajectory.journal.journal import Position
from skerry.wire.asked import of_command
from skerry.wire.http import ErrorBody

log = logging.getLogger("skerry.node")

OVERHEAD_BYTES = 1024  # of an answer, beside its output
INLINE_BYTES_MAX = 1 << 20  # of a stream in the journal; a longer one stays in its spool file


class Answers:
    """Records answers in the journal before anyone hears them, and reads them back.

    What is remembered of a sandbox is bounded: the oldest operation ids are forgotten first.
    """

    def __init__(self, parts: Parts) -> None:
        self._ledger = parts.ledger
        self._trail = parts.trail
        self._results = parts.results
        self._outputs = parts.outputs
        self._per_sandbox_max = parts.config.limits.results_per_sandbox_max
        self._bytes_max = parts.config.limits.results_per_sandbox_bytes_max

    def find(self, sandbox: Sandbox, op_id: str, past: Past) -> Answer:
        """Returns an answer: from memory, or from the journal."""
        kept = self._results.get(sandbox.id, op_id)
        if kept is None:
            kept = self._recall(sandbox.id, op_id, past)
            self._results.put(sandbox.id, op_id, kept)
        return kept

    async def keep_input(self, op: Op, data: bytes) -> None:
        """Keeps input that is too long for a record."""
        await op.kept_input.keep(self._trail.contents, "stdin", data)

    async def keep_output(self, op: Op, answer: RunResult | SkerryError) -> None:
        """Keeps output that is too long for a record; nothing to do for what is not."""
        if isinstance(answer, RunResult):
            for name, data in (("stdout", answer.stdout), ("stderr", answer.stderr)):
                if len(data) > INLINE_BYTES_MAX:
                    await op.kept_output.keep(self._trail.contents, name, data)

    def ask(self, sandbox: Sandbox, op: Op) -> None:
        """Records that the operation is about to be started, or still runs; StorageFailed."""
        entry = ledger.Asked(
            op.raw,
            op.handle,
            op.agent_op,
            op.fingerprint,
            of_command(op.spec),
            op.started,
            op.input.size if isinstance(op.input, SpooledInput) else 0,
            op.seq,
            op.kept_input.kept,
        )
        op.asked = self._ledger.append(sandbox.id, entry).subject
        if entry.kept:
            self._trail.mention(entry.kept)
            op.kept_input.drop()

    def record(self, sandbox: Sandbox, op: Op, answer: RunResult | SkerryError) -> None:
        """Records the answer of an operation, which is past from here on; StorageFailed."""
        recorded = wrap(answer)
        spooled: tuple[int, ...] = ()
        if isinstance(recorded, ErrorBody):
            entry = ledger.Answered(op.raw, op.started, error=recorded)
        else:
            inline, spooled = _without_long(recorded)
            entry = ledger.Answered(
                op.raw, op.started, inline, spooled=spooled, kept=op.kept_output.kept
            )
        position = self._ledger.append(sandbox.id, entry)
        if entry.kept:
            self._trail.mention(entry.kept)
        self._results.put(sandbox.id, op.id, recorded)
        past = past_of(op.asked, op.fingerprint, op.spec, entry, position)
        del sandbox.ops[op.id]  # to come last again: what was answered first is forgotten first
        sandbox.ops[op.id] = past
        sandbox.answer_bytes += past.size
        if spooled:
            op.sink.finish()
            op.sink.detach()
        else:
            op.sink.close()
        self._forget_oldest(sandbox)

    def _recall(self, sandbox_id: str, op_id: str, past: Past) -> Answer:
        """Returns an answer from the journal, and from its spool files where they are long."""
        entry = self._ledger.read(past.position)
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
        """Keeps what is remembered of finished operations within its bounds."""
        if not self._too_many(sandbox):
            return
        chapters = set()
        while self._too_many(sandbox):
            op_id, oldest = _oldest(sandbox)
            del sandbox.ops[op_id]
            sandbox.answer_bytes -= oldest.size
            self._results.drop(sandbox.id, op_id)
            if oldest.spooled:
                self._outputs.drop(sandbox.id, op_id)
            chapters.add(oldest.position.subject)
        if _oldest(sandbox)[1].position.subject not in chapters:
            self._let_go(sandbox)

    def _too_many(self, sandbox: Sandbox) -> bool:
        past = len(sandbox.ops) - sandbox.running + 1  # the newest is counted as running still
        return past > 1 and (past > self._per_sandbox_max or sandbox.answer_bytes > self._bytes_max)

    def _let_go(self, sandbox: Sandbox) -> None:
        """Lets go of chapters of the journal that hold no command which is remembered."""
        free = set(self._ledger.closed(sandbox.id))
        free -= {acting.chapter for acting in sandbox.acting.values()}
        for past in sandbox.ops.values():
            if isinstance(past, Past):
                free -= {past.asked, past.position.subject}
        try:
            for op in sandbox.under_way():
                if op.asked in free:
                    self.ask(sandbox, op)
            for chapter in free:
                self._ledger.let_go(sandbox.id, chapter)
                sandbox.forget_acts(chapter)
        except StorageFailed as error:
            log.warning("the journal keeps more of %s for now: %s", sandbox.id, error)


def _oldest(sandbox: Sandbox) -> tuple[str, Past]:
    return next((op_id, op) for op_id, op in sandbox.ops.items() if isinstance(op, Past))


def past_of(
    asked: str,
    fingerprint: bytes,
    spec: CommandSpec,
    entry: ledger.Answered,
    position: Position,
) -> Past:
    """Returns what stays in memory of an operation that was answered."""
    size = OVERHEAD_BYTES
    if entry.result is not None:
        limit = spec.output_limit
        size += min(entry.result.stdout_total, limit) + min(entry.result.stderr_total, limit)
    return Past(
        fingerprint,
        position,
        asked,
        size,
        command.text(spec),
        entry.started,
        lost=entry.error is not None,
        spooled=bool(entry.spooled),
    )


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
