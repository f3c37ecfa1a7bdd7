"""Reading the records of jobs: listing, showing one rollout, checking the chain."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from skerry.errors import NotFound
from skerry.spec.rollout import Line, RolloutRecord
from skerry.trajectory.rollouts.job_log import FILE, GENESIS, digest_of, encode_line, read_lines


class Trace(msgspec.Struct, frozen=True):
    """One rollout: its end (None if it has none) and its lines in order."""

    record: RolloutRecord | None
    lines: tuple[Line, ...]


class Problem(msgspec.Struct, frozen=True):
    """A line that is not as it was written, or is missing. `kind`: tampered, torn, truncated, blob."""

    line: int
    kind: str
    text: str


class Check(msgspec.Struct, frozen=True):
    """What checking a job's file found; `head` is the last line's digest, to be compared elsewhere."""

    job: str
    lines: int
    rollouts: int
    complete: bool  # the job wrote its end
    head: str
    problems: tuple[Problem, ...]

    @property
    def sound(self) -> bool:
        """True if nothing is wrong with what is there."""
        return not self.problems


def list_jobs(jobs_dir: Path) -> tuple[str, ...]:
    """Returns the jobs below a directory, sorted by name (and so by time)."""
    if not jobs_dir.is_dir():
        return ()
    return tuple(sorted(path.name for path in jobs_dir.iterdir() if (path / FILE).is_file()))


def list_rollouts(jobs_dir: Path, job: str | None = None) -> tuple[RolloutRecord, ...]:
    """Returns the end of each rollout that has one, of one job or of all; raises NotFound."""
    names = list_jobs(jobs_dir) if job is None else (_known(jobs_dir, job),)
    return tuple(record for name in names for record in _records(jobs_dir / name))


def show_rollout(jobs_dir: Path, rollout: str) -> Trace:
    """Returns everything recorded of a rollout; raises NotFound."""
    names = list_jobs(jobs_dir)
    # A rollout's id begins with its job's, so most often one file is read.
    for name in sorted(names, key=lambda one: not rollout.startswith(one)):
        lines = tuple(
            line
            for _, _, line in read_lines(jobs_dir / name)
            if line is not None and line.data.get("rollout") == rollout
        )
        if lines:
            ends = [_record(line) for line in lines if line.kind == "rollout"]
            return Trace(ends[-1] if ends else None, lines)
    raise NotFound(f"no rollout {rollout!r} in {jobs_dir}")


def verify_job(jobs_dir: Path, job: str) -> Check:
    """Checks a job's chain line by line, and its blobs; raises NotFound for an unknown job."""
    folder = jobs_dir / _known(jobs_dir, job)
    problems: list[Problem] = []
    prev, seq, count, rollouts, ended = GENESIS, 0, 0, 0, False
    for number, raw, line in read_lines(folder):
        count = number
        if line is None:
            kind = "tampered" if raw.endswith(b"\n") else "torn"
            problems.append(Problem(number, kind, "cannot be read"))
            prev, seq = "", seq + 1
            continue
        problems.extend(_line_problems(number, raw, line, prev, seq))
        problems.extend(_blob_problems(number, line, folder))
        rollouts += line.kind == "rollout"
        ended = line.kind == "end"
        prev, seq = line.sha256, line.seq + 1
    if count == 0:
        problems.append(Problem(1, "truncated", "the file is empty"))
    elif not ended and not any(problem.kind == "torn" for problem in problems):
        problems.append(
            Problem(
                count + 1, "truncated", "the job has no end: it was killed, or lines were cut off"
            )
        )
    return Check(job, count, rollouts, ended, prev, tuple(problems))


def _line_problems(number: int, raw: bytes, line: Line, prev: str, seq: int) -> Iterator[Problem]:
    if not raw.endswith(b"\n"):
        yield Problem(number, "torn", "its end is missing")
        return
    # Written anew it must be the same bytes: spaces, unknown keys and other spellings show too.
    if digest_of(line) != line.sha256 or encode_line(line) != raw:
        yield Problem(number, "tampered", "its content does not match its digest")
    elif line.seq != seq:
        yield Problem(number, "tampered", f"record {line.seq} stands where {seq} belongs")
    elif prev and line.prev != prev:
        yield Problem(number, "tampered", "it does not follow the line before")


def _blob_problems(number: int, line: Line, folder: Path) -> Iterator[Problem]:
    for digest in blobs_in_line(line.data):
        path = folder / "blobs" / digest
        if len(digest) != 64 or not digest.isalnum() or not path.is_file():
            yield Problem(number, "blob", f"the blob {digest[:64]} is missing")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            yield Problem(number, "blob", f"the blob {digest} was changed")


def blobs_in_line(value: object) -> Iterator[str]:
    """Yields the digests of the blobs that a line's data refers to."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in {"blob", "submission"} and isinstance(inner, str):
                yield inner
            else:
                yield from blobs_in_line(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from blobs_in_line(inner)


def _known(jobs_dir: Path, job: str) -> str:
    if "/" in job or job in {"", ".", ".."} or not (jobs_dir / job / FILE).is_file():
        raise NotFound(f"no job {job!r} in {jobs_dir}")
    return job


def _record(line: Line) -> RolloutRecord:
    return msgspec.convert(line.data, RolloutRecord)


def _records(folder: Path) -> Iterator[RolloutRecord]:
    for _, _, line in read_lines(folder):
        if line is not None and line.kind == "rollout":
            try:
                yield _record(line)
            except msgspec.ValidationError:
                continue  # `verify` names it
