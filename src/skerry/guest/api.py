"""What the host can do over one guest channel; `skerry.guest.client.GuestClient` implements it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import Protocol

import msgspec

OpenChannel = Callable[[Callable[[], asyncio.Protocol]], Awaitable[asyncio.Transport]]


class Kind(IntEnum):
    """What an operation is."""

    COMMAND = 0
    FILE = 1
    SESSION = 2
    CALL = 3  # of the zygote; no argv, the payload is `script`
    ZYGOTE = 4


class Stream(IntEnum):
    """Output streams, by their channel number in native/PROTOCOL.md."""

    STDOUT = 2
    STDERR = 3


class Rlimits(msgspec.Struct, frozen=True, kw_only=True):
    """Resource limits of a program in a cell; None: as every command has it."""

    fsize: int | None = None
    nofile: int | None = None
    stack: int | None = None
    core: int | None = 0


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of the agent. The handle is never reused in the life of an instance."""

    handle: int
    op_id: bytes  # 16 bytes
    kind: Kind = Kind.COMMAND
    argv: tuple[bytes, ...]
    env: tuple[bytes, ...] = ()  # "K=V"
    cwd: bytes | None = None
    user: bytes | None = None
    timeout_ms: int = 0  # 0: none
    no_output_ms: int = 0  # without a byte of output for that long it is ended; 0: never
    script: bytes | None = None  # a file that only the command has: /proc/self/fd/3
    stdin: bool = False
    merge: bool = False  # stderr goes where stdout goes, in the order of the writes
    terminal: tuple[int, int] | None = None  # rows, cols
    cell: int | None = None  # of a function container; None: in the container itself
    cpu_ms: int = 0  # processor time of all its processes, after which they are ended; 0: any
    rlimits: Rlimits | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How an operation ended, as the agent says (hostile input, already validated)."""

    exit_code: int | None = None
    signal: int | None = None
    error_step: str | None = None
    errno: int | None = None
    timed_out: bool = False
    no_output: bool = False  # it was the no-output timeout
    cancelled: bool = False
    oom: bool = False
    reset: bool = False  # of a session: its shell was lost
    pid: int | None = None  # inside, if it began; also with an error_step, of a call that was lost
    start_ns: int = 0
    end_ns: int = 0
    cpu_us: int = 0
    stdout_total: int = 0
    stderr_total: int = 0
    dropped: int = 0  # bytes of the totals that were thrown away inside
    cpu_limit: bool = False  # it was ended for the processor time that it used
    disk_used: int = 0  # bytes of its cell's files at its end
    result_total: int = 0


class OutputSink(Protocol):
    """Records output. Bytes arrive in order per stream and without gaps.

    After an attach below what a sink has, bytes come again, and the sink drops them.
    Credit beyond the first window is granted for safe bytes only, those that need not be sent again
    after a crash of this process: `safe_offset` must be up to date when `drain` returns. A sink that
    dies with this process calls all bytes safe. A sink that wants back-pressure awaits in `drain`.
    What these methods raise as SkerryError ends the operation, and `RunningOperation.wait` raises it.
    """

    def write(self, stream: Stream, offset: int, data: bytes) -> None:
        """Takes bytes that begin at `offset` of the stream."""

    def safe_offset(self, stream: Stream) -> int:
        """Returns how many bytes of the stream need not be sent again after a crash of this process."""

    async def drain(self) -> None:
        """Returns when more output is welcome."""
