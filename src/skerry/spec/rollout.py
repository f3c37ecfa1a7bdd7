"""What a rollout leaves behind: its attempts, its verdict, and the lines of a job's file."""

from __future__ import annotations

from typing import Any

import msgspec

from skerry.spec.layers import MountedLayer
from skerry.spec.verdict import Evidence, Limit, Outcome, Repeats


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One try that the platform failed, at `stage` "act" or "verify"; never a reward."""

    stage: str
    detail: str
    seconds: float
    verdict: Outcome = Outcome.INFRASTRUCTURE_ERROR


class RolloutRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one rollout: its final verdict only; earlier tries stand in `attempts`.

    `verdict` is the bare word; `reward` is None exactly for an infrastructure error.
    """

    job: str
    rollout: str
    task: str
    policy: str
    variant: str = ""  # which cheat, which model
    index: int = 0  # of this task and policy, from 0
    reward: float | None
    verdict: Outcome
    evidence: tuple[Evidence, ...] = ()
    detail: str = ""
    repercussion: str = ""  # how the agent broke its own sandbox; the platform did not
    seconds: float = 0.0  # of the attempt that counted, from creation to verdict
    tests_passed: int = 0
    tests_failed: int = 0
    score: float | None = None  # of the task's own verifier, in its range
    limit: Limit | None = None  # that ended the tests
    repeats: Repeats | None = None  # of several verifications
    attempts: tuple[Attempt, ...] = ()
    digests: tuple[str, ...] = ()  # of the layers that agent and verifier shared
    mounts: tuple[MountedLayer, ...] = ()  # of the agent's sandbox: how their bytes were checked
    submission: str | None = None  # sha256 of the tar that was applied to the fresh sandbox
    notes: tuple[str, ...] = ()  # what was noted or dropped and is no evidence: RULE: PATH: REASON
    started: float = 0.0
    ended: float = 0.0


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a job's file, chained to the one before.

    `sha256` is that of the line's own JSON without this field; `prev` is the one of the line before
    (64 zeros in the first). Kinds: job, event, attempt, rollout, end.
    """

    v: int = 1
    seq: int
    prev: str
    time: float
    kind: str
    data: dict[str, Any]
    sha256: str = ""


class JobSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A finished job: records in the order of task, policy, index."""

    job: str
    path: str
    records: tuple[RolloutRecord, ...]
    build_seconds: float  # environments
    seconds: float  # rollouts, without the environments
    interrupted: bool = False

    @property
    def per_second(self) -> float:
        """Rollouts finished a second."""
        return len(self.records) / self.seconds if self.seconds > 0 else 0.0


class JobEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Progress for a live display. Kinds: plan, build, built, start, step, attempt, done, end."""

    kind: str
    text: str = ""
    task: str = ""
    policy: str = ""
    rollout: str = ""
    done: int = 0
    total: int = 0
    record: RolloutRecord | None = None
