"""Where the tasks that come with Skerry are, and what a word on the command line names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import skerry
from skerry.cli.checkout import checkout
from skerry.errors import NotFound

FILE = "task.toml"


def shipped_tasks() -> Path | None:
    """Returns the directory of tasks: of the checkout, else of the package; None if there is none."""
    root = checkout()
    places = [root / "examples/tasks"] if root is not None else []
    places.append(Path(skerry.__file__).parent / "_tasks")
    for place in places:
        if next(place.glob(f"*/{FILE}"), None) is not None:
            return place
    return None


def task_paths(words: Iterable[str]) -> list[Path]:
    """Returns the paths that words name: paths, or ids of tasks that come with Skerry."""
    shipped = shipped_tasks()
    found = []
    for word in words:
        path = Path(word)
        if not path.exists() and shipped is not None and (shipped / word / FILE).is_file():
            path = shipped / word
        if not path.exists():
            hint = f"`skerry task ls` lists those in {shipped}" if shipped else None
            raise NotFound(f"there is no task {word}", hint=hint)
        found.append(path)
    return found


def all_tasks() -> Path:
    """Returns the directory of the tasks that come with Skerry; NotFound if this has none."""
    shipped = shipped_tasks()
    if shipped is None:
        raise NotFound(
            "no tasks come with this installation",
            hint="name some: a directory of tasks, or write one with `skerry task new DIR`",
        )
    return shipped
