"""One rollout from creation to verdict: attempts, stages, and whose fault what was.

| what happened | outcome |
|---|---|
| a platform error or a bug of ours, in any stage | infrastructure_error; tried again afresh |
| the agent's sandbox could not be made | infrastructure_error likewise: the policy did nothing yet |
| the agent broke its own sandbox | failed |
| the verifying sandbox died under the tests, every time | failed; once: tried again |
| the policy took too long | graded as it stands |

Only a fault of the policy may read as reward 0. A fault in the verifying stage repeats only that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec

from skerry.errors import CallerError, Fault, SandboxError, SkerryError
from skerry.integrity.audit import Audit
from skerry.integrity.verdict import failed, infrastructure_error
from skerry.spec.rollout import Attempt, RolloutRecord
from skerry.spec.verdict import Outcome, Verdict
from skerry.trajectory.rollouts import JobLog
from skerry.worker.environment import Environment
from skerry.worker.lives import is_lost, sandbox_of
from skerry.worker.ports import Client
from skerry.worker.session import Policy, Session
from skerry.worker.verify import Guards, Submission, collect, grade

ATTEMPTS = 3

Step = Callable[[str], None]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout to be done."""

    rollout: str
    environment: Environment
    policy: Policy
    variant: str
    index: int


class _Retry(Exception):
    """A stage that may be tried again."""

    def __init__(self, stage: str, detail: str, *, counts_as_failed: bool = False) -> None:
        super().__init__(detail)
        self.stage = stage
        self.detail = detail
        self.counts_as_failed = counts_as_failed


