"""What the fake agent needs of the frame format, in its own terms."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

HEADER = 16
MAGIC = 0x4B53
PAYLOAD_MAX = 65_536


class Code(IntEnum):
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
    DATA = 0x10
    EOF = 0x11
    WELCOME = 0x81
    PONG = 0x82
    STARTED = 0x83
    DONE = 0x84
    ERROR = 0x8F


class Tag(IntEnum):
    """Field tags of the guest channel."""

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


class Frame(NamedTuple):
    """One frame."""

    type: int
    generation: int
    stream: int
    payload: bytes


def pack(code: int, generation: int, stream: int, payload: bytes) -> bytes:
    """Returns the bytes of a frame."""
    head = MAGIC.to_bytes(2, "little") + bytes((1, code))
    numbers = (generation, stream, len(payload))
    return head + b"".join(n.to_bytes(4, "little") for n in numbers) + payload


def pack_fields(pairs: list[tuple[int, int | bytes]]) -> bytes:
    """Returns a payload of fields; ints become u64."""
    out = bytearray()
    for tag, value in pairs:
        data = value.to_bytes(8, "little") if isinstance(value, int) else value
        out += bytes((tag,)) + len(data).to_bytes(4, "little") + data
    return bytes(out)


def parse_fields(payload: bytes) -> dict[int, list[bytes]]:
    """Returns tag -> values in order; ValueError for a length that runs past the end."""
    out: dict[int, list[bytes]] = {}
    at = 0
    while at < len(payload):
        length = int.from_bytes(payload[at + 1 : at + 5], "little")
        end = at + 5 + length
        if at + 5 > len(payload) or end > len(payload):
            raise ValueError("a field runs past the end")
        out.setdefault(payload[at], []).append(payload[at + 5 : end])
        at = end
    return out


class Splitter:
    """Cuts a byte stream into frames; ValueError for a wrong magic, version or length."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Takes bytes, returns the frames that are complete."""
        self._held += data
        out = []
        while len(self._held) >= HEADER:
            head = bytes(self._held[:HEADER])
            length = int.from_bytes(head[12:16], "little")
            if head[:3] != MAGIC.to_bytes(2, "little") + b"\x01" or length > PAYLOAD_MAX:
                raise ValueError("not a frame")
            if len(self._held) < HEADER + length:
                break
            payload = bytes(self._held[HEADER : HEADER + length])
            del self._held[: HEADER + length]
            generation, stream = (int.from_bytes(head[at : at + 4], "little") for at in (4, 8))
            out.append(Frame(head[3], generation, stream, payload))
        return out
