"""How a command ended, as harnesses say it: one text, and the status that a shell would give."""

from __future__ import annotations

from skerry.errors import Fault, NotFound, SkerryError
from skerry.spec.command import RunResult
from skerry.spec.limits import split_limit

TIMED_OUT = 124  # as timeout(1) says it
NOT_STARTED, NOT_FOUND, BY_SIGNAL = 126, 127, 128
_ENOENT = 2


def exit_status(result: RunResult) -> int:
    """Returns its exit status; 124 after a timeout, 128 and the signal, 126 or 127 without a start."""
    if result.timed_out:
        return TIMED_OUT
    if result.start_error is not None:
        return NOT_FOUND if result.start_errno == _ENOENT else NOT_STARTED
    if result.exit_code is not None:
        return result.exit_code
    return BY_SIGNAL + (result.signal or 0)


def shown(result: RunResult, limit: int) -> str:
    """Returns stdout as text; where its middle was cut out, at that limit, a line says how much.

    Bytes that are no UTF-8 are replaced.
    """
    cut = result.stdout_total - len(result.stdout)
    if cut <= 0:
        return result.text
    head = split_limit(limit)[0]
    before, after = result.stdout[:head], result.stdout[head:]
    gap = f"\n[... {cut} bytes were cut out here ...]\n"
    return before.decode("utf-8", "replace") + gap + after.decode("utf-8", "replace")


def remarks(result: RunResult, timeout: float | None) -> str:
    """Returns what an agent must know beside the output, in lines; "" if there is nothing."""
    said = []
    if result.start_error is not None:
        said.append(result.start_error)
    if result.timed_out:
        after = "" if timeout is None else f" after {timeout:g} seconds"
        said.append(f"The command timed out{after}; all that it had started was ended.")
    if result.oom_killed:
        said.append("The sandbox ran out of memory.")
    if result.cancelled:
        said.append("The command was cancelled.")
    return "\n".join(said)


def is_of_platform(error: SkerryError) -> bool:
    """Says whether nobody inside is to blame: nothing may be graded by such a failure.

    That a whole sandbox is not there any more, or was ended from outside, is one too.
    """
    if error.fault in (Fault.PLATFORM, Fault.BUG):
        return True
    return "lost" in error.fields or (isinstance(error, NotFound) and "path" not in error.fields)
