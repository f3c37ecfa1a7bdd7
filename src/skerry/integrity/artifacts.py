"""What a task declares as its submission, out of all that an audit kept. Pure."""

from __future__ import annotations

import posixpath

import msgspec

from skerry.integrity.audit import Audit, Dropped
from skerry.spec.files import Change, FileType
from skerry.spec.task import TaskSpec, is_within

RULE = "undeclared"


def declared(found: Audit, task: TaskSpec) -> Audit:
    """Returns the audit with only the declared artifacts kept; all of it if none are declared.

    Evidence stays, wherever it was found. A link that is an artifact, or leads out of all of them, is
    dropped: what it shows is not what was declared.
    """
    if not task.submission.artifacts:
        return found
    roots = [f"{task.workdir}/{path}" for path in task.submission.artifacts]
    kept: list[Change] = []
    dropped = list(found.dropped)
    for change in found.kept:
        why = _why_not(change, roots)
        if why:
            dropped.append(Dropped(change.path, why, RULE))
        else:
            kept.append(change)
    deleted: list[str] = []
    for path in found.deleted:
        if _within(path, roots):
            deleted.append(path)
        else:
            dropped.append(Dropped(path, "deleted, and no declared artifact", RULE))
    return msgspec.structs.replace(
        found, kept=tuple(kept), deleted=tuple(deleted), dropped=tuple(dropped)
    )


def _why_not(change: Change, roots: list[str]) -> str:
    if change.type is FileType.DIRECTORY and any(is_within(root, change.path) for root in roots):
        return ""  # above an artifact
    if not _within(change.path, roots):
        return "no declared artifact"
    if change.type is not FileType.SYMLINK:
        return ""
    where = posixpath.dirname(change.path)
    target = posixpath.normpath(posixpath.join(where, change.target or ""))
    if change.path in roots or not change.target or not _within(target, roots):
        return "a link that leads out of the declared artifacts"
    return ""


def _within(path: str, roots: list[str]) -> bool:
    return any(is_within(path, root) for root in roots)
