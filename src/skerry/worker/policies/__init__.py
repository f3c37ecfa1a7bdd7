"""Policies: what acts in a rollout. Each is one class with `name`, `variant` and `act`."""

from __future__ import annotations

from skerry.errors import InvalidRequest
from skerry.worker.policies.cheat import Cheat
from skerry.worker.policies.scripted import Gold, Noop
from skerry.worker.session import Policy

__all__ = ["SCRIPTED", "policy_named"]

SCRIPTED = ("gold", "noop", "cheat")


def policy_named(name: str) -> Policy:
    """Returns a scripted policy; `cheat:VARIANT` always uses that cheat. Raises InvalidRequest."""
    kind, _, variant = name.partition(":")
    if kind == "cheat":
        return Cheat(variant or None)
    if name == "gold":
        return Gold()
    if name == "noop":
        return Noop()
    raise InvalidRequest(f"no policy {name!r}: one of {', '.join(SCRIPTED)}, or a model's URL")
