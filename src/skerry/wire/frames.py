"""Frames of native/PROTOCOL.md: the one codec of the guest channel and of the launcher's socket.

Knows bytes only: payloads are `wire.fields`, meanings are `wire.guest` and `wire.plan`. What is
decoded here may come from a hostile peer: each length is checked before it is used, and a decoder
never holds more than one incomplete frame. The codes and tags equal native/frames/protocol.h (a
test compares them).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from skerry.errors import InvalidRequest

MAGIC: Final = 0x4B53
VERSION: Final = 1
HEADER_BYTES: Final = 16
PAYLOAD_BYTES_MAX: Final = 65_536
WINDOW: Final = 131_072  # bytes a stream may run ahead of its credit
DATA_BYTES_MAX: Final = PAYLOAD_BYTES_MAX - 8  # of content in one DATA frame, after its offset

_HEADER = struct.Struct("<HBBIII")
_U64 = struct.Struct("<Q")


class ProtocolError(ValueError):
    """A peer sent what the protocol forbids. Whose fault that is, the channel's owner knows."""


class GuestFrame(IntEnum):
    """Frame types of the guest channel."""

    HELLO = 0x01
    PING = 0x02
    START = 0x03
    CREDIT = 0x04
    SIGNAL = 0x05
    CANCEL = 0x06
    ATTACH = 0x07
    ACK = 0x08
    RESIZE = 0x09
    LISTEN = 0x0A
    UNLISTEN = 0x0B
    RESET = 0x0C
    EXEC = 0x0D
    MORE = 0x0E
    HOLD = 0x0F
    DATA = 0x10
    EOF = 0x11
    CONNECT = 0x12
    CELL = 0x13
    WELCOME = 0x81
    PONG = 0x82
    STARTED = 0x83
    DONE = 0x84
    RAN = 0x85
    CELL_IS = 0x86
    ZYGOTE_IS = 0x87
    OPENED = 0x8A
    ERROR = 0x8F


class LauncherFrame(IntEnum):
    """Frame types of the launcher's socket."""

    STATUS = 0x40
    LAYER_MOUNT = 0x41
    LAYER_UNMOUNT = 0x42
    UPPER_OPEN = 0x43
    SLOT_MAKE = 0x44
    SLOT_DROP = 0x45
    START = 0x46
    STOP = 0x47
    ADOPT = 0x48
    FREEZE = 0x49
    THAW = 0x4A
    UPPER_DROP = 0x4B
    UPPER_SNAPSHOT = 0x4C
    RECLAIM = 0x4D
    PREFETCH = 0x4E
    SHUTDOWN = 0x4F
    BLOBS = 0x50
    EXITED = 0x60
    OK = 0xC0
    FAIL = 0xC1


class Tag(IntEnum):
    """Field tags of both conversations."""

    NONCE = 1
    GENERATION = 2
    VERSION = 3
    OP = 4
    HANDLE = 5
    OP_ID = 6
    STATE = 7
    STDOUT_TOTAL = 8
    STDERR_TOTAL = 9
    TOKEN = 10
    KIND = 11
    ARG = 12
    ENV = 13
    CWD = 14
    USER = 15
    TIMEOUT_MS = 16
    STDIN = 17
    PTY_ROWS = 18
    PTY_COLS = 19
    PID = 20
    TOTAL = 21
    OFFSET = 22
    SIGNO = 23
    EXIT_CODE = 24
    TIMED_OUT = 25
    CANCELLED = 26
    OOM = 27
    START_NS = 28
    END_NS = 29
    CPU_US = 30
    ERROR_STEP = 31
    ERRNO = 32
    PORT = 33
    SEQ = 34
    SIZE = 35
    LINE = 36
    RESET = 37
    STDOUT_DROPPED = 38
    STDERR_DROPPED = 39
    STDIN_TOTAL = 40
    STDIN_EOF = 41
    NO_OUTPUT_MS = 42
    NO_OUTPUT = 43
    MORE = 44
    SCRIPT = 45
    HELD = 46
    MERGE = 47
    CELL = 48
    CPU_MS = 49
    RLIMITS = 50
    FSIZE = 51
    NOFILE = 52
    STACK = 53
    CORE = 54
    RESULT = 55
    ACTION = 56
    DISK = 57
    INODES = 58
    CPU_LIMIT = 59
    DISK_USED = 60
    RESULT_TOTAL = 61
    CFG_TASKS = 64
    CFG_OOM = 65
    CFG_PEER_UID = 66
    CFG_NOFILE = 67
    CFG_ENV = 68
    CFG_EXEC_DEADLINE_MS = 69
    CFG_MAX_OPS = 70
    CFG_KEY = 71
    CFG_PROFILE = 72
    CFG_CELLS = 73
    INSTANCE = 100
    LAYER = 101
    SLOT = 102
    UPPER = 103
    PATH = 104
    DEVICE = 105
    FEATURE = 106
    UID_BASE = 107
    OWNER_UID = 108
    STEP = 109
    HOSTNAME = 110
    DISK_BYTES = 111
    SHM_BYTES = 112
    AGENT_GROUP = 113
    WORK_GROUP = 114
    TASKS = 115
    OOM_FILE = 116
    OOM_KIND = 117
    SOCKET = 118
    CONFIG = 119
    UPPER_FROM = 120
    STEP_US = 121
    READ = 122
    KEEP_UPPER = 123
    WAIT_STATUS = 124
    SLOT_CLEAN = 125
    TEXT = 126
    CFG_BEST_EFFORT = 127
    BYTES = 128
    READONLY = 129
    HIDDEN = 130
    PROFILE = 131
    NODE = 132


