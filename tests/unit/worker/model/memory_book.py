"""A book in memory: what is written into it outlives the handlers that use it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from skerry.errors import NotFound, Unauthorized
from skerry.worker.model.answers import complete
from skerry.worker.model.book import Answer, Asked, Note


class MemoryBook:
    """Rollouts by sandbox; `token-SANDBOX` is its token. `give` is what a trainer does."""

    def __init__(self, *sandboxes: str) -> None:
        self.log: dict[str, list[Note]] = {f"rollout of {name}": [] for name in sandboxes}
        self.answers: dict[tuple[str, int], asyncio.Future[Answer]] = {}
        self.resume = False
        self.waited = asyncio.Event()  # somebody waits, or did, for an answer
        self.broken: Exception | None = None

    def rollout(self, sandbox: str, token: str) -> str:
        name = f"rollout of {sandbox}"
        if name not in self.log:
            raise NotFound(f"{sandbox!r} is no sandbox of this worker")
        if token != f"token-{sandbox}":
            raise Unauthorized("not this rollout's key")
        return name

    def models(self, rollout: str) -> Sequence[str]:
        return ("policy",)

    def notes(self, rollout: str) -> Iterable[Note]:
        return tuple(self.log[rollout])

    def reading(self, rollout: str) -> AbstractContextManager[None]:
        return nullcontext()

    async def note(self, rollout: str, notes: Sequence[Note]) -> None:
        await asyncio.sleep(0)
        if self.broken is not None:
            raise self.broken
        self.log[rollout] += notes

    async def answer(self, rollout: str, ordinal: int) -> Answer:
        self.waited.set()
        return await asyncio.shield(self._slot(rollout, ordinal))

    def resumes(self, rollout: str) -> bool:
        return self.resume

    def asked(self, sandbox: str) -> list[Asked]:
        """Returns what the trainer is to answer, or was."""
        return [note for note in self.log[f"rollout of {sandbox}"] if isinstance(note, Asked)]

    def give(self, sandbox: str, ordinal: int, given: Any) -> None:
        """Answers an ordinal."""
        answer = complete(self.asked(sandbox)[ordinal], given)
        self._slot(f"rollout of {sandbox}", ordinal).set_result(answer)

    def _slot(self, rollout: str, ordinal: int) -> asyncio.Future[Answer]:
        key = rollout, ordinal
        if key not in self.answers:
            self.answers[key] = asyncio.get_running_loop().create_future()
        return self.answers[key]
