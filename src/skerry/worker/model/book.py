"""What serving a model needs of the worker's durable record: see `Book`.

A model request has an **ordinal**, counted from 0 in its rollout. Every decision about ordinals is a
note; notes are made durable before anything comes of them, and given back after a restart. Then the
same requests, sent again, lead to the same ordinals: `skerry.worker.model.ordinals`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Protocol, TypeAlias

import msgspec


class Call(StrEnum):
    """Which of the model's calls it is."""

    CHAT = "chat.completions"
    RESPONSES = "responses"


class Asked(msgspec.Struct, frozen=True, kw_only=True, tag="asked"):
    """A new request: what the trainer is to answer once."""

    ordinal: int
    call: Call
    digest: str  # sha256 of call and canonical body, in hexadecimal
    relay: str  # how the node names the request that it relays
    body: bytes  # JSON, as the scaffold sent it
    at: float  # seconds since 1970
    stream: bool = False  # how the answer is to be given
    usage: bool = False  # at the end of the stream


class Again(msgspec.Struct, frozen=True, kw_only=True, tag="again"):
    """A request that is an earlier one once more: it gets that one's answer."""

    ordinal: int
    relay: str
    at: float


class Handed(msgspec.Struct, frozen=True, kw_only=True, tag="handed"):
    """The node has handed all of an answer to the sandbox.

    `held`: the sandbox was paused meanwhile, so that its client may have stopped waiting.
    """

    relay: str
    held: bool = False


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The answer is an error after which a client may try again: then it is asked anew."""

    ordinal: int


Note: TypeAlias = Asked | Again | Handed | Failed


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A complete answer, as `skerry.worker.model.answers.complete` makes it."""

    body: bytes  # JSON; also where the client asked for a stream
    status: int = 200


class Book(Protocol):
    """The worker's record, as far as the model's side uses it; called from one event loop.

    A rollout is a name that the book chooses. Where an error is raised, the scaffold hears of it in
    the shape that OpenAI gives to errors.
    """

    def rollout(self, sandbox: str, token: str) -> str:
        """Returns the rollout whose agent sandbox this is.

        `sandbox` is true: the node says it. `token` is what the client says to be. Raises Unauthorized
        if it is not that rollout's, NotFound if the sandbox is nobody's.
        """
        ...

    def models(self, rollout: str) -> Sequence[str]:
        """Returns the names of the models that the rollout may ask; not empty."""
        ...

    def notes(self, rollout: str) -> Iterable[Note]:
        """Returns all notes of the rollout in order; asked once, unless the handler forgets it.

        Bodies may be left out of them.
        """
        ...

    def reading(self, rollout: str) -> AbstractContextManager[None]:
        """A long body of the rollout is read for a block, or waits until others' are."""
        ...

    async def note(self, rollout: str, notes: Sequence[Note]) -> None:
        """Returns when the notes are durable, in this order, after all that came before.

        An `Asked` among them is queued for the trainer from then on. Raises Overloaded, Conflict (the
        rollout asks no more: it has ended), StorageFailed; then none of them was taken.
        """
        ...

    async def answer(self, rollout: str, ordinal: int) -> Answer:
        """Returns the ordinal's one answer, whenever it comes; it is durable by then.

        There is no timeout. When this is cancelled the client has left; the request stays. Raises
        Conflict when the rollout has ended without an answer.
        """
        ...

    def resumes(self, rollout: str) -> bool:
        """Whether the node is to resume the sandbox with an answer that is handed over now.

        Not if whoever paused it did so for another reason than this rollout's waiting.
        """
        ...