class Rollouts:
    """Does rollouts of one job against one client."""

    def __init__(
        self,
        client: Client,
        log: JobLog,
        *,
        job: str,
        guards: Guards,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._log = log
        self._job = job
        self._guards = guards
        self._clock = clock

    async def run(self, plan: Plan, on_step: Step) -> RolloutRecord:
        """Returns the rollout's end, which is on record when this returns.

        A cancellation is recorded as an infrastructure error, and raised on.
        """
        attempts: list[Attempt] = []
        started = self._clock()
        try:
            record = await self._attempts(plan, on_step, attempts, started)
        except asyncio.CancelledError:
            self.cancelled(plan, attempts, started)
            raise
        return record

    def cancelled(self, plan: Plan, attempts: list[Attempt], started: float) -> None:
        """Records that the rollout was not carried to its end."""
        verdict = infrastructure_error("cancelled by the operator")
        self._finish(plan, verdict, attempts, (started, started), None)

    async def _attempts(
        self, plan: Plan, on_step: Step, attempts: list[Attempt], started: float
    ) -> RolloutRecord:
        submission: Submission | None = None
        began = started
        last: _Retry | None = None
        for number in range(ATTEMPTS):
            if submission is None or number == 0:
                began = self._clock()
            try:
                if submission is None:
                    submission = await self._act(plan, on_step)
                    self._note_submission(plan, submission)
                on_step("verifying")
                verdict = await self._grade(plan, submission)
                return self._finish(plan, verdict, attempts, (started, began), submission)
            except _Retry as retry:
                last = retry
                attempt = Attempt(retry.stage, retry.detail, round(self._clock() - began, 3))
                attempts.append(attempt)
                self._log.append(
                    "attempt", {"rollout": plan.rollout, **msgspec.to_builtins(attempt)}
                )
        detail = last.detail if last else ""
        if last is not None and last.counts_as_failed:
            verdict = failed(f"in each of {ATTEMPTS} fresh sandboxes: {detail}")
        else:
            verdict = infrastructure_error(detail)
        return self._finish(plan, verdict, attempts, (started, began), submission)

    async def _act(self, plan: Plan, on_step: Step) -> Submission:
        environment, task = plan.environment, plan.environment.task
        made = False
        try:
            async with sandbox_of(
                self._client,
                task,
                image=environment.image,
                layers=environment.layers,
                seconds=task.limits.act_timeout_s,
                labels=self._labels(plan, "agent"),
            ) as sandbox:
                made = True
                session = Session(sandbox, environment, self._log, plan.rollout, on_step)
                early = await self._let_act(plan, session)
                on_step("collecting")
                submission = await collect(sandbox, environment, self._guards, session.deeds)
                submission = msgspec.structs.replace(submission, mounts=sandbox.created_as.mounts)
                return early_or(submission, early)
        except SkerryError as error:
            if made and error.fault is Fault.SANDBOX and not is_lost(error):
                return Submission(NOTHING, b"", failed(f"the sandbox was lost: {error.message}"))
            raise _Retry("act", f"{error.code}: {error.message}") from error
        except Exception as error:  # a bug of ours is no fault of the policy
            raise _Retry("act", f"bug: {type(error).__name__}: {error}") from error

    async def _let_act(self, plan: Plan, session: Session) -> Verdict | None:
        """Lets the policy act. Its own failures are graded, not raised; platform errors are raised."""
        limit = plan.environment.task.limits.act_timeout_s
        try:
            async with asyncio.timeout(limit) as scope:
                await plan.policy.act(session, plan.variant)
        except TimeoutError:
            if not scope.expired():
                raise
            session.record(
                {"action": "stop", "message": f"the policy took longer than {limit:g} s"}
            )
        except (SandboxError, CallerError) as error:
            if is_lost(error):
                raise
            # What it asked for was refused, or its sandbox broke: what is left decides.
            session.record({"action": "stop", "error": error.code, "message": error.message[:500]})
            return failed(f"the policy ended early: {error.message}")
        return None

    async def _grade(self, plan: Plan, submission: Submission) -> Verdict:
        try:
            verdict = await grade(
                self._client,
                plan.environment,
                submission,
                guards=self._guards,
                labels=self._labels(plan, "verify"),
            )
        except SandboxError as error:
            detail = f"{error.code}: {error.message}"
            raise _Retry("verify", detail, counts_as_failed=not is_lost(error)) from error
        except SkerryError as error:
            raise _Retry("verify", f"{error.code}: {error.message}") from error
        except Exception as error:
            raise _Retry("verify", f"bug: {type(error).__name__}: {error}") from error
        if verdict.outcome is Outcome.INFRASTRUCTURE_ERROR:
            raise _Retry("verify", verdict.detail)
        return verdict

    def _labels(self, plan: Plan, role: str) -> dict[str, str]:
        return {
            "job": self._job,
            "rollout": plan.rollout,
            "task": plan.environment.task.id,
            "policy": plan.policy.name,
            "role": role,
        }

    def _note_submission(self, plan: Plan, submission: Submission) -> None:
        data: dict[str, Any] = {
            "rollout": plan.rollout,
            "action": "submit",
            "kept": [change.path for change in submission.audit.kept[:200]],
            "deleted": list(submission.audit.deleted[:200]),
            "evidence": msgspec.to_builtins(submission.audit.evidence),
        }
        if submission.tar:
            data["submission"] = self._log.blob(submission.tar)
        self._log.append("event", data)

    def _finish(
        self,
        plan: Plan,
        verdict: Verdict,
        attempts: list[Attempt],
        times: tuple[float, float],
        submission: Submission | None,
    ) -> RolloutRecord:
        """Writes and returns the record; `times` are those of the first and of this attempt."""
        started, began = times
        ended = self._clock()
        tar = submission.tar if submission else b""
        record = RolloutRecord(
            job=self._job,
            rollout=plan.rollout,
            task=plan.environment.task.id,
            policy=plan.policy.name,
            variant=plan.variant,
            index=plan.index,
            reward=verdict.reward,
            verdict=verdict.outcome,
            evidence=verdict.evidence,
            detail=verdict.detail,
            seconds=round(ended - began, 3),
            tests_passed=verdict.tests_passed,
            tests_failed=verdict.tests_failed,
            score=verdict.score,
            limit=verdict.limit,
            repeats=verdict.repeats,
            attempts=tuple(attempts),
            digests=plan.environment.digests,
            mounts=submission.mounts if submission else (),
            submission=self._log.blob(tar) if tar else None,
            notes=submission.audit.notes() if submission else (),
            started=started,
            ended=ended,
        )
        self._log.rollout(record)
        return record


NOTHING = Audit((), (), (), ())


def early_or(submission: Submission, early: Verdict | None) -> Submission:
    """Returns the submission, with an early failure as verdict unless the audit found evidence.

    A policy that was stopped by an error of its own may still have cheated before.
    """
    if early is None or submission.verdict is not None:
        return submission
    return msgspec.structs.replace(submission, verdict=early)
