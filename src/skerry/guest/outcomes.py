"""What the agent's words for an end, and for a refusal, mean to the host."""

from __future__ import annotations

import msgspec

from skerry.errors import (
    Bug,
    Conflict,
    NotFound,
    Overloaded,
    SandboxFailed,
    SkerryError,
    Unavailable,
)
from skerry.guest.api import Outcome
from skerry.wire import guest
from skerry.wire.guest_sessions import End

_EEXIST, _EAGAIN, _ENOENT, _EPROTO = 17, 11, 2, 71


def outcome_of(
    end: End,
    stdout_total: int,
    stderr_total: int,
    *,
    reset: bool = False,
    dropped: int = 0,
    pid: int | None = None,
) -> Outcome:
    """Returns what an end that the agent told means."""
    return Outcome(
        exit_code=end.exit_code,
        signal=end.signal,
        error_step=end.error_step,
        errno=end.errno,
        timed_out=end.timed_out,
        no_output=end.no_output,
        cancelled=end.cancelled,
        oom=end.oom,
        reset=reset,
        pid=pid,
        start_ns=end.start_ns,
        end_ns=end.end_ns,
        cpu_us=end.cpu_us,
        stdout_total=stdout_total,
        stderr_total=stderr_total,
        dropped=dropped,
    )


def outcome_of_done(done: guest.Done, pid: int | None) -> Outcome:
    """Returns what a DONE means; `pid` as it, or STARTED before it, told."""
    outcome = outcome_of(done, done.stdout_total, done.stderr_total, pid=pid)
    if done.cpu_limit is None and done.disk_used is None and done.result_total is None:
        return outcome
    return msgspec.structs.replace(
        outcome,
        cpu_limit=bool(done.cpu_limit),
        disk_used=done.disk_used or 0,
        result_total=done.result_total or 0,
    )


def refusal_of(error: guest.Error, handle: int) -> SkerryError:
    """Returns whose fault an ERROR of the agent is."""
    fields = {"errno": error.errno, "step": error.step}
    if error.errno == _EEXIST:
        return Conflict("the operation was started before", **fields)
    if error.errno == _EAGAIN and error.step in {"cell", "zygote"}:
        return Unavailable(f"the {error.step} is not there: nothing was started", **fields)
    if error.errno == _EAGAIN:
        return Overloaded("too many operations in one sandbox", limit="operations", **fields)
    if error.errno == _ENOENT:
        return NotFound(f"the guest agent knows no operation with handle {handle}", **fields)
    if error.errno == _EPROTO:
        return Bug(f"the guest agent refused a frame at {error.step!r}", **fields)
    return SandboxFailed(
        f"the guest agent refused the operation at {error.step!r}: errno {error.errno}", **fields
    )
