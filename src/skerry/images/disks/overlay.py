"""What was written to a disk on this node since a snapshot: one sparse file, and which blocks count.

    N.data    as large as the disk; a block (4 KiB) that is marked is that of the disk, a hole is zeros
    N.live    a byte a block, 1: marked; written before a write is answered
    N.safe    the same as of the last flush

What holds after a crash:

- Of the process, by whatever signal: everything that was answered, whether flushed or not. Data goes
  first and the mark second, both into the kernel's memory, which outlives the process. A write that
  was cut off had no answer; the kernel asks again for it.
- Of the host: everything answered before a flush that was answered. `N.live` may then be ahead of the
  data on the disk, so it is not believed; `N.safe` is, for its marks are written only once the
  data is on the disk. Marks are never taken back, so any part of an interrupted write of them is
  right. A block written later is old or new, as on any disk without power.
- A full disk: the write is answered ENOSPC, and the blocks are what they were.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Final

from skerry.images.scratch import storage_errors
from skerry.images.sparse import extents, punch

BLOCK_BYTES: Final = 4096
_PAGE: Final = 4096  # marks that are flushed together: 16 MiB of the disk


class Overlay:
    """For many threads; its files are closed when nobody has it any more.

    Who writes sees to it that nobody else writes to the same unmarked block at the same time.
    """

    def __init__(self, directory: str, number: int, size: int, *, same_boot: bool = True) -> None:
        """Opens the files, made if they are not there; `same_boot`: the host did not stop since."""
        self.number, self.size = number, size
        self._paths = [os.path.join(directory, f"{number}.{part}") for part in _PARTS]
        with storage_errors(f"opening {self._paths[0]}"):
            self._data, self._live, self._safe = (self._open(path) for path in self._paths)
            os.ftruncate(self._data, size)
            self.marks = self._read_marks(same_boot)
        self._dirty: set[int] = {
            page
            for page in range(-(-len(self.marks) // _PAGE))
            if self.marks.find(1, page * _PAGE, (page + 1) * _PAGE) >= 0
        }
        self._written = True  # since the last flush; what an earlier process did is not known
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._failed = False

    @property
    def handle(self) -> int:
        """The data file."""
        return self._data

    def is_marked(self, first: int, end: int) -> bool:
        """Says whether all these blocks are the overlay's."""
        return self.marks.find(0, first, end) < 0

    def any_marked(self, first: int, end: int) -> bool:
        """Says whether any of these blocks is."""
        return self.marks.find(1, first, end) >= 0

    def runs(self, first: int, end: int) -> Iterator[tuple[int, int, bool]]:
        """Gives runs of blocks: first, end, whether they are the overlay's."""
        while first < end:
            ours = self.marks[first] == 1
            stop = self.marks.find(0 if ours else 1, first, end)
            stop = end if stop < 0 else stop
            yield first, stop, ours
            first = stop

    def write(self, offset: int, data: memoryview) -> None:
        """Takes whole blocks; raises OSError, and then no block is marked that was not."""
        done = 0
        while done < len(data):
            done += os.pwrite(self._data, data[done:], offset + done)
        self._mark(offset // BLOCK_BYTES, (offset + len(data)) // BLOCK_BYTES)

    def zero(self, offset: int, length: int) -> None:
        """Makes whole blocks zeros, and frees their room; raises OSError."""
        punch(self._data, offset, length)
        self._mark(offset // BLOCK_BYTES, (offset + length) // BLOCK_BYTES)

    def flush(self) -> None:
        """Everything answered before is on the disk; raises OSError, and from then on always."""
        with self._flushing:
            if self._failed:
                raise OSError(errno.EIO, "an earlier flush failed")
            with self._lock:
                if not self._written:
                    return
                self._written = False
                pages, self._dirty = self._dirty, set()
                marks = {page: self.marks[page * _PAGE : (page + 1) * _PAGE] for page in pages}
            try:
                os.fdatasync(self._data)
                for page, content in marks.items():
                    os.pwrite(self._safe, content, page * _PAGE)
                if marks:
                    os.fdatasync(self._safe)
            except OSError:
                # The kernel may have dropped what it could not write: nobody may rely on it again.
                self._failed = True
                raise

    def next_data(self, offset: int) -> int:
        """Returns where from here on there may be anything but zeros; the disk's end if nowhere."""
        try:
            return os.lseek(self._data, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return self.size

    def used_bytes(self) -> int:
        """Returns the room that the data takes."""
        return os.fstat(self._data).st_blocks * 512

    def remove(self) -> None:
        """Removes the files; who has them open may go on reading."""
        for path in self._paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    # --- inner parts ---

    def _mark(self, first: int, end: int) -> None:
        fresh = self.marks.find(0, first, end) >= 0
        if fresh:
            ones = b"\1" * (end - first)
            os.pwrite(self._live, ones, first)
            self.marks[first:end] = ones
        with self._lock:
            if fresh:
                self._dirty.update(range(first // _PAGE, (end - 1) // _PAGE + 1))
            self._written = True

    def _open(self, path: str) -> int:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        weakref.finalize(self, os.close, handle)
        return handle

    def _read_marks(self, same_boot: bool) -> bytearray:
        count = self.size // BLOCK_BYTES
        for handle in (self._live, self._safe):
            os.ftruncate(handle, count)
        marks = bytearray(count)
        believed = self._live if same_boot else self._safe
        for start, end in extents(believed):
            view = memoryview(marks)[start:end]
            while view and (got := os.preadv(believed, [view], end - len(view))):
                view = view[got:]
        if not same_boot:
            os.ftruncate(self._live, 0)
            os.ftruncate(self._live, count)
            for start, end in extents(self._safe):
                os.pwrite(self._live, memoryview(marks)[start:end], start)
        return marks


_PARTS: Final = ("data", "live", "safe")
