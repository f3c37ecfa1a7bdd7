"""The C library's heap in a process that lives for long and has many threads."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Final

_TRIM_THRESHOLD: Final = -1  # names of <malloc.h>
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8

ARENAS_MAX: Final = 2
# From here on a buffer is a mapping of its own, which is gone with it: segments and indices are read by
# the megabyte. By itself glibc raises this to the largest buffer that was ever freed, up to 32 MiB, and
# what is smaller leaves holes in the heap. Pieces of files are below it: a mapping for each of 256 KiB
# would cost more than the copying of it.
MAPPED_BYTES: Final = 1 << 20
# Free memory at the heap's end goes back beyond this. It holds some pieces, else each would be
# given back and had again.
SPARE_BYTES: Final = 4 << 20


def bound_heap() -> None:
    """Threads share two arenas from here on, and large buffers go back to the host when they are freed.

    glibc gives each thread an arena of its own, up to eight a processor, and gives hardly anything of
    one back: a node's dozen threads kept 50 MiB for 12 MiB in use. They hold the interpreter's lock
    while they allocate, so they do not wait for each other. To be called before threads are started.
    Does nothing where the C library knows no such options.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_ARENA_MAX, ARENAS_MAX)
        mallopt(_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(_TRIM_THRESHOLD, SPARE_BYTES)
