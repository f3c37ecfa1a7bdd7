"""Commands in the background of a rollout: those that have ended are answered from the record."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from skerry.sdk.repeat import answers
from skerry.sdk.repeat.calls import Query
from skerry.sdk.trajectories import AsyncTrajectories
from skerry.spec.command import RunResult
from skerry.spec.trajectory import Event
from skerry.wire.http import OpStatus, StdinTaken


class About(Protocol):
    """A request about a command."""

    @property
    def method(self) -> str: ...  # noqa: D102
    @property
    def query(self) -> Query: ...  # noqa: D102
    @property
    def content(self) -> bytes | None: ...  # noqa: D102


class Handles:
    """By operation id. Input is counted from the begin in each run: the node skips what it has had."""

    def __init__(self, trajectories: AsyncTrajectories) -> None:
        self._trajectories = trajectories
        self._ended: dict[str, Event] = {}
        self._fed: dict[str, int] = {}

    def remember(self, op: str, event: Event) -> OpStatus:
        """Takes a command that has ended, and returns what its start was answered with."""
        self._ended[op] = event
        return answers.running(event, op)

    def fresh(self, op: str) -> None:
        """A command was started, or joined."""
        self._fed[op] = 0

    async def result(self, op: str) -> RunResult | None:
        """Returns the result of a command that has ended; None if it may still run. Raises its error."""
        event = self._ended.get(op)
        if event is None:
            return None
        if event.error is not None:
            raise answers.error_of(event)
        return await answers.run_result(event, self._trajectories)

    async def answer(self, op: str, what: str, asked: About) -> Any:
        """Returns the answer of a request about a command that has ended; None if it may still run."""
        event = self._ended.get(op)
        if event is None:
            return None
        if asked.method == "GET" and not what:
            return await answers.status(event, op, self._trajectories)
        if what == "stdin":  # it went there in the run that was recorded
            return StdinTaken(_end(asked), open=False)
        return {}

    def seen(self, tail: str, asked: About, found: Any) -> Any:
        """Returns an answer about a command under way as this run's handle has to see it."""
        op, _, what = tail.removeprefix("/ops/").partition("/")
        if op not in self._fed:
            return found
        if isinstance(found, OpStatus):
            return msgspec.structs.replace(found, stdin_total=self._fed[op])
        if isinstance(found, StdinTaken) and what == "stdin":
            # The node says how far it is, which may be beyond what this run has sent.
            self._fed[op] = _end(asked)
            return msgspec.structs.replace(found, offset=self._fed[op])
        return found


def _end(asked: About) -> int:
    """Returns up to where input goes that is sent."""
    return int(asked.query.get("offset", "0")) + len(asked.content or b"")
