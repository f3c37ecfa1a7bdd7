"""Typed messages of the guest channel, and what each may hold (native/PROTOCOL.md).

`encode` makes a frame of a message; `from_agent` and `from_host` make messages of frames and
refuse what the protocol forbids: a type in the wrong direction or on the wrong stream, a missing
or repeated field, a number out of range. Bytes from inside are hostile. Relations between frames
(offsets, windows, totals) are checked by the holders of the channel, not here.
"""

from __future__ import annotations

from typing import Final, Self

from skerry.wire import fields
from skerry.wire.fields import (
    NUMBER_MAX,
    Body,
    Fields,
    Kind,
    flag,
    number,
    raw,
    several,
    text,
    word,
)
from skerry.wire.frames import (
    PAYLOAD_BYTES_MAX,
    Frame,
    GuestFrame,
    ProtocolError,
    Tag,
    data_offset,
    encode_data,
    encode_frame,
)
from skerry.wire.guest_cells import CELLS_MAX, Cell, CellIs, ZygoteIs
from skerry.wire.guest_forwards import Connect, Listen, Opened, Reset, Unlisten
from skerry.wire.guest_sessions import End, Exec, Ran
from skerry.wire.streams import HANDLE_MAX, may_come

Message = fields.Message

AGENT_MAJOR: Final = 0  # of the agents that this side understands
GENERATION_MAX: Final = (1 << 32) - 1
PID_MAX: Final = (1 << 31) - 1
PTY_MAX: Final = 65_535
ERRNO_MAX: Final = 4095
STEP_BYTES_MAX: Final = 256
CALL_KIND: Final = 3  # of a START that the zygote serves
ZYGOTE_STEP: Final = "zygote"  # ERROR_STEP of a call whose zygote ended, if PID is there under it


class Hello(Message, frozen=True):
    """The host opens the conversation; generation 0."""

    CODE = GuestFrame.HELLO
    PARTS = (raw("nonce", Tag.NONCE, 16),)
    nonce: bytes


class KnownOperation(Body, frozen=True):
    """An operation that the agent still knows; nested in WELCOME."""

    PARTS = (
        number("handle", Tag.HANDLE, 1, HANDLE_MAX),
        raw("op_id", Tag.OP_ID, 16),
        flag("done", Tag.STATE),
        number("stdout_total", Tag.STDOUT_TOTAL),
        number("stderr_total", Tag.STDERR_TOTAL),
        number("stdin_total", Tag.STDIN_TOTAL, optional=True),
        flag("stdin_eof", Tag.STDIN_EOF, optional=True),
    )
    handle: int
    op_id: bytes
    done: bool
    stdout_total: int
    stderr_total: int
    stdin_total: int | None = None  # None: an agent of before 0.2
    stdin_eof: bool = False


def speaks(version: str) -> bool:
    """Returns whether this node understands an agent of that version: the major number decides.

    Within one, a minor version only adds frames and tags, which the other side ignores or does not
    use: so an agent that outlived an upgrade of the node goes on.
    """
    return version.partition(".")[0] == str(AGENT_MAJOR)


class Welcome(Message, frozen=True):
    """The agent answers HELLO; `generation` is this connection's from now on."""

    CODE = GuestFrame.WELCOME
    PARTS = (
        raw("nonce", Tag.NONCE, 16),
        number("generation", Tag.GENERATION, 1, GENERATION_MAX),
        raw("version", Tag.VERSION),
        several("raw_operations", Tag.OP, Kind.RAWS),
    )
    nonce: bytes
    generation: int
    version: bytes
    raw_operations: tuple[bytes, ...] = ()

    def operations(self) -> tuple[KnownOperation, ...]:
        """Returns what the agent still knows; raises ProtocolError."""
        found = tuple(KnownOperation.parse(payload) for payload in self.raw_operations)
        if len({operation.handle for operation in found}) != len(found):
            raise ProtocolError("WELCOME names two operations with one handle")
        return found


class Ping(Message, frozen=True):
    """Asks for a PONG with the same token."""

    CODE = GuestFrame.PING
    PARTS = (raw("token", Tag.TOKEN),)
    token: bytes


class Pong(Message, frozen=True):
    """Answers PING."""

    CODE = GuestFrame.PONG
    PARTS = (raw("token", Tag.TOKEN),)
    token: bytes


