"""One job as the node holds it: data and invariants; what happens to it is in `jobs` and `keeping`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from skerry.errors import Bug, Conflict
from skerry.node.admission.holders import Holder
from skerry.node.life.sandbox import Sandbox
from skerry.node.timers import Timer
from skerry.spec.job import JobSpec, JobState

if TYPE_CHECKING:
    from skerry.node.jobs.moves import Move

# Why sandboxes of a job stand still: as `Sandbox.paused_by` and `JobInfo.paused_by` say it.
BY_REQUEST: Final = "request"
BY_LOSS: Final = "loss"


@dataclass(slots=True, eq=False)
class Job:
    """A job. Only the event loop touches it.

    Invariants: while it has not ended, either its lease runs (`lease`) or it is lost (`lost_since`);
    an ended one has no timer.
    """

    spec: JobSpec
    owner: str  # tells tokens apart; "": the unix socket
    created: float  # wall clock
    born: float  # the same on the monotonic clock of the host's boot
    asked: JobSpec | None = None  # the spec that it was made from, if it was changed since
    sandboxes: dict[str, Sandbox] = field(default_factory=dict)
    lease: Timer | None = None
    lease_until: float = 0.0  # monotonic
    spared: bool = False  # it got a term more, for the node had stood still itself
    lost_since: float | None = None  # wall clock
    timers: list[Timer] = field(default_factory=list)  # of its loss
    ttl: Timer | None = None
    paused_by: str | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # requests for moves come one by one
    move: Move | None = None  # a pause or a resume of all, under way
    reason: str | None = None  # why it ended
    deleting: bool = False

    @property
    def id(self) -> str:
        """Its name."""
        return self.spec.id

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self.reason is not None

    @property
    def state(self) -> JobState:
        """How it stands."""
        if self.ended:
            return JobState.ENDED
        if self.paused_by is not None:
            return JobState.PAUSED
        return JobState.ACTIVE if self.lost_since is None else JobState.AWAY

    @property
    def holder(self) -> Holder:
        """As whom its creates wait and are counted."""
        return Holder(self.owner, None, self.id, made=True)

    @property
    def asked_spec(self) -> JobSpec:
        """The spec that it was made from: what a repeat of that must equal."""
        return self.spec if self.asked is None else self.asked

    def over(self) -> Conflict:
        """Returns the error for what comes too late."""
        return Conflict(f"job {self.id} has ended: {self.reason}", job=self.id, state="ended")

    def check_invariants(self) -> None:
        """Raises Bug unless the invariants hold."""
        if self.ended and (self.lease is not None or self.timers or self.ttl is not None):
            raise Bug(f"job {self.id} has ended and has a timer")
        if not self.ended and (self.lease is None) == (self.lost_since is None):
            raise Bug(f"job {self.id}: lease {self.lease}, lost since {self.lost_since}")