class Frame(NamedTuple):
    """One frame. `stream` is the request id on the launcher's socket."""

    type: int
    generation: int
    stream: int
    payload: bytes


def encode_frame(type_: int, generation: int, stream: int, payload: bytes = b"") -> bytes:
    """Returns the frame's bytes; raises InvalidRequest if the payload is too long for one."""
    length = len(payload)
    if length > PAYLOAD_BYTES_MAX:
        raise InvalidRequest(f"{length} bytes do not fit into one frame of {PAYLOAD_BYTES_MAX}")
    return _HEADER.pack(MAGIC, VERSION, type_, generation, stream, length) + payload


def encode_data(generation: int, stream: int, offset: int, data: bytes | memoryview) -> bytes:
    """Returns a DATA frame of at most DATA_BYTES_MAX bytes that begin at `offset` of the stream."""
    return b"".join((data_head(generation, stream, offset, len(data)), data))


def data_head(generation: int, stream: int, offset: int, size: int) -> bytes:
    """Returns what goes before the content of a DATA frame, of `size` bytes."""
    if size > DATA_BYTES_MAX:
        raise InvalidRequest(f"{size} bytes do not fit into one DATA frame")
    head = _HEADER.pack(MAGIC, VERSION, GuestFrame.DATA, generation, stream, size + 8)
    return head + _U64.pack(offset)


def data_offset(payload: bytes) -> int:
    """Returns the stream offset that a DATA payload begins with; its content is `payload[8:]`."""
    if len(payload) < 8:
        raise ProtocolError("a DATA frame without an offset")
    offset: int = _U64.unpack_from(payload)[0]
    return offset


def decode_frame(packet: bytes) -> Frame:
    """Returns the one frame that a packet holds; raises ProtocolError if it is anything else."""
    frames = FrameDecoder().feed(packet)
    if len(frames) != 1 or len(frames[0].payload) + HEADER_BYTES != len(packet):
        raise ProtocolError(f"a packet of {len(packet)} bytes is not exactly one frame")
    return frames[0]


class FrameDecoder:
    """Cuts a byte stream into frames. Holds less than one frame between calls.

    After a ProtocolError every further `feed` raises it again: a broken stream is never resumed.
    """

    __slots__ = ("_broken", "_need", "_rest")

    def __init__(self) -> None:
        self._rest = bytearray()
        # Invariant: len(_rest) < _need <= HEADER_BYTES + PAYLOAD_BYTES_MAX
        self._need = HEADER_BYTES
        self._broken: str | None = None

    def feed(self, data: bytes) -> list[Frame]:
        """Returns the frames that `data` completes, in order; raises ProtocolError."""
        if self._broken is not None:
            raise ProtocolError(self._broken)
        frames: list[Frame] = []
        at, end = self._complete(data, frames) if self._rest else 0, len(data)
        unpack = _HEADER.unpack_from
        while end - at >= HEADER_BYTES:
            magic, version, type_, generation, stream, length = unpack(data, at)
            if magic != MAGIC or version != VERSION or length > PAYLOAD_BYTES_MAX:
                self._break(magic, version, length)
            stop = at + HEADER_BYTES + length
            if stop > end:
                self._need = stop - at
                break
            frames.append(Frame(type_, generation, stream, data[at + HEADER_BYTES : stop]))
            at = stop
        if at < end:
            self._rest += data[at:]
        return frames

    def _complete(self, data: bytes, frames: list[Frame]) -> int:
        """Fills up the frame that is held; returns how much of `data` that took."""
        rest = self._rest
        at = self._need - len(rest)
        rest += data[:at]
        if len(rest) == self._need == HEADER_BYTES:
            magic, version, *_, length = _HEADER.unpack_from(rest)
            if magic != MAGIC or version != VERSION or length > PAYLOAD_BYTES_MAX:
                self._break(magic, version, length)
            self._need = HEADER_BYTES + length
            rest += data[at : at + length]
            at += length
        if len(rest) == self._need:
            _, _, type_, generation, stream, _ = _HEADER.unpack_from(rest)
            frames.append(Frame(type_, generation, stream, bytes(rest[HEADER_BYTES:])))
            rest.clear()
            self._need = HEADER_BYTES
        return min(at, len(data))

    def _break(self, magic: int, version: int, length: int) -> None:
        if magic != MAGIC:
            self._broken = f"a frame with magic {magic:#06x}"
        elif version != VERSION:
            self._broken = f"a frame of version {version}"
        else:
            self._broken = f"a frame of {length} bytes, at most {PAYLOAD_BYTES_MAX}"
        self._rest.clear()
        raise ProtocolError(self._broken)