class Start(Message, frozen=True, kw_only=True):
    """Starts an operation; the fields mean what `guest.api.Operation` says."""

    CODE = GuestFrame.START
    PARTS = (
        raw("op_id", Tag.OP_ID, 16),
        number("kind", Tag.KIND, 0, 4),
        several("argv", Tag.ARG, Kind.WORDS),
        several("env", Tag.ENV, Kind.WORDS),
        word("cwd", Tag.CWD, optional=True),
        word("user", Tag.USER, optional=True),
        number("timeout_ms", Tag.TIMEOUT_MS, optional=True),
        number("no_output_ms", Tag.NO_OUTPUT_MS, optional=True),
        raw("script", Tag.SCRIPT, optional=True),
        flag("stdin", Tag.STDIN),
        flag("merge", Tag.MERGE, optional=True),
        number("rows", Tag.PTY_ROWS, 0, PTY_MAX, optional=True),
        number("cols", Tag.PTY_COLS, 0, PTY_MAX, optional=True),
        number("cell", Tag.CELL, 0, CELLS_MAX - 1, optional=True),
        number("cpu_ms", Tag.CPU_MS, optional=True),
        raw("rlimits", Tag.RLIMITS, optional=True),
        flag("result", Tag.RESULT, optional=True),
    )
    op_id: bytes
    kind: int = 0
    argv: tuple[bytes, ...] = ()
    env: tuple[bytes, ...] = ()
    cwd: bytes | None = None
    user: bytes | None = None
    timeout_ms: int | None = None
    no_output_ms: int | None = None
    script: bytes | None = None
    stdin: bool = False
    merge: bool | None = None  # stderr goes where stdout goes
    rows: int | None = None  # both or none: a terminal
    cols: int | None = None
    cell: int | None = None
    cpu_ms: int | None = None
    rlimits: bytes | None = None  # the payload of `guest_cells.Rlimits`
    result: bool | None = None  # channel 1 carries what comes out of descriptor 4, too

    def check(self) -> None:
        """Raises ProtocolError without a program (a call needs none), or with half a terminal."""
        program = self.argv or self.kind == CALL_KIND
        if not program or (self.rows is None) != (self.cols is None):
            raise ProtocolError("START without ARG, or with half a terminal")


class More(Message, frozen=True):
    """Further bytes of the fields of the START before it on the same stream."""

    CODE = GuestFrame.MORE
    data: bytes

    def payload(self) -> bytes:
        """Returns the bytes."""
        return self.data

    @classmethod
    def parse(cls, payload: bytes) -> Self:
        """Returns the value."""
        return cls(payload)


class Hold(Message, frozen=True):
    """The agent's timers of operations stand still, or go on."""

    CODE = GuestFrame.HOLD
    PARTS = (flag("held", Tag.HELD),)
    held: bool


class Started(Message, frozen=True):
    """exec was reached (pid inside), or a listener listens (then pid says nothing).

    Of a session: the last command that came, and where its output begins (the next one's, if that
    command's end is acknowledged).
    """

    CODE = GuestFrame.STARTED
    PARTS = (
        number("pid", Tag.PID, 0, PID_MAX, optional=True),
        number("seq", Tag.SEQ, optional=True),
        number("stdout_total", Tag.STDOUT_TOTAL, optional=True),
        number("stderr_total", Tag.STDERR_TOTAL, optional=True),
    )
    pid: int = 0
    seq: int | None = None
    stdout_total: int | None = None
    stderr_total: int | None = None


class Data(Message, frozen=True):
    """Content of a stream from `offset` on."""

    CODE = GuestFrame.DATA
    offset: int
    data: bytes

    def payload(self) -> bytes:
        """Returns the offset and the content."""
        return encode_data(0, 0, self.offset, self.data)[16:]

    @classmethod
    def parse(cls, payload: bytes) -> Self:
        """Returns the value; raises ProtocolError."""
        offset = data_offset(payload)
        if offset > NUMBER_MAX - PAYLOAD_BYTES_MAX:
            raise ProtocolError(f"DATA at offset {offset}")
        return cls(offset, payload[8:])


class Eof(Message, frozen=True):
    """The stream ends at `total`."""

    CODE = GuestFrame.EOF
    PARTS = (number("total", Tag.TOTAL),)
    total: int


class Credit(Message, frozen=True):
    """The receiver has everything below `offset` and takes up to a window more."""

    CODE = GuestFrame.CREDIT
    PARTS = (number("offset", Tag.OFFSET),)
    offset: int


class Signal(Message, frozen=True):
    """A signal to every process of the operation; with `seq`, to what that command started."""

    CODE = GuestFrame.SIGNAL
    PARTS = (number("signo", Tag.SIGNO, 1, 64), number("seq", Tag.SEQ, 1, optional=True))
    signo: int
    seq: int | None = None


