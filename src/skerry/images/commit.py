"""From what a sandbox wrote to a layer that gives the same tree again on the same lowers.

Left out, so that answers and traces of the build do not leak into environments:

| where | what stays |
|---|---|
| /dev, /proc, /run, /sys | the directory: the sandbox's own mounts cover it |
| /tmp, /var/tmp, /root/.cache, /home/*/.cache | the directory, and deletions right in it |
| /var/cache/apt, /var/lib/apt/lists, /var/log/apt | the directory, and deletions right in it |
| shell, editor, pager and interpreter histories in /root and /home/* | deletions |
| `exclude` (prefixes given by the caller) | nothing: as if the sandbox had not touched it |

Also left out: sockets and devices (with a note), `user.overlay.*`, and whiteouts that hide
nothing, which would show as broken names where the layer is not merged with another.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from enum import Enum, auto

from skerry.errors import InvalidRequest
from skerry.images.copier import Copier
from skerry.images.diff import NOBODY, inside_id
from skerry.images.entry import Tree, make_whiteout
from skerry.images.notes import Notes
from skerry.images.scratch import Spool
from skerry.images.upper import UpperLimits, UpperView, walk_upper

_MOUNTS = re.compile(rb"(?:dev|proc|run|sys)/.+", re.DOTALL)
_RESIDUE = re.compile(
    rb"(?:tmp|var/tmp|var/cache/apt|var/lib/apt/lists|var/log/apt|(?:root|home/[^/]+)/\.cache)/.+"
    rb"|(?:root|home/[^/]+)/\.(?:bash|zsh|python|node_repl|psql|sqlite|less|ash)_?(?:history|hst)"
    rb"|(?:root|home/[^/]+)/\.(?:viminfo|wget-hsts)",
    re.DOTALL,
)


class _Rule(Enum):
    KEEP = auto()
    ONLY_DELETIONS = auto()
    NOTHING = auto()


def read_upper(
    view: UpperView, spool: Spool, notes: Notes, limits: UpperLimits, exclude: Sequence[str]
) -> Tree:
    """Returns the layer's tree, with its contents in the spool; the upper is not needed afterwards.

    Raises ImageBroken at a limit or if the upper changes meanwhile, InvalidRequest for a prefix
    that is not absolute, StorageFailed if the scratch disk is full.
    """
    prefixes = [_prefix(text) for text in exclude]

    def owners(info: os.stat_result, path: bytes) -> tuple[int, int, int]:
        uid, gid = inside_id(info.st_uid, view.uid_base), inside_id(info.st_gid, view.uid_base)
        if NOBODY in (uid, gid):
            notes.add("owned by nobody", path)
        return uid, gid, stat.S_IMODE(info.st_mode)

    copier = Copier(view.uid_base, owners, spool, notes, limits)
    for seen in walk_upper(view, limits):
        rule = _rule(seen.path, prefixes)
        if seen.stat is None:
            continue
        if rule is _Rule.NOTHING or (rule is _Rule.ONLY_DELETIONS and not seen.whiteout):
            seen.prune = True
        elif not seen.whiteout:
            copier.place(seen.path, seen, seen.stat)
        elif seen.lower is not None and not seen.hides_below:
            copier.tree.put(seen.path, make_whiteout())
    return copier.tree


def _prefix(text: str) -> bytes:
    if not text.startswith("/") or not text.strip("/"):
        raise InvalidRequest(f"exclude: {text!r} is no absolute path below /")
    return os.fsencode(text).strip(b"/")


def _rule(path: bytes, prefixes: Sequence[bytes]) -> _Rule:
    if _MOUNTS.fullmatch(path):
        return _Rule.NOTHING
    if any(path == prefix or path.startswith(prefix + b"/") for prefix in prefixes):
        return _Rule.NOTHING
    return _Rule.ONLY_DELETIONS if _RESIDUE.fullmatch(path) else _Rule.KEEP
