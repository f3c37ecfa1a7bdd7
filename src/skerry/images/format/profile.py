"""A profile: which chunks of a data blob a first run touched, in that order."""

from __future__ import annotations

import struct
from array import array
from typing import Final

PROFILE: Final = ".profile"  # what it is called after the blob's name, in stores and on nodes
PROFILE_CHUNKS_MAX: Final = 1 << 16
_HEAD: Final = struct.Struct("<8sII")
_MAGIC: Final = b"SKTOUCH1"


def encode_profile(chunks: array[int]) -> bytes:
    """Returns a profile: the chunks in the order in which they were first touched."""
    return _HEAD.pack(_MAGIC, 1, len(chunks)) + chunks.tobytes()


def is_profile(data: bytes) -> bool:
    """Says whether this has the form of a profile; it has no digest, so chunks may be wrong."""
    if len(data) < _HEAD.size:
        return False
    magic, version, length = _HEAD.unpack_from(data)
    return bool(magic == _MAGIC and version == 1 and len(data) == _HEAD.size + 4 * length)


def decode_profile(data: bytes, count: int) -> list[int]:
    """Returns the chunks of a profile of a blob with `count` chunks; [] if it is none."""
    if not is_profile(data):
        return []
    chunks = array("I", data[_HEAD.size :])
    return list(dict.fromkeys(chunks)) if all(chunk < count for chunk in chunks) else []


def profile_bytes_max() -> int:
    """Returns how long a profile may be."""
    return _HEAD.size + 4 * PROFILE_CHUNKS_MAX
