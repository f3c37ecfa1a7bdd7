"""What serves agents their models: one line of requests for each agent's sandbox.

`worker.model` speaks the protocol and decides about ordinals; this is the record that it works with.
The answers come from the trainer, by the job's requests. A line also decides when its sandbox is to
be paused: when a request waits and nothing has gone on for `pause_after_s`.

A line is there from before its agent starts until that acts no more, over everything that happens to
the worker and the node meanwhile: an agent is never told that nobody knows it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager

from skerry.errors import Conflict, NotFound, SkerryError, StorageFailed, Unauthorized
from skerry.spec.worker import request_id
from skerry.worker.aside import BYTES_MAX, Aside
from skerry.worker.clock import ActClock
from skerry.worker.memory import NotRecorded, Several, Standstill, Stilled
from skerry.worker.model.book import Answer, Asked, Note
from skerry.worker.ports import Sandbox
from skerry.worker.service.remembered import Remembered
from skerry.worker.service.requests import Name, Requests
from skerry.worker.service.teller import Teller

log = logging.getLogger("skerry.worker")
RESUME_AFTER_S = 5.0  # after an answer that nobody came for
OWED = "an answer is owed"
READING = "a long body is read"
UNRECORDED = "a request cannot be recorded"
UNRECORDED_S = (
    30.0  # without another try: the node tries each second for as long as the client waits
)


def token_of(secret: bytes, rollout: str, attempt: int) -> str:
    """Returns the API key of an attempt's sandbox."""
    key = hashlib.blake2b(f"{rollout}\x00{attempt}".encode(), key=secret, digest_size=20)
    return f"sk-{key.hexdigest()}"


