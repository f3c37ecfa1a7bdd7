"""Our own grading with its defences switched off: what cheats succeed against (decision 35)."""

from __future__ import annotations

from collections.abc import Iterable

from skerry.integrity.audit import Audit
from skerry.integrity.protected import Rules
from skerry.spec.files import Change, ChangeKind, FileType
from skerry.worker.verify import Guards

BLIND = {"sentinels": False, "fingerprint": False}


def keep_all(changes: Iterable[Change], rules: Rules) -> Audit:
    """An audit without rules: everything in the workdir is graded."""
    inside = [
        change
        for change in changes
        if rules.inside(change.path) and change.type in {FileType.FILE, FileType.DIRECTORY}
    ]
    return Audit(
        kept=tuple(one for one in inside if one.kind is not ChangeKind.DELETED),
        deleted=tuple(one.path for one in inside if one.kind is ChangeKind.DELETED),
        dropped=(),
        evidence=(),
    )


NO_GUARDS = Guards(**BLIND)
NO_AUDIT = Guards(auditor=keep_all, **BLIND)
