"""Names that are the same in every run of a rollout: of its sandboxes, of their operations."""

from __future__ import annotations

import hashlib
from typing import Final

MARKER: Final = "skerry.rollout"  # the label of a sandbox that stands in for another one


def derived(*parts: str | int) -> str:
    """Returns 32 hexadecimal digits that tell these parts from all others."""
    return hashlib.blake2b(_told(*parts), digest_size=16).hexdigest()


def sandbox_key(rollout: str, sandbox: str, generation: int) -> str:
    """Returns the idempotency key with which a sandbox of a rollout is created."""
    return derived("sandbox", rollout, sandbox, generation)


class Operations:
    """The ids of the operations of one sandbox of a rollout."""

    def __init__(self, rollout: str, sandbox: str) -> None:
        self._begun = hashlib.blake2b(_told("op", rollout, sandbox), digest_size=16)

    def id(self, ordinal: int, generation: int, attempt: int) -> str:
        """Returns the id of an operation; `attempt` counts those whose outcome is unknown."""
        digest = self._begun.copy()
        digest.update(b"%d.%d.%d" % (ordinal, generation, attempt))
        return digest.hexdigest()


def refusal(op: str) -> str:
    """Returns the id under which it is recorded that the operation was refused."""
    return op[16:] + op[:16]


def marker(why: str, first: int) -> str:
    """Returns the label's value: why there is another sandbox, and from which operation on."""
    return f"{why}:{first}"


def read_marker(value: str | None) -> tuple[str, int]:
    """Returns what a label says; ("", 0) if it is none."""
    why, _, first = (value or "").partition(":")
    return (why, int(first)) if why and first.isascii() and first.isdigit() else ("", 0)


def _told(*parts: str | int) -> bytes:
    return b"".join(b"%d:%b" % (len(raw), raw) for raw in (str(part).encode() for part in parts))
