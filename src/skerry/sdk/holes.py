"""Files with holes, in GNU tar's sparse format 1.0.

A map in decimal lines (count, then offset and size of each piece), filled to a block of 512 bytes, then
the pieces' bytes. The last piece is empty and lies at the file's size. The format stands in the manual
of GNU tar, appendix "Sparse Formats"; native/PROTOCOL.md says where it is used.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator

from skerry.errors import SandboxFailed

BLOCK = 512
CHUNK = 1 << 20
PIECES_MAX = 1 << 15
WORTH = 65_536  # fewer missing bytes are sent as zeros
_LINE_BYTES_MAX = 20

Pieces = list[tuple[int, int]]
Reader = Callable[[int], bytes]


def may_have_holes(status: os.stat_result) -> bool:
    """Returns whether a file takes up less than its size."""
    return status.st_blocks * 512 + WORTH <= status.st_size


def find_pieces(fd: int, size: int) -> Pieces:
    """Returns (offset, size) of what holds data, and an empty one at the end."""
    pieces: Pieces = []
    at = 0
    while at < size and len(pieces) < PIECES_MAX - 2:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            at = size  # only a hole is left
            break
        if start >= size:
            at = size
            break
        end = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        pieces.append((start, end - start))
        at = end
    if at < size:
        pieces.append((at, size - at))
    pieces.append((size, 0))
    return pieces


def encode_map(pieces: Pieces) -> bytes:
    """Returns the map, filled to a block."""
    numbers = [len(pieces), *(number for piece in pieces for number in piece)]
    text = b"".join(b"%d\n" % number for number in numbers)
    return text + bytes(-len(text) % BLOCK)


def read_pieces(fd: int, pieces: Pieces) -> Iterator[bytes]:
    """Yields the bytes of the pieces; zeros for what is no longer there."""
    for offset, size in pieces:
        left = size
        while left:
            data = os.pread(fd, min(CHUNK, left), offset + size - left) or bytes(min(CHUNK, left))
            left -= len(data)
            yield data


def decode_map(read: Reader, size_max: int | None = None) -> tuple[Pieces, int]:
    """Returns the pieces of a map that a sandbox sent, and its length in bytes.

    `read` gives exactly as many bytes as asked for. Raises SandboxFailed for what is no map, or one
    that reaches beyond `size_max`.
    """
    buffer = b""
    used = at = 0

    def number() -> int:
        nonlocal buffer, used, at
        while (end := buffer.find(b"\n", at)) < 0:
            if len(buffer) - at > _LINE_BYTES_MAX:
                raise SandboxFailed("the sandbox sent a file with a damaged map of its holes")
            buffer = buffer[at:] + read(BLOCK)
            used += BLOCK
            at = 0
        digits, at = buffer[at:end], end + 1
        if not digits.isdigit() or len(digits) > _LINE_BYTES_MAX - 1:
            raise SandboxFailed("the sandbox sent a file with a damaged map of its holes")
        return int(digits)

    count = number()
    if count > PIECES_MAX:
        raise SandboxFailed(f"the sandbox sent a file of {count} pieces")
    pieces: Pieces = []
    before = 0
    for _ in range(count):
        offset, size = number(), number()
        if offset < before or (size_max is not None and offset + size > size_max):
            raise SandboxFailed("the sandbox sent a file whose pieces are not in order")
        before = offset + size
        pieces.append((offset, size))
    return pieces, used
