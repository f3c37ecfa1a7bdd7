"""Long contents by their digest: of a node that lives here, and of a store."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from typing import Final

from skerry.errors import InvalidRequest, LayerDamaged, NotFound, StorageFailed
from skerry.trajectory.format.store import BLOBS, Shelf

PIECE_BYTES: Final = 1 << 20
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def check_digest(text: str) -> str:
    """Returns the digest if it is one; raises InvalidRequest."""
    if _DIGEST.fullmatch(text) is None:
        raise InvalidRequest(f"{text[:80]!r} is no sha256: 64 hexadecimal digits")
    return text


class Blobs:
    """Contents by digest. All calls block; they may be made from several threads."""

    def __init__(self, directory: str | None, shelf: Shelf | None) -> None:
        self._directory = directory
        self._shelf = shelf

    def read(self, digest: str, offset: int, length: int) -> bytes:
        """Returns a part of a content; less only at its end; raises NotFound, StorageFailed."""
        check_digest(digest)
        if self._directory is not None:
            path = os.path.join(self._directory, digest)
            try:
                with open(path, "rb", buffering=0) as file:
                    return os.pread(file.fileno(), length, offset)
            except FileNotFoundError:
                pass
            except OSError as error:
                raise StorageFailed(f"cannot read {path}: {error.strerror}") from error
        if self._shelf is None:
            raise NotFound(f"no content {digest} is kept")
        try:
            return self._shelf.read(BLOBS + digest, offset, length)
        except NotFound:
            raise NotFound(f"no content {digest} is kept") from None

    def pieces(self, digest: str) -> Iterator[bytes]:
        """Yields a content in pieces, and raises LayerDamaged at its end if it is another one."""
        check, offset = hashlib.sha256(), 0
        while piece := self.read(digest, offset, PIECE_BYTES):
            check.update(piece)
            offset += len(piece)
            yield piece
        if check.hexdigest() != digest:
            raise LayerDamaged(f"the content {digest} was changed", digest=digest)
        if offset == 0:
            yield b""
