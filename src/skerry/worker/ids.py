"""Ids that are the same each time a rollout is run: they are what makes its steps repeatable."""

from __future__ import annotations

import hashlib


def operation_id(rollout: str, attempt: int, step: int) -> str:
    """Returns the id of a step's operation: 32 hexadecimal digits, as a node takes them."""
    text = f"{rollout}\x00{attempt}\x00{step}".encode()
    return hashlib.blake2b(text, digest_size=16, person=b"skerry-step").hexdigest()


def verdict_id(rollout: str, attempt: int) -> str:
    """Returns the id under which the verdict on an agent's sandbox is recorded, once."""
    text = f"{rollout}\x00{attempt}".encode()
    return hashlib.blake2b(text, digest_size=16, person=b"skerry-verdict").hexdigest()


def asked_id(rollout: str, attempt: int, ordinal: int) -> str:
    """Returns the id under which a model request is in the record of its sandbox, once."""
    text = f"{rollout}\x00{attempt}\x00{ordinal}".encode()
    return hashlib.blake2b(text, digest_size=16, person=b"skerry-asked").hexdigest()


def agent_key(rollout: str, attempt: int) -> str:
    """Returns the key under which an attempt's sandbox is made, once."""
    return f"rollout/{rollout}/{attempt}"


def verifier_key(rollout: str, number: int) -> str:
    """Returns the key of a verification's sandbox."""
    return f"rollout/{rollout}/verify/{number}"
