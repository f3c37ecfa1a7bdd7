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
