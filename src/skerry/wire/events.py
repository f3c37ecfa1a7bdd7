"""What a harness may add to the record of a sandbox: verdicts, model requests, and words of its own."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from skerry.errors import InvalidRequest
from skerry.wire.http import ErrorBody

EVENTS_MAX: Final = 1000
ACTION: Final = re.compile(r"verdict|model\.request|harness\.[a-z0-9_.-]{1,48}")


class PostedEvent(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One event. `action` is "verdict", "model.request" or "harness.NAME"; values are JSON's.

    At most one of result and error. Times are seconds since the epoch; without them: now.
    """

    action: str
    request: dict[str, Any] = {}
    result: dict[str, Any] | None = None
    error: ErrorBody | None = None
    started: float | None = None
    ended: float | None = None
    usage: dict[str, Any] = {}

    def check(self) -> PostedEvent:
        """Returns itself; InvalidRequest if it cannot stand in a record."""
        if ACTION.fullmatch(self.action) is None:
            raise InvalidRequest(
                f"action: {self.action[:80]!r} is none of verdict, model.request and harness.NAME, "
                "with a NAME of 1 to 48 of a-z, 0-9, '_', '-' and '.'"
            )
        if self.result is not None and self.error is not None:
            raise InvalidRequest("an event has a result or an error, not both")
        return self


class EventsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Up to 1,000 events, in their order; all are recorded, or none."""

    events: tuple[PostedEvent, ...]


class EventsTaken(msgspec.Struct, frozen=True):
    """They are on record; `seq` is the number of the last one's record."""

    count: int
    seq: int
