"""Digests of contents as a diff tells them. Pure.

`sha256:HEX` is that of all bytes. Of a file with large holes it is `sparse-sha256:HEX`, for a sum over
terabytes of nothing takes as long as one over something: that is the sha256 of the size and of each
page of 4 KiB that is not all zeros, each its number and then its bytes, with zeros behind the end. Size
and numbers are u64, little-endian. It follows from the content, not from where its holes are.
"""

from __future__ import annotations

import hashlib
from typing import Final, Protocol

PLAIN: Final = "sha256:"
SPARSE: Final = "sparse-sha256:"
PAGE_BYTES: Final = 4096
_ZEROS: Final = bytes(PAGE_BYTES)


class Digest(Protocol):
    """What is fed with a content, from its beginning to its end."""

    def update(self, data: bytes, /) -> None:
        """Takes the next bytes."""

    def text(self) -> str:
        """Returns the digest; nothing may be taken afterwards."""


class PlainDigest:
    """Of all bytes."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def update(self, data: bytes, /) -> None:
        """Takes the next bytes."""
        self._digest.update(data)

    def text(self) -> str:
        """Returns the digest."""
        return PLAIN + self._digest.hexdigest()


class SparseDigest:
    """Of the pages that hold something. What is never given is zeros."""

    def __init__(self, size: int) -> None:
        self._digest = hashlib.sha256(size.to_bytes(8, "little"))
        self._end = 0
        self._part = bytearray()  # of the page in which `_end` lies, from its beginning

    def update(self, data: bytes, /) -> None:
        """Takes the next bytes."""
        self.put(self._end, data)

    def put(self, offset: int, data: bytes) -> None:
        """Takes the bytes from an offset on, which is no smaller than where the last ones ended."""
        if offset > self._end:
            if offset // PAGE_BYTES != self._end // PAGE_BYTES:
                self._flush()
            self._part += bytes(offset % PAGE_BYTES - len(self._part))
        at, number = 0, offset // PAGE_BYTES
        if self._part:
            at = PAGE_BYTES - len(self._part)
            self._part += data[:at]
            if len(self._part) == PAGE_BYTES:
                self._flush_as(number)
                number += 1
        while len(data) - at >= PAGE_BYTES:
            self._page(number, data[at : at + PAGE_BYTES])
            at += PAGE_BYTES
            number += 1
        self._part += data[at:]
        self._end = offset + len(data)

    def text(self) -> str:
        """Returns the digest."""
        self._flush()
        return SPARSE + self._digest.hexdigest()

    def _flush(self) -> None:
        if self._part:
            self._flush_as(self._end // PAGE_BYTES)

    def _flush_as(self, number: int) -> None:
        self._page(number, bytes(self._part).ljust(PAGE_BYTES, b"\0"))
        self._part.clear()

    def _page(self, number: int, page: bytes) -> None:
        if page != _ZEROS:
            self._digest.update(number.to_bytes(8, "little"))
            self._digest.update(page)


def digest_like(known: str | None, size: int) -> Digest:
    """Returns what makes a digest of the kind of `known`, for a content of that size."""
    return SparseDigest(size) if known is not None and known.startswith(SPARSE) else PlainDigest()
