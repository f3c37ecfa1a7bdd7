"""How long a client waits for room on a node, and when it asks again.

A refusal (429) changes nothing on the node, so asking again is always safe; that it does not become
a storm is the client's part: it waits in the node's own queue while it may, and comes back no sooner
than the node said; but at once where it has waited in the queue, and its place there is kept.
"""

from __future__ import annotations

import asyncio
import random

from skerry.errors import InvalidRequest, Overloaded
from skerry.spec.limits import CREATE_WAIT_MAX_S

WAIT_S = 30.0  # by default
SERVER_WAIT_S = 60.0  # the longest that one request waits in the node's queue
PAUSE_MIN_S = 0.2
PAUSE_KEPT_S = 0.05


class Patience:
    """The time that one call has for waiting, from its beginning."""

    def __init__(self, wait_s: float) -> None:
        if not isinstance(wait_s, int | float):
            raise InvalidRequest("wait is a number of seconds")
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + max(0.0, wait_s)

    def left(self) -> float:
        """Returns the seconds that are left, at least 0."""
        return max(0.0, self._end - self._loop.time())

    def for_batch(self) -> float:
        """Returns the seconds that a batch may wait on the node in one request."""
        return min(self.left(), CREATE_WAIT_MAX_S)

    async def again(self, error: Overloaded) -> None:
        """Returns when it is time to ask again; raises the refusal if there is none left."""
        left = self.left()
        wanted, maximum = error.fields.get("wanted"), error.fields.get("maximum")
        if isinstance(wanted, int) and isinstance(maximum, int) and wanted > maximum:
            raise error  # it will never fit
        if left <= 0:
            raise error
        after = error.fields.get("retry_after_s")
        if "place_kept_s" in error.fields:  # it has waited in the queue, and is to go on with that
            await asyncio.sleep(random.uniform(0.0, PAUSE_KEPT_S))  # noqa: S311 - jitter
            return
        pause = max(PAUSE_MIN_S, float(after) if isinstance(after, int | float) else 1.0)
        # Up to the end: a last try then is worth more than giving up early.
        await asyncio.sleep(min(left, pause * random.uniform(1.0, 1.1)))  # noqa: S311 - jitter
