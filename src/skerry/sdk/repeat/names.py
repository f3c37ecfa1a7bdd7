"""Names that are the same in every run of a rollout: of its sandboxes, of their operations."""

from __future__ import annotations

import hashlib
from typing import Final

MARKER: Final = "skerry.rollout"  # the label of a sandbox that stands in for another one


def derived(*parts: str | int) -> str:
    """Returns 32 hexadecimal digits that tell these parts from all others."""
    told = b"".join(b"%d:%b" % (len(raw), raw) for raw in (str(part).encode() for part in parts))
    return hashlib.blake2b(told, digest_size=16).hexdigest()


def sandbox_key(rollout: str, sandbox: str, generation: int) -> str:
    """Returns the idempotency key with which a sandbox of a rollout is created."""
    return derived("sandbox", rollout, sandbox, generation)


def operation(rollout: str, sandbox: str, ordinal: int, generation: int, attempt: int) -> str:
    """Returns the id of an operation; `attempt` counts those whose outcome is unknown."""
    return derived("op", rollout, sandbox, ordinal, generation, attempt)


def refusal(op: str) -> str:
    """Returns the id under which it is recorded that the operation was refused."""
    return derived("refused", op)


def marker(why: str, first: int) -> str:
    """Returns the label's value: why there is another sandbox, and from which operation on."""
    return f"{why}:{first}"


def read_marker(value: str | None) -> tuple[str, int]:
    """Returns what a label says; ("", 0) if it is none."""
    why, _, first = (value or "").partition(":")
    return (why, int(first)) if why and first.isascii() and first.isdigit() else ("", 0)
