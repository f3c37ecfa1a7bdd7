"""What a subvolume takes, as simple quotas count it: what was written into it and is still there.

An extent counts for the subvolume that wrote it, and for no copy of that (linux/btrfs_tree.h).
"""

from __future__ import annotations

import fcntl
import os
import struct

TREE_SEARCH = 0xD0009411  # _IOWR(0x94, 17, 4096 bytes)
INO_LOOKUP = 0xD0009412
QUOTA_TREE, QGROUP_INFO, FIRST_INODE = 8, 242, 256
_KEY = struct.Struct("<7Q4I4Q")
_HEADER_BYTES = 32
_TOP = (1 << 64) - 1


def used_bytes(path: str) -> int:
    """Returns what was written into the subvolume at a path, as of the last commit of its disk.

    0 where nothing is counted; OSError if there is no such subvolume.
    """
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        number = _subvolume(handle)
        key = (QUOTA_TREE, 0, 0, number, number, 0, _TOP, QGROUP_INFO, QGROUP_INFO, 1)
        buffer = bytearray(_KEY.pack(*key, *[0] * 5).ljust(4096, b"\0"))
        try:
            fcntl.ioctl(handle, TREE_SEARCH, buffer)
        except FileNotFoundError:
            return 0  # quotas were never on
        if not _KEY.unpack_from(buffer)[9]:
            return 0
        # The item begins with its generation; what is referenced follows.
        return int(struct.unpack_from("<Q", buffer, _KEY.size + _HEADER_BYTES + 8)[0])
    finally:
        os.close(handle)


def _subvolume(handle: int) -> int:
    buffer = bytearray(struct.pack("<2Q", 0, FIRST_INODE).ljust(4096, b"\0"))
    fcntl.ioctl(handle, INO_LOOKUP, buffer)
    return int(struct.unpack_from("<Q", buffer)[0])
