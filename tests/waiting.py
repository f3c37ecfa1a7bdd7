"""Waiting in tests for what ends by itself, with a deadline that only a failure reaches."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

from skerry.backends.shared import proc

WITHIN_S = 20.0


def soon(holds: Callable[[], bool], within_s: float = WITHIN_S) -> bool:
    """Whether it holds, now or before the deadline."""
    until = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


async def until(
    holds: Callable[[], bool | Awaitable[bool]], within_s: float = WITHIN_S, pause_s: float = 0.01
) -> None:
    """Returns once it holds."""
    end = time.monotonic() + within_s
    while not (await answer if inspect.isawaitable(answer := holds()) else answer):
        assert time.monotonic() < end, "it never came to hold"
        await asyncio.sleep(pause_s)


def ended(pid: int, within_s: float = WITHIN_S) -> bool:
    """Whether a process that is no child of this one has ended, now or before the deadline.

    That its number is gone would be too much: an orphan that has ended keeps it until the host's
    first process collects it, which takes its time on a busy machine.
    """
    return soon(lambda: not proc.runs(pid), within_s)
