"""A START in as many frames as it needs: one, or one and the MORE frames behind it."""

from __future__ import annotations

from typing import Final

from skerry.errors import InvalidRequest
from skerry.wire import guest, streams
from skerry.wire.fields import FieldBuilder
from skerry.wire.frames import PAYLOAD_BYTES_MAX, Tag, encode_frame

START_MORE_MAX: Final = 1 << 21  # bytes of a START's fields that may come in MORE frames


def takes_long(version: str) -> bool:
    """Returns whether an agent of that version knows MORE, HOLD, NO_OUTPUT_MS and SCRIPT (0.2)."""
    return _minor(version) >= 2


def takes_merge(version: str) -> bool:
    """Returns whether an agent of that version knows MERGE (0.3)."""
    return _minor(version) >= 3


def takes_cells(version: str) -> bool:
    """Returns whether an agent of that version knows cells, calls and what belongs to them (0.4)."""
    return _minor(version) >= 4


def _minor(version: str) -> int:
    minor = version.split(".")[1:2]
    return int(minor[0]) if minor and minor[0].isdecimal() else 0


def encode_start(message: guest.Start, generation: int, handle: int) -> bytes:
    """Returns the frames of a START, one or several; InvalidRequest if they would be too many."""
    payload = message.payload()
    stream = streams.operation_stream(handle, streams.CONTROL)
    if len(payload) <= PAYLOAD_BYTES_MAX:
        return encode_frame(guest.Start.CODE, generation, stream, payload)
    head = PAYLOAD_BYTES_MAX - 13  # room for the field that announces the rest
    more = len(payload) - head
    if more > START_MORE_MAX:
        raise InvalidRequest(f"argv and env: {len(payload)} bytes are too many for one command")
    first = FieldBuilder().u64(Tag.MORE, more).payload() + payload[:head]
    frames = [encode_frame(guest.Start.CODE, generation, stream, first)]
    frames += (
        encode_frame(guest.More.CODE, generation, stream, payload[at : at + PAYLOAD_BYTES_MAX])
        for at in range(head, len(payload), PAYLOAD_BYTES_MAX)
    )
    return b"".join(frames)
