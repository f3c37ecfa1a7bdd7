"""What must be undone even when the process leaves at once."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator


class AtExit:
    """What must be undone even if the process leaves at once, like the terminal's raw mode."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    @contextlib.contextmanager
    def undoing(self, undo: Callable[[], None]) -> Iterator[None]:
        """Calls `undo` at the end of the block, or when the process leaves before."""
        self._undo.append(undo)
        try:
            yield
        finally:
            self._undo.remove(undo)
            undo()

    def leave(self, status: int) -> None:
        """Ends the process now."""
        for undo in reversed(self._undo):
            undo()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(status)
