"""The C library's heap in a process that lives for long and has many threads."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Final

_MMAP_THRESHOLD: Final = -3  # names of <malloc.h>
_ARENA_MAX: Final = -8

ARENAS_MAX: Final = 2
# From here on a buffer is a mapping of its own, which is gone with it. By itself glibc raises this to
# the largest buffer that was ever freed, up to 32 MiB, and what is smaller leaves holes in the heap.
MAPPED_BYTES: Final = 256 << 10


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
