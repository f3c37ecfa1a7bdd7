"""Finds backends by entry point (group `skerry.backends`), so that nothing imports one."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from skerry.backends.api import Backend
from skerry.errors import InvalidRequest

GROUP = "skerry.backends"


def names() -> list[str]:
    """Returns the installed backends' names, sorted."""
    return sorted(point.name for point in entry_points(group=GROUP))


def load(name: str, **arguments: Any) -> Backend:
    """Returns a backend made by its entry point; InvalidRequest names the ones that exist."""
    for point in entry_points(group=GROUP, name=name):
        backend: Backend = point.load()(**arguments)
        return backend
    raise InvalidRequest(f"there is no backend {name!r}; installed: {', '.join(names()) or 'none'}")
