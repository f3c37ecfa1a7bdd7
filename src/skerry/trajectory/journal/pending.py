"""What has to reach the disk so that records survive the loss of the host; done in another thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from skerry.errors import StorageFailed
from skerry.trajectory.journal.table import Segment


class Pending:
    """One sync: made in the journal's thread, carried out in any, once."""

    def __init__(
        self,
        behind: Iterable[Segment],
        newest: Segment | None,
        directory: str | None,
        failed: Callable[[OSError], None],
    ) -> None:
        """`behind` are the segments that are not on the disk; `directory` is not if it is named."""
        # Descriptors of its own: the journal may delete a segment, and close it, meanwhile.
        self._files = [(segment, os.dup(segment.fd)) for segment in behind]
        self._newest, self._directory, self._failed = newest, directory, failed

    def carry_out(self) -> None:
        """Blocks until it is done; raises StorageFailed."""
        try:
            for segment, fd in self._files:
                os.fdatasync(fd)
                segment.synced = segment is not self._newest
            if self._directory is not None:
                fd = os.open(self._directory, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
        except OSError as error:
            self._failed(error)
            raise StorageFailed(f"cannot sync the journal: {error.strerror}") from error
        finally:
            self._close()

    def drop(self) -> None:
        """It is not carried out: the next one has to do all of it."""
        self._failed(OSError(0, "not tried"))
        self._close()

    def _close(self) -> None:
        for _, fd in self._files:
            os.close(fd)
        self._files.clear()
