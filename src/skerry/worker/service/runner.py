"""The rollouts of one job in this worker: which of them run, and what happens when one cannot now."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from skerry.errors import CallerError, SandboxError, SkerryError, StorageFailed
from skerry.spec.job import JobState
from skerry.spec.rollout import RolloutRecord
from skerry.spec.uplink import Uplink
from skerry.spec.worker import RolloutState, Submit, rollout_id
from skerry.trajectory.rollouts.job_log import JobLog
from skerry.worker.clock import ActClock, Clocks
from skerry.worker.downloads import Downloads
from skerry.worker.environment import Builder, Environment
from skerry.worker.job import head_of
from skerry.worker.lives import together
from skerry.worker.memory import Given, Memory, NotRecorded, Standstill
from skerry.worker.model.book import Asked, Note
from skerry.worker.plan import Plan
from skerry.worker.policies import policy_named
from skerry.worker.policies.model import Command, Model
from skerry.worker.ports import Client, Sandbox
from skerry.worker.rollout import Rollouts
from skerry.worker.service.book import JobBook
from skerry.worker.service.files import put
from skerry.worker.service.lines import Line, Lines, token_of
from skerry.worker.service.pace import Pace
from skerry.worker.service.pulse import Pulse
from skerry.worker.service.remembered import Remembered
from skerry.worker.service.requests import Name, Requests
from skerry.worker.session import Access, Policy
from skerry.worker.verify import Guards

log = logging.getLogger("skerry.worker")
AGAIN_FIRST_S = 0.5  # after a Standstill
AGAIN_MAX_S = 30.0
_STATES = {"collecting": RolloutState.COLLECTING, "verifying": RolloutState.VERIFYING}


class BookLog(JobLog):
    """A log that cannot be written lets its rollout stand still, and costs nobody an attempt.

    It is for people: the book has what counts, so nothing here waits for the disk.
    """

    def append(
        self,
        kind: str,
        data: dict[str, Any],
        *,
        durable: bool = False,
        time: float | None = None,
    ) -> str:
        """Writes a line; raises NotRecorded."""
        del durable
        try:
            return super().append(kind, data, time=time)
        except StorageFailed as error:
            raise NotRecorded(error.message) from error

    def blob(self, content: bytes) -> str:
        """Keeps content; raises NotRecorded."""
        try:
            return super().blob(content)
        except StorageFailed as error:
            raise NotRecorded(error.message) from error


class Runner:
    """Runs a job's rollouts until all have ended.

    Invariant: a rollout that has begun and not ended is run, by one task, as long as `run` does; what
    it comes to is in the book before anything else is told of it.
    """

    def __init__(
        self,
        book: JobBook,
        client: Client,
        downloads: Downloads,
        lines: Lines,
        *,
        worker: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.book = book
        self.submit: Submit = book.sheet.submit
        self.pulse = Pulse()
        self.requests = Requests(time.monotonic, self.pulse.tick)
        self.pace = Pace()
        self.clocks = Clocks()
        self.log: JobLog = BookLog(book.folder, clock, resume=True)
        self.uplink = Uplink(port=1, worker=worker)  # the port is the agent's
        self.states: dict[int, RolloutState] = {}
        self.lines: dict[int, Line] = {}
        self.failure = ""
        self.trouble = ""
        self.over = False  # nothing of it will ever go on
        self.built = False
        self.building = ""  # what is being made of the environments
        self._client = client
        self._downloads = downloads
        self._all_lines = lines
        self._clock = clock
        self._policies = policies_of(self.submit)
        self._turn_at: dict[int, float] = {}
        self._recover()

    @property
    def ended(self) -> bool:
        """True if no rollout is left."""
        return len(self.book.ends) == len(self.submit.numbers())

    def policy_of(self, number: int) -> Policy:
        """Returns who acts in a rollout."""
        return self._policies[number // self.submit.n % len(self._policies)]

    def task_of(self, number: int) -> int:
        """Returns the index of a rollout's task."""
        return number // (self.submit.n * len(self._policies))

    def _recover(self) -> None:
        """Opens the lines of agents that act, before anybody can ask; mends the log."""
        for number, memory in self.book.open.items():
            if memory.sandbox and memory.acted is None and self.policy_of(number).needs.port:
                self._all_lines.open(self._line(number, memory))
        for number in self.book.ends:
            if not self.log.has_end(rollout_id(self.submit.job, number)):
                with contextlib.suppress(Standstill):
                    self.log.rollout(self.book.record(number))

    # --- running ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Returns when all rollouts have ended, or the job cannot go on: `failure` says why."""
        if not self.ended:
            environments = await self._environments()
            if environments is None:
                self.finish()
                return
            if not self.log.lines:
                head = self._head(environments)
                await _kept(lambda: self.log.append("job", head, durable=True))
            rollouts = Rollouts(
                self._client,
                self.log,
                job=self.submit.job,
                guards=Guards(),
                clock=self._clock,
                models=self,
                clocks=self.clocks,
            )
            self.built = True
            self.pulse.tick()
            waiting = self._order()
            lanes = min(self.submit.concurrency, len(self.submit.numbers()))
            await together(self._lane(waiting, rollouts, environments) for _ in range(lanes))
        if not self.log.finished:
            end = {"rollouts": len(self.book.ends)}
            await _kept(lambda: self.log.append("end", end, durable=True))
        self.finish()

    def has_trouble(self, text: str) -> None:
        """Something outside does not do what it should; "" when it does again."""
        if text != self.trouble:
            if text:
                log.warning("%s waits: %s", self.submit.job, text)
            self.trouble = text
            self.pulse.tick()

    def finish(self) -> None:
        """Nothing of it will go on: nobody waits for it any longer."""
        self.over = True
        self.requests.end()
        self.pulse.tick()

    def _head(self, environments: Sequence[Environment]) -> dict[str, object]:
        one = self.submit
        return head_of(one.job, environments, one.actors, one.n, one.concurrency)

    def _order(self) -> Iterator[int]:
        """Yields those that have begun first: they have places already."""
        begun = set(self.book.open)
        yield from sorted(begun)
        for number in self.submit.numbers():
            if number not in self.book.ends and number not in begun:
                yield number

    async def _lane(
        self, waiting: Iterator[int], rollouts: Rollouts, environments: Sequence[Environment]
    ) -> None:
        for number in waiting:
            policy, index = self.policy_of(number), number % self.submit.n
            task = self.task_of(number)
            plan = Plan(
                rollout=rollout_id(self.submit.job, number),
                environment=environments[task],
                policy=policy,
                variant=policy.variant(task, index),
                index=index,
                number=number,
            )
            await self._to_its_end(plan, rollouts)

    async def _to_its_end(self, plan: Plan, rollouts: Rollouts) -> None:
        number, memory = plan.number, self.book.memory(plan.number)
        self._turn_at[number] = time.monotonic()
        self._is(number, RolloutState.STARTING)
        pause = AGAIN_FIRST_S
        record: RolloutRecord | None = None
        while True:
            try:
                if record is None:
                    record = await rollouts.run(plan, self._step_of(number), memory)
                self.book.end(number, record)
                break
            except (Standstill, StorageFailed) as error:
                log.warning("%s stands still: %s", plan.rollout, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, AGAIN_MAX_S)
        self.drop_line(number)
        self.states.pop(number, None)
        self._turn_at.pop(number, None)
        self.requests.remove_of(number)
        await _kept(lambda: self.log.rollout(record))
        self.pulse.tick()

    def _step_of(self, number: int) -> Callable[[str], None]:
        return lambda text: self._is(number, _STATES.get(text, RolloutState.ACTING))

    def _is(self, number: int, state: RolloutState) -> None:
        self.states[number] = state
        self.pulse.tick()

    # --- environments ----------------------------------------------------------------------------

    async def _environments(self) -> tuple[Environment, ...] | None:
        """Returns the tasks' environments, the same ones after a restart; None if there can be none."""
        path = self.book.folder / "environments"
        with contextlib.suppress(OSError, msgspec.DecodeError):
            data = path.read_bytes()
            digest, _, content = data.partition(b"\n")
            if hashlib.sha256(content).hexdigest().encode() == digest:
                return msgspec.msgpack.decode(content, type=tuple[Environment, ...])
        pause = AGAIN_FIRST_S
        while True:
            try:
                job = await self._client.jobs.get(self.submit.job)
                found = await Builder(job.images, self._downloads, self._say).build(
                    self.submit.tasks
                )
                found = await self._with_toolkits(found)
                content = msgspec.msgpack.encode(found)
                digest = hashlib.sha256(content).hexdigest().encode()
                put(path, digest + b"\n" + content)
                self.failure = ""
            except (CallerError, SandboxError) as error:
                self.failure = error.message
                log.warning("%s: no environments: %s", self.submit.job, error.message)
                self.pulse.tick()
                return None
            except SkerryError as error:
                self.failure = error.message
                log.warning("%s: no environments yet: %s", self.submit.job, error.message)
                self.pulse.tick()
                await asyncio.sleep(pause)
                pause = min(2 * pause, AGAIN_MAX_S)
            else:
                return found

    async def _with_toolkits(self, found: tuple[Environment, ...]) -> tuple[Environment, ...]:
        """Checks that the scaffold's toolkits are there: before anybody acts, and not each time."""
        if self.submit.scaffold is not None:
            for name in self.submit.scaffold.layers:
                await self._client.images.inspect(name)
        return found

    def _say(self, text: str) -> None:
        self.building = text
        self.pulse.tick()

    # --- rollout.Models --------------------------------------------------------------------------

    def access(self, plan: Plan, memory: Memory) -> Access:
        """Returns how an attempt's agent reaches its model."""
        token = token_of(self.book.sheet.secret, plan.rollout, memory.attempt)
        return Access(plan.policy.needs.port or 0, token)

    def serving(
        self, plan: Plan, memory: Memory, sandbox: Sandbox, clock: ActClock
    ) -> contextlib.AbstractAsyncContextManager[None]:
        """Serves an agent its model for a block."""
        line = self.lines.get(plan.number)
        if line is None or line.sandbox_id != sandbox.id:
            assert isinstance(memory, Remembered)  # noqa: S101
            line = self._line(plan.number, memory)
        return self._all_lines.serving(line, sandbox, clock)

    def dropped(self, memory: Memory) -> None:
        """An attempt is given up."""
        for number, line in list(self.lines.items()):
            if line.memory is memory:
                self.drop_line(number)

    def drop_line(self, number: int) -> None:
        """Its agent is served no more."""
        line = self.lines.pop(number, None)
        if line is not None:
            self._all_lines.close(line)

    def _line(self, number: int, memory: Remembered) -> Line:
        settings = self.submit.model
        rollout = rollout_id(self.submit.job, number)
        line = self.lines[number] = Line(
            number,
            rollout,
            memory,
            self.requests,
            aside=self._all_lines.aside,
            token=token_of(self.book.sheet.secret, rollout, memory.attempt),
            models=(settings.model,) if settings is not None else ("default",),
            pause_after_s=self.submit.pause_after_s,
            heard=self._heard,
        )
        return line

    def _heard(self, line: Line, note: Note) -> None:
        """An agent asks its model."""
        if isinstance(note, Asked):
            now = time.monotonic()
            if note.ordinal:
                self.pace.think.saw(now - line.answered_at)
            elif line.number in self._turn_at:
                self.pace.start.saw(now - self._turn_at[line.number])
            step = f"{line.memory.attempt}.ask.{note.ordinal}"
            data = {"action": "ask", "call": str(note.call)}
            self._tell(line.number, step, data, request=note.body)
        self.pulse.tick()

    def answered(self, name: Name, given: Given) -> None:
        """An answer is on record."""
        step = f"{name.attempt}.answer.{name.ordinal}"
        data = {"action": "answer", "status": given.status}
        self._tell(name.number, step, data, answer=given.body)
        self.pulse.tick()

    def _tell(self, number: int, step: str, data: dict[str, Any], **bodies: bytes) -> None:
        """Writes what people read into the log, if that can be written; the book has it already."""
        with contextlib.suppress(Standstill):
            outputs = {name: self.log.output(body) for name, body in bodies.items()}
            self.log.event(rollout_id(self.submit.job, number), step, data | outputs)

    async def look(self) -> None:
        """Lets the rollouts' clocks stand still while the job's sandboxes do."""
        with contextlib.suppress(SkerryError):
            job = await self._client.jobs.get(self.submit.job)
            self.clocks.stand(still=job.created_as.state is JobState.PAUSED)

    def close(self) -> None:
        """Closes the log."""
        self.log.close()


async def _kept(write: Callable[[], object]) -> None:
    """Writes a line, however long that takes."""
    while True:
        try:
            write()
            return
        except Standstill as error:
            log.warning("the record of a job: %s", error)
            await asyncio.sleep(AGAIN_MAX_S)


def policies_of(submit: Submit) -> list[Policy]:
    """Returns who acts, in the order of `submit.actors`; InvalidRequest for a name that is none."""
    found: list[Policy] = [policy_named(name) for name in submit.policies]
    if submit.scaffold is not None:
        found.append(Command(submit.scaffold))
    if submit.model is not None:
        found.append(Model(submit.model))
    return found
