"""Jobs over HTTP: how a pause or a resume of all goes on, and who waits for room.

POST jobs/ID/pause and jobs/ID/resume answer with a stream of u32 little-endian length + msgpack
JobStep, one for each sandbox as it stands or runs, then one with `end`. One that ends without it is
broken: the work goes on, and the same request again joins it.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from skerry.spec import limits
from skerry.spec.job import TTL_MAX_S, JobSpec, OnLost, Resume
from skerry.wire.http import ErrorBody


class JobChange(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What shall be different from now on; what is not named stays. null takes a limit away.

    `ttl_s` counts from the moment of the change. Another lease holds from the next heartbeat on. Of
    `labels` only those named change; null removes one.
    """

    lease_s: float | UnsetType = UNSET
    grace_s: float | UnsetType = UNSET
    on_lost: OnLost | UnsetType = UNSET
    resume: Resume | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    sandboxes_max: int | UnsetType | None = UNSET
    ttl_s: float | UnsetType | None = UNSET
    labels: dict[str, str | None] = {}

    def apply(self, spec: JobSpec, age_s: float) -> JobSpec:
        """Returns the spec of a job of that age, changed; its bounds are to be checked."""
        changes = {
            name: value
            for name, value in msgspec.structs.asdict(self).items()
            if value is not UNSET and name != "labels"
        }
        if isinstance(self.ttl_s, float | int):
            limits.check_duration(self.ttl_s, "ttl", TTL_MAX_S)
            changes["ttl_s"] = max(0.0, age_s) + self.ttl_s
        merged: dict[str, str | None] = {**spec.labels, **self.labels}
        labels = {name: value for name, value in merged.items() if value is not None}
        return msgspec.structs.replace(spec, labels=labels, **changes)


class JobFailure(msgspec.Struct, frozen=True):
    """A sandbox that could not be paused or resumed, and why."""

    sandbox: str
    error: ErrorBody


class JobMoved(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of a pause or a resume of all. `done` + `failures` + `left` = `total`.

    `failed` names the first 500; each was named in a step of its own.
    """

    total: int  # sandboxes that it was to act on
    done: int  # that stand or run now, or have ended meanwhile
    left: int = 0  # that it did not come to: it was cancelled
    failures: int = 0
    failed: tuple[JobFailure, ...] = ()
    seconds: float = 0.0
    freed_bytes: int = 0  # by a pause: by how much their memory shrank
    cancelled: bool = False


class JobStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Progress. With `sandbox` empty it is the beginning; with `end` it is the last."""

    total: int
    done: int = 0
    failed: int = 0
    sandbox: str = ""  # the one of which this tells
    error: ErrorBody | None = None  # why that one could not
    end: JobMoved | None = None


class JobWaiting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Creates of a job that wait: one, or the members of a batch that are not there yet.

    Positions count turns: 1 is let in next. `estimate_s` is until the last of them is let in, at the
    rate of late; None: nothing was let in of late.
    """

    position: int  # of the first of them
    last: int  # of the last
    count: int = 1
    key: str | None = None
    since: float = 0.0  # seconds since the epoch
    estimate_s: float | None = None


class JobQueue(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who of a job waits for room, in the order in which they will be let in.

    `items` are at most 1000; `limit` and `message` say what is in the way of the first one now.
    """

    job: str
    waiting: int
    items: tuple[JobWaiting, ...] = ()
    per_second: float = 0.0  # creates let in of late, of this job or ahead of it
    estimate_s: float | None = None  # until the last one is let in
    limit: str | None = None
    message: str | None = None
