"""How one step of a call ended: which limit it was, found out outside of it."""

from __future__ import annotations

import os
from typing import NamedTuple

from skerry.backends.api import CellUsage
from skerry.errors import PlatformError, SkerryError, Unavailable
from skerry.guest.api import Outcome
from skerry.spec.function_limits import CallLimits, Limit
from skerry.spec.function_result import CallUsage, Step

DISK_SLACK_BYTES = 64 << 10  # a write of less than that may be what found the disk full


class NotStarted(PlatformError):
    """Nothing of the call has run: it may have another place."""


class Lost(PlatformError):
    """Its container was lost while it ran: nobody knows what it did."""


class Ended(NamedTuple):
    """A step's end, and what it wrote."""

    outcome: Outcome
    usage: CellUsage
    cut: Limit | None  # for which the node ended it
    stdout: bytes
    stderr: bytes


def limit_of(ended: Ended, limits: CallLimits) -> Limit | None:
    """Returns which limit ended it; None if it ended by itself.

    Whoever reached the limit of memory or processes is told so, however it ended: the call would have
    been ended for it if that had not come first. A full disk refuses a write, so it is the reason only
    of a call that failed.
    """
    outcome, usage = ended.outcome, ended.usage
    if ended.cut is not None:
        return ended.cut
    if outcome.cpu_limit:
        return Limit.CPU
    if usage.oom_kills or outcome.oom:
        return Limit.MEMORY
    if outcome.timed_out:
        return Limit.WALL
    if usage.pids_refused:
        return Limit.PROCESSES
    if outcome.exit_code != 0 and (outcome.disk_used or 0) > limits.disk_bytes - DISK_SLACK_BYTES:
        return Limit.DISK
    return None


def usage_of(ended: Ended, queued_s: float = 0.0) -> CallUsage:
    """Returns what it used."""
    outcome = ended.outcome
    return CallUsage(
        wall_s=max(0, outcome.end_ns - outcome.start_ns) / 1e9,
        cpu_s=outcome.cpu_us / 1e6,
        peak_memory_bytes=ended.usage.memory_peak_bytes,
        disk_bytes=outcome.disk_used or 0,
        queued_s=queued_s,
    )


def step_of(ended: Ended, limits: CallLimits, program: str, queued_s: float = 0.0) -> Step:
    """Returns the end of a program as its caller sees it; raises what is the platform's fault."""
    outcome = ended.outcome
    check_started(outcome)
    exit_code, signal, start_error = outcome.exit_code, outcome.signal, None
    if outcome.error_step is not None:
        reason = os.strerror(outcome.errno) if outcome.errno else "failed"
        exit_code, signal, start_error = None, None, f"exec: {reason}: {program[:200]}"
    elif exit_code is None and signal is None:
        signal = 9  # it was ended before it could say how
    return Step(
        exit_code=exit_code,
        signal=signal,
        start_error=start_error,
        stdout=ended.stdout,
        stderr=ended.stderr,
        stdout_total=outcome.stdout_total,
        stderr_total=outcome.stderr_total,
        limit=limit_of(ended, limits),
        usage=usage_of(ended, queued_s),
    )


def check_started(outcome: Outcome) -> None:
    """Raises NotStarted or Lost if it ended for a reason that is not the call's."""
    step = outcome.error_step
    if step is None or step == "exec":
        return
    reason = os.strerror(outcome.errno) if outcome.errno else "failed"
    if step == "zygote" and outcome.pid is not None:
        raise Lost(f"the interpreter that it was forked from has ended ({reason})", step=step)
    raise NotStarted(f"{step}: {reason}", step=step, errno=outcome.errno)


def never(error: SkerryError) -> Unavailable:
    """Returns what a caller is told whose call got no place that works."""
    return Unavailable(f"the call never started: {error.message}", retry_after_s=1.0)
