"""Whether each record follows from the one before it, chapter by chapter."""

from __future__ import annotations

from skerry.trajectory.format.segment import FORGOTTEN, NO_HASH, Found


class Links:
    """The hash of the last record of each subject that is not forgotten."""

    def __init__(self) -> None:
        self.heads: dict[str, bytes] = {}

    def follow(self, found: Found) -> str:
        """Takes a subject's next record; returns why it does not follow, "" if it does."""
        record = found.record
        before = self.heads.get(record.subject)
        why = ""
        if before is None and record.prev_hash != NO_HASH:
            why = f"what was before record {record.seq} of {record.subject!r} is missing"
        elif before is not None and record.prev_hash != before:
            why = f"record {record.seq} of {record.subject!r} does not follow from the one before"
        elif record.kind == "continued":
            why = self._chapter(found)
        if record.kind == FORGOTTEN:
            self.heads.pop(record.subject, None)
        else:
            self.heads[record.subject] = found.hash
        return why

    def _chapter(self, found: Found) -> str:
        """A further chapter begins with what the one before ended with."""
        data = found.record.data if isinstance(found.record.data, dict) else {}
        chapter, digest = data.get("chapter"), data.get("hash")
        if isinstance(chapter, str) and self.heads.get(chapter) == digest:
            return ""
        return f"the chapter {found.record.subject!r} does not follow from the one before"
