"""What a rollout adds to the record of a sandbox itself, where the node has no word for it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from skerry.errors import FileRefused, NotFound, OutcomeUnknown, SkerryError
from skerry.sdk.repeat import names
from skerry.sdk.repeat.calls import Step
from skerry.sdk.repeat.line import Turn
from skerry.spec.trajectory import as_json, request_digest
from skerry.wire.events import EventsBody, PostedEvent
from skerry.wire.http import ErrorBody

Post = Callable[[str, str, EventsBody], Awaitable[Any]]  # sandbox, operation id, what

_TOLD_BY_NODE = frozenset({"file", "tree", "disk"})


class Notes:
    """Each is recorded once, under the id of its operation."""

    def __init__(self, post: Post) -> None:
        self._post = post

    async def mark(self, step: Step, turn: Turn, found: Any) -> None:
        """An operation without an id of its own has its answer, or is about to be done."""
        answer = None if found is None else as_json(msgspec.to_builtins(found))
        event = PostedEvent(action=step.action, request=step.request, result={"answer": answer})
        await self._post(turn.chapter.sandbox, turn.op, EventsBody((event,)))

    @contextlib.asynccontextmanager
    async def told(self, step: Step, turn: Turn) -> AsyncIterator[None]:
        """A refusal that the node does not record is recorded here: a later run is refused, too."""
        try:
            yield
        except SkerryError as error:
            if not self._known(step, error):
                with contextlib.suppress(SkerryError):
                    await self._refused(step, turn, error)
            raise

    def _known(self, step: Step, error: SkerryError) -> bool:
        if isinstance(error, OutcomeUnknown):
            return True
        theirs = not step.marked and step.action.partition(".")[0] in _TOLD_BY_NODE
        return theirs and isinstance(error, FileRefused | NotFound)

    async def _refused(self, step: Step, turn: Turn, error: SkerryError) -> None:
        request = {"action": step.action, "digest": request_digest(step.request)}
        result = {"error": msgspec.to_builtins(ErrorBody.of(error))}
        event = PostedEvent(action="harness.refused", request=request, result=result)
        await self._post(turn.chapter.sandbox, names.refusal(turn.op), EventsBody((event,)))
