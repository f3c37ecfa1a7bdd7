"""Jobs over HTTP: how a pause or a resume of all goes on, and who waits for room.

POST jobs/ID/pause and jobs/ID/resume answer with a stream of u32 little-endian length + msgpack
JobStep, one for each sandbox as it stands or runs, then one with `end`. One that ends without it is
broken: the work goes on, and the same request again joins it.
"""

from __future__ import annotations

import msgspec

from skerry.wire.http import ErrorBody


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