class Cancel(Message, frozen=True):
    """Ends every process of the operation, or what the command `seq` of a session started."""

    CODE = GuestFrame.CANCEL
    PARTS = (number("seq", Tag.SEQ, 1, optional=True),)
    seq: int | None = None


class Attach(Message, frozen=True):
    """Asks for the output again from these offsets on, and for DONE."""

    CODE = GuestFrame.ATTACH
    PARTS = (
        number("stdout_total", Tag.STDOUT_TOTAL),
        number("stderr_total", Tag.STDERR_TOTAL),
    )
    stdout_total: int
    stderr_total: int


class Ack(Message, frozen=True):
    """The result is recorded; the agent may forget it. With `seq`: that of a session's command."""

    CODE = GuestFrame.ACK
    PARTS = (number("seq", Tag.SEQ, 1, optional=True),)
    seq: int | None = None


class Resize(Message, frozen=True):
    """The size of the operation's terminal."""

    CODE = GuestFrame.RESIZE
    PARTS = (
        number("rows", Tag.PTY_ROWS, 0, PTY_MAX),
        number("cols", Tag.PTY_COLS, 0, PTY_MAX),
    )
    rows: int
    cols: int


class Done(End, frozen=True, kw_only=True):
    """How an operation ended."""

    CODE = GuestFrame.DONE
    PARTS = (
        *End.END_PARTS,
        number("stdout_total", Tag.STDOUT_TOTAL, optional=True),
        number("stderr_total", Tag.STDERR_TOTAL, optional=True),
        number("pid", Tag.PID, 1, PID_MAX, optional=True),
        flag("cpu_limit", Tag.CPU_LIMIT, optional=True),
        number("disk_used", Tag.DISK_USED, optional=True),
        number("result_total", Tag.RESULT_TOTAL, optional=True),
    )
    stdout_total: int = 0
    stderr_total: int = 0
    pid: int | None = None  # what STARTED would have said, or has said
    cpu_limit: bool | None = None  # CPU_MS ended it
    disk_used: int | None = None  # bytes in the tmpfs of its cell
    result_total: int | None = None  # bytes that came out of descriptor 4; None: as 0

    def check(self) -> None:
        """Raises ProtocolError also if it both ran and did not; a call may be lost with its zygote."""
        super().check()
        if self.pid is not None and self.error_step not in (None, ZYGOTE_STEP):
            raise ProtocolError("DONE with both PID and ERROR_STEP")


class Error(Message, frozen=True):
    """A frame of the host could not be served."""

    CODE = GuestFrame.ERROR
    PARTS = (
        text("step", Tag.ERROR_STEP, STEP_BYTES_MAX, optional=True),
        number("errno", Tag.ERRNO, 0, ERRNO_MAX),
    )
    errno: int
    step: str = ""


_BOTH: Final = (Data, Eof, Credit, Reset)
_COMMANDS: Final = (Start, More, Signal, Cancel, Attach, Ack, Resize, Exec)
_HOST: Final = (Hello, Ping, Hold, Cell, *_COMMANDS, Listen, Unlisten, Connect)
_AGENT: Final = (Welcome, Pong, CellIs, ZygoteIs, Started, Done, Ran, Opened, Error)
_FROM_HOST: Final[dict[int, type[Message]]] = {cls.CODE: cls for cls in (*_HOST, *_BOTH)}
_FROM_AGENT: Final[dict[int, type[Message]]] = {cls.CODE: cls for cls in (*_AGENT, *_BOTH)}


def encode(message: Message, generation: int, stream: int) -> bytes:
    """Returns the message's frame; raises InvalidRequest if a value cannot be sent."""
    return encode_frame(message.CODE, generation, stream, message.payload())


def from_agent(frame: Frame) -> Message:
    """Returns what the agent said; raises ProtocolError."""
    return _decode(frame, _FROM_AGENT, outward=True)


def from_host(frame: Frame) -> Message:
    """Returns what the host said; raises ProtocolError."""
    return _decode(frame, _FROM_HOST, outward=False)


def _decode(frame: Frame, table: dict[int, type[Message]], *, outward: bool) -> Message:
    cls = table.get(frame.type)
    if cls is None:
        raise ProtocolError(f"a frame of type {frame.type:#04x}")
    if not may_come(frame.type, frame.stream, outward=outward):
        raise ProtocolError(f"{cls.CODE.name} on stream {frame.stream:#x}")
    if cls.PARTS or cls is Data or cls is More:
        return cls.parse(frame.payload)
    Fields(frame.payload)
    return cls()
