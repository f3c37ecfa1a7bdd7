"""What a compiler made, between its cell and the cell in which it runs with a device.

The bytes are an archive that one guest agent makes of hostile files and another one unpacks: nothing
here looks into it. Small ones lie in memory, larger ones in files without a name: no kill leaves one.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from typing import IO, Final

from skerry.errors import Bug, Overloaded, StorageFailed

MEMORY_BYTES: Final = 1 << 20  # of one that lies in memory
PIECE_BYTES: Final = 128 << 10
RETRY_S: Final = 2.0


class Artifacts:
    """Those of a node. Invariant: `bytes` is what all that are open hold, and at most `bytes_max`."""

    def __init__(self, directory: str, *, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max
        self.taken = 0
        self._directory = directory

    async def take(self, pieces: AsyncIterator[bytes]) -> Artifact:
        """Returns what the pieces come to, for the caller to close.

        Raises Overloaded (limit "function artifacts") if all together are too large, StorageFailed if
        the disk does not take it; then nothing of it is left.
        """
        artifact = Artifact(self, self._directory)
        try:
            async for piece in pieces:
                await artifact.write(piece)
        except BaseException:
            artifact.close()
            raise
        self.taken += 1
        return artifact

    def more(self, count: int) -> None:
        """So many bytes come; Overloaded if that is too much."""
        if self.bytes + count > self.bytes_max:
            raise Overloaded(
                f"function artifacts: programs that wait for a device hold {self.bytes} of "
                f"{self.bytes_max} bytes",
                limit="function artifacts",
                used=self.bytes,
                maximum=self.bytes_max,
                retry_after_s=RETRY_S,
            )
        self.bytes += count

    def less(self, count: int) -> None:
        """So many have gone."""
        self.bytes -= count
        if self.bytes < 0:
            raise Bug("artifacts hold less than nothing")


class Artifact:
    """The bytes of one call, which may be read again."""

    def __init__(self, owner: Artifacts, directory: str) -> None:
        self.size = 0
        self._owner = owner
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - `close` closes it
            max_size=MEMORY_BYTES, dir=directory
        )
        self._closed = False

    async def write(self, piece: bytes) -> None:
        """Adds a piece."""
        self._owner.more(len(piece))
        self.size += len(piece)
        try:
            if self.size <= MEMORY_BYTES:
                self._file.write(piece)
            else:
                await asyncio.to_thread(self._file.write, piece)
        except OSError as error:
            raise StorageFailed(f"cannot keep what was compiled: {error.strerror}") from error

    async def pieces(self) -> AsyncGenerator[bytes]:
        """Yields all of it, from the beginning."""
        at = 0
        while at < self.size:
            piece = await asyncio.to_thread(self._read, at)
            if not piece:
                raise StorageFailed("what was compiled is lost: its file is too short")
            at += len(piece)
            yield piece

    def _read(self, at: int) -> bytes:
        try:
            self._file.seek(at)
            return self._file.read(PIECE_BYTES)
        except OSError as error:
            raise StorageFailed(f"what was compiled is lost: {error.strerror}") from error

    def close(self) -> None:
        """Nothing of it is left; idempotent."""
        if not self._closed:
            self._closed = True
            self._owner.less(self.size)
            self._file.close()
