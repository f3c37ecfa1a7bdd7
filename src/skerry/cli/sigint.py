"""SIGINT where there is nothing to clean up: while a process starts, and when it has said all.

Python raises KeyboardInterrupt wherever it happens to be, in the midst of an import too, and shows where
that was. A process of ours leaves at once instead, with the status of an interrupted command. While a
command runs, it is Python's way or the loop's (`loop.py`), for then there may be something to undo.
"""

from __future__ import annotations

import os
import signal

STATUS = 128 + signal.SIGINT
_own = False


def own_process() -> None:
    """From now on the process is ours: SIGINT ends it at once, unless that was ignored before."""
    global _own  # noqa: PLW0603 - there is one process
    _own = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    leave_at_once()


def leave_at_once() -> None:
    """SIGINT ends the process with 130, if it is ours."""
    if _own:
        signal.signal(signal.SIGINT, _leave)


def raise_again() -> None:
    """SIGINT raises KeyboardInterrupt, so that a command may clean up."""
    if _own:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(*_: object) -> None:
    os._exit(STATUS)