class Line:
    """The model requests of one attempt, while it acts.

    Invariants: the clock, once there is one, is held exactly while a request has no answer, a long body
    is read or waits for that, or a request comes again and again that cannot be recorded; `paused` is
    true from before the sandbox is paused until an answer was handed over, or it was resumed.
    """

    def __init__(
        self,
        number: int,
        rollout: str,
        memory: Remembered,
        requests: Requests,
        *,
        aside: Aside,
        token: str,
        models: Sequence[str],
        pause_after_s: float,
        heard: Callable[[Line, Note], None],
    ) -> None:
        self.number = number
        self.memory = memory
        self.teller = Teller(rollout, memory, aside)
        self.sandbox_id = memory.sandbox or ""
        self.token = token
        self.models = models
        self.paused = memory.stilled
        self.answered_at = self._moved = time.monotonic()
        self._requests = requests
        self._pause_after_s = pause_after_s
        self._heard = heard
        self._given: dict[int, asyncio.Event] = {}
        self._closed = asyncio.Event()
        self._turning = asyncio.Lock()
        self._at: tuple[Sandbox, ActClock] | None = None
        self._readings = 0  # long bodies that are read, or wait for that
        self._failed_at: float | None = None  # the last try to record a request
        for ordinal in sorted(memory.open):
            requests.add(self._name(ordinal), memory.asked_at[ordinal])

    def attach(self, sandbox: Sandbox, clock: ActClock) -> None:
        """From here on the clock counts, and the sandbox can be paused."""
        self._at = (sandbox, clock)
        if self.memory.open:
            clock.hold(OWED)
        if self._readings:
            clock.hold(READING)
        if self._failed_at is not None:
            clock.hold(UNRECORDED)

    def detach(self) -> None:
        """The rollout stands still: requests are taken and answered all the same."""
        self._at = None

    @property
    def active_s(self) -> float:
        """For how long the agent has acted."""
        return self.memory.active_s if self._at is None else self._at[1].spent_s

    def _name(self, ordinal: int) -> Name:
        return Name(self.number, self.memory.attempt, ordinal)

    def note(self, notes: Sequence[Note]) -> None:
        """Records notes of the model's side; see `worker.model.book.Book.note`."""
        if self._closed.is_set():
            raise Conflict("the rollout acts no more")
        try:
            self.memory.note(notes[0] if len(notes) == 1 else Several(notes=tuple(notes)))
        except NotRecorded as error:
            self.stands_still()
            raise StorageFailed(str(error)) from error
        self._goes_on()
        for note in notes:
            self._moved = time.monotonic()
            if isinstance(note, Asked):
                if self._at is not None:
                    self._at[1].hold(OWED)
                self._requests.add(self._name(note.ordinal), note.at)
            self._heard(self, note)
        self.paused = self.paused and self.memory.stilled

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A long body is read for a block: the agent has sent it, and waits."""
        self._readings += 1
        if self._at is not None:
            self._at[1].hold(READING)
        try:
            yield
        finally:
            self._readings -= 1
            if not self._readings and self._at is not None:
                self._at[1].release(READING)

    def stands_still(self) -> None:
        """A request cannot be recorded: that is no time in which the agent acts."""
        self._failed_at = time.monotonic()
        if self._at is not None:
            self._at[1].hold(UNRECORDED)

    def _goes_on(self) -> None:
        self._failed_at = None
        if self._at is not None:
            self._at[1].release(UNRECORDED)

    def expire(self) -> None:
        """Who asked for what could not be recorded has left, if it does not ask again."""
        failed = self._failed_at
        if failed is not None and time.monotonic() - failed > UNRECORDED_S:
            self._goes_on()

    async def answer(self, ordinal: int) -> Answer:
        """Returns the recorded answer, whenever it comes; Conflict once none will come."""
        while ordinal in self.memory.open:
            given = self._given.setdefault(ordinal, asyncio.Event())
            ends = [asyncio.ensure_future(one.wait()) for one in (given, self._closed)]
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in ends:
                    one.cancel()
            if self._closed.is_set() and ordinal in self.memory.open:
                raise Conflict("the rollout has ended without an answer")
        found = self.memory.answer(ordinal)
        return Answer(body=found.body, status=found.status)

    def given(self, ordinal: int) -> None:
        """An answer is on record."""
        self._moved = self.answered_at = time.monotonic()
        self.teller.answered(ordinal)
        if not self.memory.open and self._at is not None:
            self._at[1].release(OWED)
        if ordinal in self._given:
            self._given.pop(ordinal).set()

    def close(self) -> None:
        """The attempt acts no more."""
        self._closed.set()
        self._at = None
        for ordinal in self.memory.open:
            self._requests.remove(self._name(ordinal))

    def is_due(self) -> bool:
        """Returns whether the sandbox is to be paused or resumed."""
        if self._turning.locked() or self._at is None:
            return False
        quiet = time.monotonic() - self._moved
        if self.memory.open:
            return not self.paused and quiet > self._pause_after_s
        return self.paused and quiet > RESUME_AFTER_S

    async def look(self) -> None:
        """Pauses or resumes the sandbox if it is time to; what goes wrong is tried again later."""
        if self._at is None or not self.is_due():
            return
        sandbox = self._at[0]
        async with self._turning:
            try:
                if self.memory.open:
                    await self._pause(sandbox)
                else:
                    await self._resume(sandbox)
            except (SkerryError, NotRecorded) as error:
                log.warning("%s: %s", self.sandbox_id, error)

    async def _pause(self, sandbox: Sandbox) -> None:
        moved = self._moved
        self.memory.note(Stilled(active_s=self.active_s))
        self.paused = True
        try:
            await sandbox.pause()
        except SkerryError:
            self._moved = time.monotonic()  # not again at once
            raise
        if self._moved != moved:  # an answer came meanwhile, and perhaps was handed over
            await self._resume(sandbox)

    async def _resume(self, sandbox: Sandbox) -> None:
        await sandbox.resume()
        self.paused = False


class Lines:
    """All lines of a worker: the `Book` of `worker.model`."""

    def __init__(self, forget: Callable[[str], None], aside: Aside) -> None:
        self.aside = aside
        self._by_sandbox: dict[str, Line] = {}
        self._forget = forget

    @asynccontextmanager
    async def serving(self, line: Line, sandbox: Sandbox, clock: ActClock) -> AsyncIterator[None]:
        """Serves a line for a block; after a Standstill it stays, else its agent acts no more."""
        self.open(line)
        line.attach(sandbox, clock)
        telling = asyncio.ensure_future(line.teller.run(sandbox))
        try:
            yield
            await _ended(telling)
            await line.teller.finish(sandbox)
        except (Standstill, asyncio.CancelledError):
            line.detach()
            raise
        except BaseException:
            self.close(line)
            raise
        else:
            self.close(line)
        finally:
            await _ended(telling)

    def open(self, line: Line) -> None:
        """The line's agent is known from here on."""
        self._by_sandbox[line.sandbox_id] = line

    def close(self, line: Line) -> None:
        """Its agent acts no more."""
        line.close()
        if self._by_sandbox.get(line.sandbox_id) is line:
            del self._by_sandbox[line.sandbox_id]
            self._forget(line.sandbox_id)

    def of(self, sandbox: str | None) -> Line | None:
        """Returns the line of a sandbox, if it acts now."""
        return self._by_sandbox.get(sandbox or "")

    def all(self) -> list[Line]:
        """Returns all lines."""
        return list(self._by_sandbox.values())

    def _line(self, rollout: str) -> Line:
        line = self._by_sandbox.get(rollout)
        if line is None:
            raise Conflict("the rollout acts no more")
        return line

    # --- worker.model.book.Book -----------------------------------------------------------------

    def rollout(self, sandbox: str, token: str) -> str:
        """Returns the name of the line, which is its sandbox's id; NotFound, Unauthorized."""
        line = self._by_sandbox.get(sandbox)
        if line is None:
            raise NotFound("no rollout acts in this sandbox")
        if not hmac.compare_digest(line.token.encode(), token.encode("utf-8", "surrogateescape")):
            raise Unauthorized("this is not the key of this sandbox")
        return sandbox

    def models(self, rollout: str) -> Sequence[str]:
        """Returns the models that may be asked."""
        return self._line(rollout).models

    def notes(self, rollout: str) -> Iterable[Note]:
        """Yields what is on record."""
        return self._line(rollout).memory.notes()

    def reading(self, rollout: str) -> AbstractContextManager[None]:
        """That is no time in which the agent acts."""
        return self._line(rollout).reading()

    async def note(self, rollout: str, notes: Sequence[Note]) -> None:
        """Records."""
        line = self._line(rollout)
        for note in notes:
            if isinstance(note, Asked) and len(note.body) > BYTES_MAX:
                try:
                    await line.memory.write_ahead(note)
                except StorageFailed:
                    line.stands_still()
                    raise
        line.note(notes)

    async def answer(self, rollout: str, ordinal: int) -> Answer:
        """Returns the recorded answer."""
        return await self._line(rollout).answer(ordinal)

    def resumes(self, rollout: str) -> bool:
        """Whether the answer resumes the sandbox: if it was paused here."""
        return self._line(rollout).paused


async def _ended(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def label(name: Name) -> str:
    """Returns the id of a request within its job."""
    return request_id(*name)
