"""Chunk lists made again from the bytes of a data blob, for one whose list is lost or damaged.

A data blob's name commits to the digests of its chunks, so a list that comes to that name is right,
whoever made it. How long each zstd frame is, which no name commits to, is seen in the blob.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from typing import Final

import zstandard

from skerry.errors import LayerDamaged
from skerry.images.format.chunks import CHUNK_BYTES, ChunkList, ChunkListBuilder, Codec

_FRAME_BYTES_MAX: Final = CHUNK_BYTES + (CHUNK_BYTES >> 8) + 1024


def list_of(pieces: Iterable[bytes], codec: Codec) -> ChunkList:
    """Returns the list of a stored data blob with chunks of 256 KiB; what it names is to be looked at.

    Takes memory for a chunk, a piece, and 36 bytes a chunk. Raises LayerDamaged if the bytes are
    not frames of that codec.
    """
    if codec is Codec.NONE:
        builder = ChunkListBuilder()
        for piece in pieces:
            builder.add(piece)
        return builder.finish()
    return _list_of_frames(pieces)


def _list_of_frames(pieces: Iterable[bytes]) -> ChunkList:
    digests, lengths, size = bytearray(), array("I"), 0
    rest = bytearray()
    for piece in pieces:
        rest += piece
        # One that is as long as a frame may be holds a whole one.
        while len(rest) >= _FRAME_BYTES_MAX:
            size += _frame(rest, digests, lengths)
    while rest:
        size += _frame(rest, digests, lengths)
    return ChunkList(size, bytes(digests), Codec.ZSTD, lengths)


def _frame(rest: bytearray, digests: bytearray, lengths: array[int]) -> int:
    """Takes the first frame off; returns the length of its content."""
    head = bytes(rest[:_FRAME_BYTES_MAX])
    try:
        # Asked first: the decompressor would give whatever the frame says.
        if not 0 < zstandard.frame_content_size(head) <= CHUNK_BYTES:
            raise LayerDamaged(f"frame {len(lengths)} is of no chunk")
        reader = zstandard.ZstdDecompressor(max_window_size=CHUNK_BYTES * 2).decompressobj()
        content = reader.decompress(head)
        whole = reader.eof
    except zstandard.ZstdError as error:
        raise LayerDamaged(f"frame {len(lengths)}: {error}") from error
    if not whole:
        raise LayerDamaged(f"frame {len(lengths)} is cut off")
    length = len(head) - len(reader.unused_data)
    digests += hashlib.sha256(content).digest()
    lengths.append(length)
    del rest[:length]
    return len(content)
