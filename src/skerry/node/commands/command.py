"""From what a user asks to what the agent is told, and from what it says to a result. Pure."""

from __future__ import annotations

import hashlib
import os
from errno import EINVAL, ENOENT

import msgspec

from skerry.errors import InvalidRequest
from skerry.guest.api import Operation, Outcome
from skerry.spec.command import CommandSpec, RunResult
from skerry.spec.sandbox import SandboxSpec
from skerry.wire.starts import START_MORE_MAX

BASH = "/bin/bash"
SH = "/bin/sh"
START_BYTES_MAX = START_MORE_MAX + 65_000  # of a START's fields, with room for its small ones
LINE_BYTES_MAX = 120_000  # a longer shell line is a script: the kernel takes 128 KiB in one word
_RUN_SCRIPT = ". /proc/self/fd/3"
_CLOSE_SCRIPT = b"exec 3<&-; "  # on the first line, so that lines keep their numbers
PROGRAM_SHOWN = 1000  # characters of a missing program in a start error
_NO_USER = (None, 0, ENOENT, EINVAL)  # the agent's words for a name it cannot find
_FIELD = 5  # bytes of tag and length before each field

_encoder = msgspec.msgpack.Encoder()


def check(spec: CommandSpec, sandbox: SandboxSpec) -> None:
    """Raises InvalidRequest unless the command can be sent to that sandbox's agent."""
    spec.check()
    if spec.session is not None:
        return  # nothing of it goes into a START
    if spec.terminal is not None:
        check_terminal(spec.terminal.rows, spec.terminal.cols)
    if spec.interactive and spec.stdin is not None:
        raise InvalidRequest("stdin: an interactive command gets its input over the stream")
    words = sum(map(len, spec.argv)) + len(spec.argv) + len(spec.shell or "")
    if not spec.env and not sandbox.env and words < 8192:
        return  # no exact count needed: six bytes for each still fit
    total = sum(len(os.fsencode(word)) + _FIELD for word in spec.argv or (BASH, spec.shell or ""))
    for name, value in (sandbox.env | spec.env).items():
        total += len(name) + len(os.fsencode(value)) + 1 + _FIELD
    total += len(os.fsencode(spec.cwd or sandbox.workdir or ""))
    total += len(os.fsencode(spec.user or sandbox.user or ""))
    if total > START_BYTES_MAX:
        raise InvalidRequest(
            f"argv and env: {total} bytes together, more than {START_BYTES_MAX}: "
            "write a file into the sandbox and run that"
        )


def check_terminal(rows: int, cols: int) -> None:
    """Raises InvalidRequest unless that is a terminal's size."""
    if not (0 < rows <= 65_535 and 0 < cols <= 65_535):
        raise InvalidRequest(f"terminal: {rows} rows and {cols} columns are out of bounds")


def check_signal(number: int) -> int:
    """Returns the signal number if it is one; raises InvalidRequest."""
    if not 1 <= number <= 64:
        raise InvalidRequest(f"signal: {number} is not between 1 and 64")
    return number


def fingerprint(spec: CommandSpec) -> bytes:
    """Returns eight bytes that tell this command from another under the same operation id."""
    return hashlib.blake2b(_encoder.encode(spec), digest_size=8).digest()


def without_stdin(spec: CommandSpec) -> CommandSpec:
    """Returns the command without its input, which is empty then: it is kept elsewhere."""
    return msgspec.structs.replace(spec, stdin=b"")


def text(spec: CommandSpec) -> str:
    """Returns the command in at most 200 characters, for lists."""
    line = spec.shell if spec.shell is not None else " ".join(spec.argv)
    return line if len(line) <= 200 else line[:197] + "..."


def fallback_id(op: bytes) -> bytes:
    """Returns the id under which the agent sees a second try with sh."""
    return hashlib.blake2b(op, digest_size=16, person=b"skerry-sh").digest()


