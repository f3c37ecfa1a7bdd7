"""How often and how long a request to a store is repeated: with jitter, bounded, and told in the end."""

from __future__ import annotations

import contextlib
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TypeVar

from skerry.images.objects.s3_faults import Trouble

log = logging.getLogger("skerry.images.s3")
_at_most: ContextVar[float] = ContextVar("_at_most", default=math.inf)
_T = TypeVar("_T")

FIRST_WAIT_S = 0.1
WAIT_MAX_S = 5.0


@contextlib.contextmanager
def patient_at_most(seconds: float) -> Iterator[None]:
    """Within the block, and in threads that share its context, calls repeat no longer than that."""
    token = _at_most.set(min(seconds, _at_most.get()))
    try:
        yield
    finally:
        _at_most.reset(token)


class Failed(Exception):
    """One try failed; `trouble` says whether a repeat may help."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.said)
        self.trouble = trouble


class Patience:
    """Repeats what fails in passing until `seconds` are over, waiting a random time in between.

    The wait doubles from 0.1 to 5 s, and is drawn between a half and the whole of that: many nodes
    that lost the same store do not come back to it in step.
    """

    def __init__(
        self,
        where: str,
        seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self.where = where
        self._seconds = seconds
        self._clock = clock
        self._hurry = threading.Event()
        self._sleep = sleep or self._hurry.wait
        self._chance = random.Random()  # noqa: S311 - spreads load, guards nothing
        self.repeats = 0  # since the start, over all threads; about right is enough
        self.failures = 0

    def hurry(self) -> None:
        """From now on nothing is repeated, and who waits to repeat something tries once more."""
        self._hurry.set()

    def run(
        self, what: str, work: Callable[[int], _T], *, vain: Callable[[], bool] = lambda: False
    ) -> _T:
        """Returns what `work` returns; it is given the number of tries before.

        Raises StorageFailed when a try fails for good, when time is up, or when it is in vain.
        """
        until = self._clock() + min(self._seconds, _at_most.get())
        wait = FIRST_WAIT_S
        tries = 0
        while True:
            try:
                return work(tries)
            except Failed as failed:
                tries += 1
                pause = wait * self._chance.uniform(0.5, 1.0)
                late = self._clock() + pause > until or self._hurry.is_set() or vain()
                if late or not failed.trouble.passing:
                    self.failures += 1
                    raise failed.trouble.error(what, self.where, tries) from None
                if tries == 1:
                    log.info("%s: %s: %s; trying again", what, self.where, failed.trouble.said)
            self.repeats += 1
            self._sleep(pause)
            wait = min(wait * 2, WAIT_MAX_S)
