"""Keeps the disk blocks under the metadata of a btrfs image that is sparse.

The pool of uppers is a sparse file on the state directory's disk. Once that disk is full, a write of the
pool that needs a new block fails. For what sandboxes wrote that is an error of one file; for metadata
the kernel aborts the transaction and makes the whole pool read-only until it is mounted again, which
takes every sandbox of the node with it. So what btrfs uses for metadata is allocated beforehand: the
chunks are found in the chunk tree (linux/btrfs_tree.h) and given blocks (fallocate(2)). Blocks of
metadata are not discarded while their chunk is in use, so they stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import logging
import os
import struct
from collections.abc import Callable, Iterator

LOOK_EVERY_S = 5.0  # btrfs adds a chunk, of hundreds of MiB, when the last one is nearly full
TREE_SEARCH = 0xD0009411  # _IOWR(0x94, 17, 4096 bytes)
CHUNK_TREE, CHUNKS, CHUNK_ITEM = 3, 256, 228
SYSTEM, METADATA = 2, 4  # of a chunk's type
TOP = (1 << 64) - 1
FALLOC_FL_KEEP_SIZE = 1
# What no chunk holds: the start with the first super block, and the second one.
FIXED = ((0, 1 << 20), (64 << 20, 64 << 10))
_KEY = struct.Struct("<7Q4I4Q")
_HEADER = struct.Struct("<3Q2I")
_CHUNK = struct.Struct("<4Q3I2H")
_STRIPE = struct.Struct("<2Q16s")

Extent = tuple[int, int]  # offset and length in the image


class Backing:
    """One image and where it is mounted; `mounted` may change with the launcher."""

    def __init__(self, image: str, mounted: Callable[[], str], log: logging.Logger) -> None:
        self._image, self._mounted, self._log = image, mounted, log
        self._done: set[Extent] = set()
        self._closing = asyncio.Event()
        self._short = False

    async def keep(self) -> None:
        """Looks every few seconds until `close`."""
        while not self._closing.is_set():
            await asyncio.to_thread(self.secure)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._closing.wait()

    async def close(self) -> None:
        """Ends `keep`."""
        self._closing.set()

    def secure(self) -> None:
        """Gives blocks to each extent of metadata that is new; blocks, for milliseconds.

        What cannot be done, for the disk is full already, is logged once and tried again.
        """
        try:
            wanted = {*FIXED, *metadata(self._mounted())} - self._done
        except OSError:
            return  # the launcher is being restarted
        if not wanted:
            return
        try:
            handle = os.open(self._image, os.O_RDWR | os.O_CLOEXEC)
            try:
                for extent in sorted(wanted):
                    _allocate(handle, extent)
                    self._done.add(extent)
            finally:
                os.close(handle)
            self._short = False
        except OSError as error:
            if not self._short and not self._closing.is_set():
                self._short = True
                self._log.warning("metadata of %s has no blocks of its own: %s", self._image, error)


def metadata(mounted: str) -> list[Extent]:
    """Returns where a mounted btrfs keeps metadata on its one device; OSError if it is none."""
    handle = os.open(mounted, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found: list[Extent] = []
        at = 0
        while True:
            key = _KEY.pack(
                CHUNK_TREE,
                CHUNKS,
                CHUNKS,
                at,
                TOP,
                0,
                TOP,
                CHUNK_ITEM,
                CHUNK_ITEM,
                1 << 16,
                *[0] * 5,
            )
            buffer = bytearray(key.ljust(4096, b"\0"))
            fcntl.ioctl(handle, TREE_SEARCH, buffer)
            items = list(_items(buffer))
            if not items:
                return found
            for logical, item in items:
                found += _extents(item)
                at = logical + 1
    finally:
        os.close(handle)


def _items(buffer: bytearray) -> Iterator[tuple[int, bytes]]:
    """Gives (offset of the key, content) of each item of an answer."""
    count = _KEY.unpack_from(buffer)[9]
    place = _KEY.size
    for _ in range(count):
        _, _, offset, _, length = _HEADER.unpack_from(buffer, place)
        place += _HEADER.size
        yield offset, bytes(buffer[place : place + length])
        place += length


def _extents(chunk: bytes) -> Iterator[Extent]:
    length, _, _, kind, _, _, _, stripes, _ = _CHUNK.unpack_from(chunk)
    if kind & (SYSTEM | METADATA):
        for number in range(stripes):
            _, offset, _ = _STRIPE.unpack_from(chunk, _CHUNK.size + number * _STRIPE.size)
            yield offset, length


def _allocate(handle: int, extent: Extent) -> None:
    # Not os.posix_fallocate: where the file system has no such call, glibc writes into the file.
    libc = ctypes.CDLL(None, use_errno=True)
    offset, length = map(ctypes.c_int64, extent)
    if libc.fallocate(handle, FALLOC_FL_KEEP_SIZE, offset, length):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
