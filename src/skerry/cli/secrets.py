"""The only place that reads the environment: the node's address and named secrets (design §12)."""

from __future__ import annotations

import os

from skerry.errors import InvalidRequest


def secret_from(variable: str, *, required: bool = False) -> str | None:
    """Returns the variable's value, None if it is unset or empty; InvalidRequest if it is required."""
    value = os.environ.get(variable) or None
    if value is None and required:
        raise InvalidRequest(f"the environment variable {variable} is not set")
    return value


def state_home() -> str:
    """Returns the directory for a user's own state by the XDG convention."""
    return os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")


def cache_home() -> str:
    """Returns the directory for what can be fetched again.

    SKERRY_CACHE if it is set, as `make setup` takes it; else the machine's for root, or the user's.
    """
    if named := os.environ.get("SKERRY_CACHE"):
        return os.path.abspath(named)
    if os.geteuid() == 0:
        return "/var/cache/skerry"
    return os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "skerry"
    )


def environment() -> dict[str, str]:
    """Returns the environment for programs of the user's own: pip's settings and proxies are in it."""
    return dict(os.environ)
