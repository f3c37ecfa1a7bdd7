"""One rollout from creation to verdict: attempts, stages, and whose fault what was.

| what happened | outcome |
|---|---|
| a platform error or a bug of ours, in any stage | infrastructure_error; tried again afresh |
| the agent's sandbox could not be made, or the scaffold is not in it | likewise: nobody acted |
| the agent broke its own sandbox, or none runs in it any more | failed; `repercussion` says how |
| the verifying sandbox died under the tests, every time | failed; once: tried again |
| the policy took too long | graded as it stands |
| the node does not answer | nothing: the rollout goes on when it does |

Only a fault of the policy may read as reward 0. A fault in the verifying stage repeats only that.
What is done is in the rollout's memory: run again with it, `run` goes on where it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import msgspec

from skerry.errors import Fault, Overloaded, SandboxError, SkerryError
from skerry.integrity.verdict import failed, infrastructure_error
from skerry.spec.rollout import Attempt, RolloutRecord
from skerry.spec.verdict import Outcome, Verdict
from skerry.trajectory.rollouts.job_log import JobLog
from skerry.worker.acting import Acting, NodeDisk, check_node
from skerry.worker.clock import Clocks
from skerry.worker.ids import agent_key, verdict_id, verifier_key
from skerry.worker.lives import (
    TTL_MARGIN_S,
    destroy_key,
    destroy_labelled,
    is_lost,
    lasting_sandbox,
    options_of,
    passing_sandbox,
)
from skerry.worker.marked import Marked
from skerry.worker.memory import (
    NOTHING,
    Acted,
    Begun,
    Faulted,
    Memory,
    NodeAway,
    Placed,
    Standstill,
    Submission,
    Verifying,
)
from skerry.worker.plan import Models, Plan
from skerry.worker.ports import Client, Sandbox
from skerry.worker.session import CannotStart, Session
from skerry.worker.verdicts import record_verdict
from skerry.worker.verify import Guards, collect, grade

ATTEMPTS = 3
CREATE_WAIT_S = 3600.0  # for room; then it is asked for again

Step = Callable[[str], None]


class _Retry(Exception):
    """A stage that may be tried again."""

    def __init__(self, stage: str, detail: str, *, blames: bool = False) -> None:
        super().__init__(detail)
        self.stage = stage
        self.detail = detail
        self.blames = blames


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
        models: Models | None = None,
        clocks: Clocks | None = None,
    ) -> None:
        self._client = client
        self._acting = Acting(client, models, clocks or Clocks())
        self._log = log
        self._job = job
        self._guards = guards
        self._clock = clock
        self._models = models
        self._disk = NodeDisk()

    async def run(self, plan: Plan, on_step: Step, memory: Memory | None = None) -> RolloutRecord:
        """Returns the rollout's end, which is in the job's log when this returns.

        With a durable memory a cancellation leaves all as it is, Standstill is raised when the rollout
        cannot go on now, and the record is not in the log yet: it belongs into the book first. Without
        one a cancellation is recorded as an infrastructure error. Both are raised on.
        """
        memory = memory or Memory()
        memory.started = memory.started or self._clock()
        try:
            record = await self._attempts(plan, memory, on_step)
        except asyncio.CancelledError:
            if not memory.durable:
                self.cancelled(plan, memory)
            raise
        self._disk.over(plan)
        if not memory.durable:
            self._log.rollout(record)
        return record

    def cancelled(self, plan: Plan, memory: Memory | None = None) -> None:
        """Records that the rollout was not carried to its end."""
        verdict = infrastructure_error("cancelled by the operator")
        self._log.rollout(self._record(plan, memory or Memory(), verdict))

    async def _remove(self, plan: Plan, memory: Memory) -> None:
        """Destroys the agent's sandbox of the attempt under way."""
        with contextlib.suppress(SkerryError):
            if memory.attempt >= 0:
                await destroy_key(self._client, agent_key(plan.rollout, memory.attempt))

    async def _attempts(self, plan: Plan, memory: Memory, on_step: Step) -> RolloutRecord:
        while len(memory.faults) < ATTEMPTS:
            try:
                if memory.submission is None:
                    await self._act(plan, memory, on_step)
                elif memory.durable:
                    await self._remove(plan, memory)  # it was killed before it could
                assert memory.submission is not None  # noqa: S101
                self._note_submission(plan, memory, memory.submission)
                on_step("verifying")
                verdict = await self._grade(plan, memory, memory.submission)
                return self._record(plan, memory, verdict)
            except _Retry as retry:
                if memory.durable:
                    await check_node(self._client)
                self._note_fault(plan, memory, retry)
        last = memory.faults[-1]
        if last.blames:
            detail = f"in each of {ATTEMPTS} fresh sandboxes: {last.fault.detail}"
            return self._record(plan, memory, failed(detail))
        return self._record(plan, memory, infrastructure_error(last.fault.detail))

    @staticmethod
    def _later(memory: Memory, stage: str, error: Overloaded) -> Exception:
        """Returns what says that there was no room: for who can wait that costs no attempt."""
        if memory.durable:
            return NodeAway(error.message)
        return _Retry(stage, f"{error.code}: {error.message}")

    def _note_fault(self, plan: Plan, memory: Memory, retry: _Retry) -> None:
        seconds = round(self._clock() - (memory.began or memory.started), 3)
        attempt = Attempt(retry.stage, retry.detail, seconds)
        memory.note(Faulted(attempt, retry.blames))
        self._disk.over(plan)
        if retry.stage == "act" and self._models is not None:
            self._models.dropped(memory)
        step = f"fault.{len(memory.faults) - 1}"
        self._log.event(plan.rollout, step, msgspec.to_builtins(attempt), kind="attempt")

    # --- acting ----------------------------------------------------------------------------------

    async def _act(self, plan: Plan, memory: Memory, on_step: Step) -> None:
        """Has the submission in the memory when it returns; raises _Retry and Standstill."""
        attempt = sum(one.fault.stage == "act" for one in memory.faults)
        if memory.attempt != attempt:
            memory.note(Begun(attempt=attempt, at=self._clock()))
        about = {"task": plan.environment.task.id, "policy": plan.policy.name}
        begin = {"action": "begin", **about, "variant": plan.variant}
        self._log.event(plan.rollout, f"{attempt}.begin", begin)
        made = False
        try:
            async with self._sandbox(plan, memory) as sandbox:
                made = True
                if memory.sandbox is None:
                    memory.note(Placed(sandbox=sandbox.id))
                try:
                    await self._act_in(plan, memory, sandbox, on_step)
                except SkerryError as error:
                    if memory.durable and error.fault is not Fault.SANDBOX:
                        self._disk.bear(plan, memory, error)
                        await check_node(self._client)  # else the sandbox would go
                    raise
        except (Standstill, _Retry):
            raise
        except Overloaded as error:
            raise self._later(memory, "act", error) from error
        except CannotStart as error:
            raise _Retry("act", str(error)) from error
        except SkerryError as error:
            if made and error.fault is Fault.SANDBOX and not is_lost(error):
                why = f"the sandbox was lost: {error.message}"
                if memory.acted is None:
                    memory.note(Acted(active_s=memory.active_s, repercussion=why))
                memory.submit(Submission(NOTHING, b"", failed(why), repercussion=why))
                return
            self._disk.bear(plan, memory, error)
            raise _Retry("act", f"{error.code}: {error.message}") from error
        except Exception as error:  # a bug of ours is no fault of the policy
            raise _Retry("act", f"bug: {type(error).__name__}: {error}") from error

    def _sandbox(
        self, plan: Plan, memory: Memory
    ) -> contextlib.AbstractAsyncContextManager[Sandbox]:
        wanted = self._wanted(plan, memory)
        if memory.durable:
            return lasting_sandbox(self._client, memory.sandbox, wanted)
        return passing_sandbox(self._client, wanted)

    def _wanted(self, plan: Plan, memory: Memory) -> dict[str, Any]:
        """Returns what the agent's sandbox is made with: the same each time that it is asked for."""
        environment, needs = plan.environment, plan.policy.needs
        wanted = options_of(
            environment.task,
            image=environment.image,
            layers=(*environment.layers, *environment.agent_layers, *needs.layers),
            labels=self._labels(plan, "agent"),
        )
        wanted |= environment.acting()
        if memory.durable:
            wanted |= {"detached": True, "rollout": plan.rollout, "job": self._job}
            wanted |= {"key": agent_key(plan.rollout, memory.attempt), "wait": CREATE_WAIT_S}
        else:
            wanted["ttl"] = environment.task.limits.act_timeout_s + TTL_MARGIN_S
        if needs.port is not None and self._models is not None:
            link = msgspec.structs.replace(self._models.uplink, port=needs.port)
            wanted["uplinks"] = (link,)
        return wanted

    async def _act_in(self, plan: Plan, memory: Memory, sandbox: Sandbox, on_step: Step) -> None:
        access = None
        if plan.policy.needs.port is not None:
            if self._models is None:
                raise CannotStart(f"the policy {plan.policy.name} needs a worker")
            access = self._models.access(plan, memory)
        session = Session(
            sandbox, plan.environment, self._log, plan.rollout, on_step,
            memory=memory, access=access,
        )  # fmt: skip
        if memory.acted is None:
            memory.note(await self._acting.let_act(plan, memory, sandbox, session))
        acted = memory.acted
        assert acted is not None  # noqa: S101
        if acted.expired:
            with contextlib.suppress(SandboxError):
                await session.end_commands()
        on_step("collecting")
        deeds = (*acted.deeds, *memory.answers())
        submission = await collect(sandbox, plan.environment, self._guards, deeds)
        submission = msgspec.structs.replace(
            submission,
            mounts=sandbox.created_as.mounts,
            repercussion=acted.repercussion or submission.repercussion,
        )
        submission = early_or(submission, acted.verdict)
        if submission.verdict is not None:  # nothing will be verified
            once = verdict_id(plan.rollout, memory.attempt)
            labels = self._labels(plan, "agent")
            await record_verdict(sandbox, submission.verdict, labels, once)
        memory.submit(submission)

    # --- grading ---------------------------------------------------------------------------------

    async def _grade(self, plan: Plan, memory: Memory, submission: Submission) -> Verdict:
        client = self._client
        try:
            if memory.durable and submission.verdict is None:
                if memory.verifying >= 0:  # another was begun, and perhaps cut short
                    labels = {"rollout": plan.rollout, "role": "verify"}
                    await destroy_labelled(client, labels)
                memory.note(Verifying(number=memory.verifying + 1))
                client = Marked(
                    client,
                    key=verifier_key(plan.rollout, memory.verifying),
                    detached=True,
                    rollout=plan.rollout,
                    job=self._job,
                    wait=CREATE_WAIT_S,
                )
            verdict = await grade(
                client,
                plan.environment,
                submission,
                guards=self._guards,
                labels=self._labels(plan, "verify"),
            )
        except Standstill:
            raise
        except Overloaded as error:
            raise self._later(memory, "verify", error) from error
        except SandboxError as error:
            detail = f"{error.code}: {error.message}"
            raise _Retry("verify", detail, blames=not is_lost(error)) from error
        except SkerryError as error:
            self._disk.bear(plan, memory, error)
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

    def _note_submission(self, plan: Plan, memory: Memory, submission: Submission) -> None:
        data: dict[str, Any] = {
            "action": "submit",
            "kept": [change.path for change in submission.audit.kept[:200]],
            "deleted": list(submission.audit.deleted[:200]),
            "evidence": msgspec.to_builtins(submission.audit.evidence),
        }
        if submission.tar:
            data["submission"] = self._log.blob(submission.tar)
        self._log.event(plan.rollout, f"{memory.attempt}.submit", data)

    def _record(self, plan: Plan, memory: Memory, verdict: Verdict) -> RolloutRecord:
        ended = self._clock()
        began = memory.began or memory.started or ended
        submission = memory.submission
        tar = submission.tar if submission else b""
        return RolloutRecord(
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
            repercussion=submission.repercussion if submission else "",
            seconds=round(ended - began, 3),
            tests_passed=verdict.tests_passed,
            tests_failed=verdict.tests_failed,
            score=verdict.score,
            limit=verdict.limit,
            repeats=verdict.repeats,
            attempts=tuple(one.fault for one in memory.faults),
            digests=plan.environment.digests,
            mounts=submission.mounts if submission else (),
            submission=self._log.blob(tar) if tar else None,
            notes=submission.audit.notes() if submission else (),
            started=memory.started or ended,
            ended=ended,
        )


def early_or(submission: Submission, early: Verdict | None) -> Submission:
    """Returns the submission, with an early failure as verdict unless the audit found evidence.

    A policy that was stopped by an error of its own may still have cheated before.
    """
    if early is None or submission.verdict is not None:
        return submission
    return msgspec.structs.replace(submission, verdict=early)
