"""Giving up rights for good: an own user id, no capability but to read, nothing to be gained by exec."""

from __future__ import annotations

import ctypes
import os
from typing import Final

from skerry.errors import Unavailable

BLOBS_UID: Final = 2_999_999_999  # nobody else's: just below those of the sandboxes' owners
_READ_SEARCH: Final = 2  # CAP_DAC_READ_SEARCH
_SET_DUMPABLE, _SET_KEEPCAPS, _SET_NAME, _SET_NO_NEW_PRIVS = 4, 8, 15, 38
_CAPBSET_READ, _CAPBSET_DROP = 23, 24
_VERSION_3: Final = 0x2008_0522
_CAP_LAST: Final = 63


def give_up(uid: int = BLOBS_UID) -> None:
    """Makes this process `uid`, which may read every file but write only its own.

    Without root nothing is given up, for nothing is there. Raises Unavailable if it cannot be done.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _prctl(libc, _SET_NO_NEW_PRIVS, 1)
    if os.geteuid() != 0:
        return
    for number in range(_CAP_LAST + 1):
        if libc.prctl(_CAPBSET_READ, number, 0, 0, 0) == 1:
            _prctl(libc, _CAPBSET_DROP, number)
    _prctl(libc, _SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    _prctl(libc, _SET_KEEPCAPS, 0)
    head = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    kept = 1 << _READ_SEARCH
    data = (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)
    if libc.capset(head, data) < 0:
        raise Unavailable(f"capset: {os.strerror(ctypes.get_errno())}")
    _prctl(libc, _SET_DUMPABLE, 0)  # others of this id may not trace it


def name_process(name: str) -> None:
    """Sets what `ps` calls this thread."""
    ctypes.CDLL(None).prctl(_SET_NAME, name.encode()[:15], 0, 0, 0)


def _prctl(libc: ctypes.CDLL, what: int, value: int) -> None:
    if libc.prctl(what, ctypes.c_ulong(value), 0, 0, 0) < 0:
        raise Unavailable(f"prctl {what}: {os.strerror(ctypes.get_errno())}")
