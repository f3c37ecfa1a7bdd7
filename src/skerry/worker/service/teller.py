"""Tells the node of an agent's model requests, for the record of its sandbox: each once.

An answer never waits for it: it is told afterwards, by a task of its own, in the order of the answers.
All of them are on record before the agent's work is collected, so that they stand where they belong:
before what came of them. What is told is a function of the book, and its operation id of rollout,
attempt and ordinal, so that a worker that was killed in between tells the node nothing new.
"""

from __future__ import annotations

import asyncio
import logging

from skerry.errors import Fault, SkerryError
from skerry.integrity.conduct import DEEDS_MAX, TOTAL_MAX
from skerry.worker.aside import Aside
from skerry.worker.ids import asked_id
from skerry.worker.memory import Given, NodeAway, NotRecorded, Told
from skerry.worker.model import telling
from skerry.worker.model.book import Asked
from skerry.worker.ports import Sandbox
from skerry.worker.service.remembered import Remembered

log = logging.getLogger("skerry.worker")
AGAIN_FIRST_S = 0.5
AGAIN_MAX_S = 30.0
READS_MAX = (
    5  # a body that costs its reader the process each time must not hold a rollout up for ever
)


class Teller:
    """Of one attempt. Invariant: an ordinal in the queue has an answer and is not `told`."""

    def __init__(self, rollout: str, memory: Remembered, aside: Aside) -> None:
        self._aside = aside
        self._rollout = rollout
        self._memory = memory
        self._queue = {one: None for one in memory.given if one not in memory.told}
        self._more = asyncio.Event()
        self._unread: dict[int, int] = {}  # how often a request could not be read just then

    def answered(self, ordinal: int) -> None:
        """An answer is on record."""
        self._queue[ordinal] = None
        self._more.set()

    async def run(self, sandbox: Sandbox) -> None:
        """Tells what is answered, for ever; what goes wrong is tried again later."""
        pause = AGAIN_FIRST_S
        while True:
            try:
                await self._tell_all(sandbox)
            except (SkerryError, NotRecorded) as error:
                log.warning("%s: model requests are not on record yet: %s", sandbox.id, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, AGAIN_MAX_S)
                continue
            pause = AGAIN_FIRST_S
            self._more.clear()
            await self._more.wait()

    async def finish(self, sandbox: Sandbox) -> None:
        """Returns when all is told, requests that have no answer too; `run` must have ended.

        Raises NodeAway if the node cannot take it now, NotRecorded: then the rollout stands still.
        """
        try:
            await self._tell_all(sandbox)
            for ordinal in sorted(self._memory.open - self._memory.told):
                await self._tell(sandbox, ordinal)
        except SkerryError as error:
            raise NodeAway(error.message) from error

    async def _tell_all(self, sandbox: Sandbox) -> None:
        while self._queue:
            ordinal = next(iter(self._queue))
            if ordinal not in self._memory.told:
                await self._tell(sandbox, ordinal)
            self._queue.pop(ordinal, None)

    async def _tell(self, sandbox: Sandbox, ordinal: int) -> None:
        """Tells of one; what cannot be read, or the node can never take, is left out, and logged.

        Raises SkerryError for a fault that may pass.
        """
        try:
            event, words = await self._read(ordinal)
        except Exception as error:  # no reason to give the agent's work up
            if self._may_pass(ordinal, error):
                raise
            log.exception("%s: request %d is not on record", sandbox.id, ordinal)
            self._memory.note(Told(ordinal=ordinal))
            return
        try:
            await sandbox.record(
                telling.ACTION,
                request=event.request,
                result=event.result,
                started=event.started,
                ended=event.ended,
                usage=event.usage,
                op_id=asked_id(self._rollout, self._memory.attempt, ordinal),
            )
        except SkerryError as error:
            if error.fault is Fault.PLATFORM:
                raise
            log.warning("%s: request %d is not on record: %s", sandbox.id, ordinal, error)
        self._memory.note(Told(ordinal=ordinal, words=words[: self._room()]))

    def _may_pass(self, ordinal: int, error: Exception) -> bool:
        """Says whether what kept a request from being read is worth another try, and counts it."""
        if not (isinstance(error, SkerryError) and error.fault is Fault.PLATFORM):
            return False
        self._unread[ordinal] = self._unread.get(ordinal, 0) + 1
        return self._unread[ordinal] < READS_MAX

    def _room(self) -> int:
        """Returns how many characters of answers are still looked at."""
        known = self._memory.words
        if len(known) >= DEEDS_MAX:
            return 0
        return max(0, TOTAL_MAX - sum(map(len, known.values())))

    async def _read(self, ordinal: int) -> tuple[telling.Told, str]:
        """Returns what the trajectory says of a request, and what its answer had the agent do."""
        memory = self._memory
        asked = memory.request(ordinal)
        given = memory.answer(ordinal) if ordinal in memory.given else None
        size = len(asked.body) + (len(given.body) if given is not None else 0)
        return await self._aside.call(size, both, memory.attempt, asked, given)


def both(attempt: int, asked: Asked, given: Given | None) -> tuple[telling.Told, str]:
    """Returns what is told of a request, and what its answer had the agent do. Pure."""
    event = telling.told(attempt, asked, given)
    if given is None or given.status != 200:
        return event, ""
    return event, telling.words(asked.call, given.body)