def operation(
    spec: CommandSpec, sandbox: SandboxSpec, *, handle: int, op: bytes, shell: str
) -> Operation:
    """Returns what the agent is asked: defaults filled in, the shell line given to `shell`."""
    argv, script = spec.argv, None
    if spec.shell is not None:
        argv = (shell, "-c", spec.shell)
        if len(spec.shell) > LINE_BYTES_MAX // 4:
            line = os.fsencode(spec.shell)
            if len(line) > LINE_BYTES_MAX:
                argv, script = (shell, "-c", _RUN_SCRIPT), _CLOSE_SCRIPT + line
    env = spec.env if not sandbox.env else sandbox.env | spec.env
    terminal = spec.terminal
    return Operation(
        handle=handle,
        op_id=op,
        argv=tuple(map(os.fsencode, argv)),
        env=tuple(os.fsencode(f"{name}={value}") for name, value in env.items()),
        cwd=directory(spec.cwd, sandbox.workdir),
        user=os.fsencode(spec.user or sandbox.user or "root"),
        timeout_ms=milliseconds(spec.timeout_s),
        no_output_ms=milliseconds(spec.no_output_timeout_s),
        script=script,
        stdin=spec.interactive or spec.stdin is not None,
        merge=spec.merge_stderr,
        terminal=None if terminal is None else (terminal.rows, terminal.cols),
    )


def directory(asked: str | None, workdir: str | None) -> bytes | None:
    """Returns where it begins; what is still relative then is so to the home of its user."""
    cwd = asked or workdir
    if asked and workdir:
        cwd = os.path.join(workdir, asked)
    return os.fsencode(cwd) if cwd else None


def milliseconds(seconds: float | None) -> int:
    """Returns a timeout as the agent takes it; 0: none."""
    return 0 if seconds is None else max(1, round(seconds * 1000))


def shell_missing(spec: CommandSpec, outcome: Outcome) -> bool:
    """Returns whether the shell itself was not there: what it would have run cannot cause this."""
    return spec.shell is not None and outcome.error_step == "exec" and outcome.errno == ENOENT


def start_error(
    outcome: Outcome, spec: CommandSpec, sandbox: SandboxSpec, shell: str
) -> str | None:
    """Returns why a command did not start, in words that name the culprit; None if it did."""
    step = outcome.error_step
    if step is None:
        return None
    reason = os.strerror(outcome.errno) if outcome.errno else "failed"
    if step == "user":
        user = spec.user or sandbox.user
        return (
            f"user: unknown user {user}"
            if outcome.errno in _NO_USER
            else (f"user: {reason}: {user}")
        )
    if step == "cwd":
        cwd = directory(spec.cwd, sandbox.workdir)
        return f"cwd: {reason}: {os.fsdecode(cwd or b'/')}"
    if step == "exec":
        program = spec.argv[0] if spec.argv else shell
        return f"exec: {reason}: {program[:PROGRAM_SHOWN]}"
    return f"{step}: {reason}"


def result(
    outcome: Outcome,
    *,
    op_id: str,
    start_error: str | None,
    stdout: bytes,
    stderr: bytes,
    truncated: bool,
    started: float,
    ended: float,
) -> RunResult:
    """Returns the result that a user gets; `started` and `ended` serve where the agent has none."""
    if start_error is not None:
        exit_code = signal = None
    elif outcome.exit_code is None and outcome.signal is None:
        exit_code, signal = None, 9  # ended by timeout or cancel before it could say how
    else:
        exit_code, signal = outcome.exit_code, outcome.signal
    return RunResult(
        exit_code=exit_code,
        signal=signal,
        start_error=start_error,
        start_errno=outcome.errno if start_error is not None else None,
        stdout=stdout,
        stderr=stderr,
        stdout_total=outcome.stdout_total,
        stderr_total=outcome.stderr_total,
        truncated=truncated,
        timed_out=outcome.timed_out,
        no_output=outcome.no_output,
        oom_killed=outcome.oom,
        cancelled=outcome.cancelled,
        session_reset=outcome.reset,
        started=outcome.start_ns / 1e9 if outcome.start_ns else started,
        ended=outcome.end_ns / 1e9 if outcome.end_ns else ended,
        cpu_seconds=outcome.cpu_us / 1e6,
        op_id=op_id,
    )
