"""What the fake agent needs of `skerry.wire`, by short names: frames, and fields as plain data."""

from __future__ import annotations

from skerry.wire.fields import FieldBuilder
from skerry.wire.frames import Frame, ProtocolError, Tag
from skerry.wire.frames import FrameDecoder as Splitter
from skerry.wire.frames import GuestFrame as Code
from skerry.wire.frames import encode_frame as pack

_HEAD = 5


def pack_fields(pairs: list[tuple[int, int | bytes]]) -> bytes:
    """Returns a payload of fields; ints become u64."""
    out = FieldBuilder()
    for tag, value in pairs:
        if isinstance(value, int):
            out.u64(tag, value)
        else:
            out.raw(tag, value)
    return out.payload()


def parse_fields(payload: bytes) -> dict[int, list[bytes]]:
    """Returns tag -> values in order; ProtocolError for a length that runs past the end."""
    out: dict[int, list[bytes]] = {}
    at = 0
    while at < len(payload):
        end = at + _HEAD + int.from_bytes(payload[at + 1 : at + _HEAD], "little")
        if at + _HEAD > len(payload) or end > len(payload):
            raise ProtocolError("a field runs past the end")
        out.setdefault(payload[at], []).append(payload[at + _HEAD : end])
        at = end
    return out


__all__ = ["Code", "Frame", "Splitter", "Tag", "pack", "pack_fields", "parse_fields"]
