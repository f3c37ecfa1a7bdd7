"""The seam between rollouts and their models: a line of requests for each agent sandbox.

`worker/model` speaks OpenAI's protocol to whoever asks from inside and decides which ordinal a
request has; the service keeps the line in its book and gets the answers from the trainer. What a
line says of an ordinal is on record before a call returns, so a worker that is killed at any moment
finds the same line again. Connections are not on record: after a restart there is none.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec


class Asked(msgspec.Struct, kw_only=True):
    """One request of a line. Only the service writes to it."""

    ordinal: int  # from 0, without gaps
    endpoint: str  # "chat.completions" or "responses"
    digest: str
    answered: bool = False
    delivered: bool = False  # all bytes of its answer were handed to a connection once
    paused: bool = False  # its sandbox was paused while it waited
    repeated: bool = False  # a client came again for it after that pause


class Reply(msgspec.Struct, frozen=True):
    """The recorded answer: the object, and the HTTP status with which it is given."""

    body: dict[str, Any]
    status: int = 200


class ModelLine(Protocol):
    """The requests of one attempt of a rollout."""

    token: str  # the API key of its sandbox
    asked: list[Asked]

    async def ask(self, endpoint: str, digest: str, body: dict[str, Any]) -> Asked:
        """Records a new request, with the next ordinal; it is the trainer's when this returns.

        Raises Overloaded for more requests than an attempt may make, Conflict once the rollout no
        longer acts.
        """

    async def reply(self, ordinal: int) -> Reply:
        """Returns the recorded answer, however long that takes; Conflict if none will come."""

    def is_paused(self) -> bool:
        """Returns whether the worker has paused the sandbox: then the answer must resume it."""

    async def delivered(self, ordinal: int) -> None:
        """Records that all bytes of the answer were handed over."""

    async def repeated(self, ordinal: int) -> None:
        """Records that a client came again for a request that had waited over a pause."""


class Lines(Protocol):
    """All lines of a worker."""

    def line_of(self, sandbox: str) -> ModelLine | None:
        """Returns the line of an agent's sandbox, by its id."""
