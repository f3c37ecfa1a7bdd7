"""The files of segments to come: preallocated, and made ahead of need where somebody waits for syncs."""

from __future__ import annotations

import contextlib
import os
from typing import Final, NamedTuple

from skerry.errors import StorageFailed
from skerry.trajectory.format.segment import UNNUMBERED, Header, encode_header, segment_path

_ZEROS: Final = bytes(1 << 18)


class Spare(NamedTuple):
    """A preallocated file that is no segment yet; nobody else writes to it."""

    fd: int
    path: str
    zeroed: bool

    def drop(self) -> None:
        """Removes it."""
        os.close(self.fd)
        with contextlib.suppress(OSError):
            os.unlink(self.path)


def make_segment(directory: str, header: Header, spare: Spare) -> int:
    """Makes a spare file a segment, or removes it; returns its descriptor. Raises StorageFailed."""
    path = segment_path(directory, header.number)
    try:
        os.pwrite(spare.fd, encode_header(header), 0)
        os.rename(spare.path, path)
    except OSError as error:
        spare.drop()
        raise StorageFailed(f"cannot make {path}: {error.strerror}") from error
    return spare.fd


def make_spare(directory: str, size: int, *, zeros: bool = False) -> Spare:
    """Makes a preallocated file for a segment to come.

    With `zeros` they are written out and on the disk: what is synced later is data only, where blocks
    that were never written would cost a transaction of the file system with each sync. Raises
    StorageFailed, and then there is none.
    """
    # A name of its own: one may be made in a thread while another is needed at once.
    path = os.path.join(directory, os.urandom(6).hex() + UNNUMBERED)
    spare = None
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        spare = Spare(fd, path, zeros)
        os.posix_fallocate(fd, 0, size)
        if zeros:
            for offset in range(0, size, len(_ZEROS)):
                os.pwrite(fd, _ZEROS[: size - offset], offset)
            os.fsync(fd)
    except OSError as error:
        if spare is not None:
            spare.drop()
        raise StorageFailed(f"cannot make a segment in {directory}: {error.strerror}") from error
    return spare
