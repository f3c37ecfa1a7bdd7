"""Which extended attributes a layer may hold, and their translation between user namespaces.

Kept: `user.*` but `user.overlay.*`, file capabilities, POSIX access lists. `trusted.*` is
overlayfs's own and never comes from outside. Ids inside values are host ids in an upper directory
and become those seen inside.
"""

from __future__ import annotations

import os
import struct

from skerry.errors import ImageBroken
from skerry.images.tree.entry import LAYER_IDS, show
from skerry.images.tree.notes import Notes

CAPABILITY = b"security.capability"
_ACLS = (b"system.posix_acl_access", b"system.posix_acl_default")
_BYTES_MAX = 16_384  # of one file, names and values
_CAP_V2, _CAP_V3, _CAP_VERSION = 0x02000000, 0x03000000, 0xFF000000
_ACL_WITH_ID = (0x02, 0x08)  # ACL_USER, ACL_GROUP


def clean_outside_xattrs(raw: dict[bytes, bytes], notes: Notes, path: bytes) -> dict[bytes, bytes]:
    """Returns the attributes of a file from outside that a layer may hold."""
    kept = {}
    for key, value in raw.items():
        if _is_users(key) or (key == CAPABILITY and _capability_version(value) == _CAP_V2):
            kept[key] = value
        elif key in _ACLS and (access := _inside_acl(value, 0, LAYER_IDS)) is not None:
            kept[key] = access
        else:
            notes.add("extended attributes dropped", path)
    return _checked(kept, path)


def read_xattrs(fd: int, uid_base: int, ids: int, path: bytes) -> dict[bytes, bytes]:
    """Returns the attributes of an open file of an upper or layer, as seen inside.

    `uid_base` is the host id of 0 inside, `ids` how many are mapped; what refers to ids beyond
    is left out. Raises ImageBroken if they take more than 16 KiB.
    """
    kept = {}
    for text in os.listxattr(fd):
        key = os.fsencode(text)
        if not _is_users(key) and key != CAPABILITY and key not in _ACLS:
            continue
        value: bytes | None = os.getxattr(fd, text)
        if key == CAPABILITY and value is not None:
            value = _inside_capability(value, uid_base, ids)
        elif key in _ACLS and value is not None:
            value = _inside_acl(value, uid_base, ids)
        if value is not None:
            kept[key] = value
    return _checked(kept, path)


def _is_users(key: bytes) -> bool:
    return key.startswith(b"user.") and not key.startswith(b"user.overlay.") and len(key) <= 255


def _checked(kept: dict[bytes, bytes], path: bytes) -> dict[bytes, bytes]:
    if sum(len(key) + len(value) for key, value in kept.items()) > _BYTES_MAX:
        raise ImageBroken(f"{show(path)}: more than {_BYTES_MAX} bytes of extended attributes")
    return kept


def _capability_version(value: bytes) -> int:
    if len(value) not in (20, 24):
        return 0
    version: int = struct.unpack_from("<I", value)[0] & _CAP_VERSION
    return version if len(value) == (20 if version == _CAP_V2 else 24) else 0


def _inside_capability(value: bytes, uid_base: int, ids: int) -> bytes | None:
    version = _capability_version(value)
    if version == _CAP_V2:
        return value
    if version != _CAP_V3:
        return None
    magic, *words, root = struct.unpack("<6I", value)
    if root == uid_base:  # root's inside: the plain form means the same in a layer
        return struct.pack("<5I", magic & ~_CAP_VERSION | _CAP_V2, *words)
    if uid_base < root < uid_base + ids:
        return struct.pack("<6I", magic, *words, root - uid_base)
    return None


def _inside_acl(value: bytes, uid_base: int, ids: int) -> bytes | None:
    if len(value) < 4 or (len(value) - 4) % 8 or struct.unpack_from("<I", value)[0] != 2:
        return None
    out = [value[:4]]
    for tag, permissions, who in struct.iter_unpack("<HHI", value[4:]):
        if tag in _ACL_WITH_ID:
            if not uid_base <= who < uid_base + ids:
                continue
            who -= uid_base  # noqa: PLW2901
        out.append(struct.pack("<HHI", tag, permissions, who))
    return b"".join(out)
