"""A job: what owns sandboxes in a trainer's stead, and what becomes of them when the trainer is lost.

A trainer on preemptible machines dies without a goodbye and comes back in another process that knows
nothing but the job's id. So sandboxes belong to the job and not to a connection; the trainer holds a
lease on the job and renews it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from skerry.errors import InvalidRequest
from skerry.spec import limits
from skerry.spec.ids import check_job_id
from skerry.spec.sandbox import check_labels

LEASE_MIN_S: Final = 1.0
LEASE_MAX_S: Final = 86_400.0
GRACE_MAX_S: Final = 7 * 86_400.0
TTL_MAX_S: Final = 366 * 86_400.0
SANDBOXES_MAX: Final = 1 << 20


class OnLost(StrEnum):
    """What becomes of a job's sandboxes when its lease and the grace after it have run out."""

    PAUSE = "pause"  # they stand still until the trainer is back, or a request needs one
    STOP = "stop"  # they end, and the job with them; results stay to be read
    KEEP = "keep"  # they run on


class Resume(StrEnum):
    """What the trainer's return resumes, of what its loss has paused."""

    LAZY = "lazy"  # sandboxes in which commands are under way; each other one with its next request
    ALL = "all"


class JobState(StrEnum):
    """How a job stands."""

    ACTIVE = "active"  # its lease is held
    AWAY = "away"  # its lease has run out: nobody has renewed it
    PAUSED = "paused"  # by a request, or because its lease was lost; creates in it wait
    ENDED = "ended"


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a caller asks for. `check()` must have passed before anything acts on it."""

    id: str
    lease_s: float = 60.0  # from each heartbeat, and from its creation
    on_lost: OnLost = OnLost.PAUSE
    grace_s: float = 30.0  # between the end of the lease and what `on_lost` says
    resume: Resume = Resume.LAZY
    priority: int = 0  # among the jobs of its owner whose creates wait: higher first
    sandboxes_max: int | None = None  # that live at once; further creates wait
    ttl_s: float | None = (
        None  # from its creation, whatever happens: then its sandboxes are stopped
    )
    labels: dict[str, str] = {}

    def check(self) -> JobSpec:
        """Returns itself if every value is in bounds; raises InvalidRequest naming one that is not."""
        check_job_id(self.id)
        if not LEASE_MIN_S <= self.lease_s <= LEASE_MAX_S:  # not a number is neither
            raise InvalidRequest(
                f"lease must be between {LEASE_MIN_S:g} and {LEASE_MAX_S:g} s, not {self.lease_s}"
            )
        if not 0 <= self.grace_s <= GRACE_MAX_S:
            raise InvalidRequest(f"grace must be between 0 and {GRACE_MAX_S:g} s")
        if not limits.PRIORITY_MIN <= self.priority <= limits.PRIORITY_MAX:
            raise InvalidRequest(
                f"priority must be between {limits.PRIORITY_MIN} and {limits.PRIORITY_MAX}"
            )
        if self.sandboxes_max is not None and not 1 <= self.sandboxes_max <= SANDBOXES_MAX:
            raise InvalidRequest(f"sandboxes_max must be between 1 and {SANDBOXES_MAX}")
        limits.check_duration(self.ttl_s, "ttl", TTL_MAX_S)
        check_labels(self.labels)
        if any("\x00" in text for pair in self.labels.items() for text in pair):
            raise InvalidRequest("labels: a NUL in a name or a value")
        return self


class JobInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a job. Times are seconds since the epoch."""

    id: str
    state: JobState
    spec: JobSpec
    owner: str = ""  # tells API tokens apart without telling them; "": the unix socket
    created: float = 0.0
    lease_expires: float | None = None  # None: it has run out, or the job has ended
    lost_since: float | None = None  # when it ran out
    paused_by: str | None = None  # "request" or "loss"
    expires: float | None = None  # from ttl_s
    sandboxes: dict[str, int] = {}  # how many are in each state
    waiting: int = 0  # creates that wait for their turn
    reason: str | None = None  # why it ended
