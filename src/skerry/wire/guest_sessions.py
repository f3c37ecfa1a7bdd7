"""The messages of a session's commands (native/PROTOCOL.md, "Sessions")."""

from __future__ import annotations

from typing import ClassVar, Final

from skerry.wire.fields import Kind, Message, Part, flag, number, text
from skerry.wire.frames import GuestFrame, ProtocolError, Tag

LINE_BYTES_MAX: Final = 32_768  # a longer script goes over channel 1, before EXEC
SCRIPT_BYTES_MAX: Final = 16 << 20
_ERRNO_MAX: Final = 4095
_STEP_BYTES_MAX: Final = 256


class Exec(Message, frozen=True, kw_only=True):
    """Runs a script of `size` bytes in the session: `line`, or what came over channel 1."""

    CODE = GuestFrame.EXEC
    PARTS = (
        number("seq", Tag.SEQ, 1),
        number("size", Tag.SIZE, 0, SCRIPT_BYTES_MAX),
        number("timeout_ms", Tag.TIMEOUT_MS, optional=True),
        number("no_output_ms", Tag.NO_OUTPUT_MS, optional=True),
        Part("line", Tag.LINE, Kind.RAW, optional=True),
    )
    seq: int
    size: int
    timeout_ms: int | None = None
    no_output_ms: int | None = None
    line: bytes | None = None


class End(Message, frozen=True, kw_only=True):
    """How something ended; exactly one of exit_code, signal, error_step is set."""

    END_PARTS: ClassVar[tuple[Part, ...]] = (
        number("exit_code", Tag.EXIT_CODE, 0, 255, optional=True),
        number("signal", Tag.SIGNO, 1, 64, optional=True),
        text("error_step", Tag.ERROR_STEP, _STEP_BYTES_MAX, optional=True),
        number("errno", Tag.ERRNO, 0, _ERRNO_MAX, optional=True),
        flag("timed_out", Tag.TIMED_OUT, optional=True),
        flag("no_output", Tag.NO_OUTPUT, optional=True),
        flag("cancelled", Tag.CANCELLED, optional=True),
        flag("oom", Tag.OOM, optional=True),
        number("start_ns", Tag.START_NS, optional=True),
        number("end_ns", Tag.END_NS, optional=True),
        number("cpu_us", Tag.CPU_US, optional=True),
    )
    exit_code: int | None = None
    signal: int | None = None
    error_step: str | None = None
    errno: int | None = None
    timed_out: bool = False
    no_output: bool = False
    cancelled: bool = False
    oom: bool = False
    start_ns: int = 0
    end_ns: int = 0
    cpu_us: int = 0

    def check(self) -> None:
        """Raises ProtocolError unless it says one end, and says it whole."""
        ends = (self.exit_code is not None) + (self.signal is not None)
        if ends + (self.error_step is not None) != 1:
            raise ProtocolError(
                f"{self.CODE.name} without exactly one of EXIT_CODE, SIGNO, ERROR_STEP"
            )
        if (self.errno is None) != (self.error_step is None):
            raise ProtocolError(f"{self.CODE.name} with one of ERROR_STEP and ERRNO")


class Ran(End, frozen=True, kw_only=True):
    """How a command of a session ended.

    The totals are the session's; its output lies between those of the command before and these.
    """

    CODE = GuestFrame.RAN
    PARTS = (
        number("seq", Tag.SEQ, 1),
        *End.END_PARTS,
        flag("reset", Tag.RESET, optional=True),
        number("stdout_total", Tag.STDOUT_TOTAL),
        number("stderr_total", Tag.STDERR_TOTAL),
        number("stdout_dropped", Tag.STDOUT_DROPPED, optional=True),
        number("stderr_dropped", Tag.STDERR_DROPPED, optional=True),
    )
    seq: int
    reset: bool = False
    stdout_total: int
    stderr_total: int
    stdout_dropped: int = 0
    stderr_dropped: int = 0
