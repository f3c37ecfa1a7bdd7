"""Transfers that tell their end, or their failure: what comes out of a sandbox can fail midway.

A body that only breaks off does not say whose fault it is, and a program inside could so pass its own
doing (it killed the file helper) off as the platform's. Who accepts PIECES gets the bytes in pieces,
each behind a u32 (little-endian) length; 0 is the end, FAILED is followed by an ErrorBody (msgpack)
up to the end of the body. What stops without either was cut on its way.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import msgspec

from skerry.errors import SkerryError
from skerry.wire.http import ErrorBody

PIECES: Final = "application/x-skerry-pieces"
FAILED: Final = 0xFFFF_FFFF
ERROR_BYTES_MAX: Final = 1 << 16

_LENGTH = struct.Struct("<I")
END: Final = _LENGTH.pack(0)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ErrorBody).decode


def head_of(piece: bytes) -> bytes:
    """Returns what goes before a piece, which is not empty."""
    return _LENGTH.pack(len(piece))


def failed(error: SkerryError) -> bytes:
    """Returns the end of a transfer that failed."""
    return _LENGTH.pack(FAILED) + _encode(ErrorBody.of(error))


class PieceReader:
    """Takes a transfer apart; `ended` once its end has come. It holds no more than a length."""

    def __init__(self) -> None:
        self.ended = False
        self._head = bytearray()
        self._left = 0  # of the piece that has begun
        self._error: bytearray | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields the bytes of pieces in it; what comes behind the end is not looked at."""
        at = 0
        while at < len(data) and not self.ended:
            if self._error is not None:
                self._error += data[at : at + ERROR_BYTES_MAX - len(self._error)]
                return
            if self._left:
                piece = data[at : at + self._left] if at or len(data) > self._left else data
                at += len(piece)
                self._left -= len(piece)
                yield piece
                continue
            taken = data[at : at + 4 - len(self._head)]
            at += len(taken)
            self._head += taken
            if len(self._head) == 4:
                self._begin(_LENGTH.unpack(self._head)[0])
                self._head.clear()

    def error(self) -> SkerryError | None:
        """Returns why it failed, once its body is over; None if it did not, or does not say."""
        if self._error is None:
            return None
        try:
            return _decode(self._error).to_error()
        except msgspec.DecodeError:
            return None

    def _begin(self, length: int) -> None:
        if length == FAILED:
            self._error = bytearray()
        elif length:
            self._left = length
        else:
            self.ended = True
