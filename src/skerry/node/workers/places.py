"""What all uplinks of a node hold together, and what each sandbox may hold of it.

Bodies are held from their first byte until a worker has them on record. Each sandbox has a share: when
there is no room, it is the one that holds most that is refused, and what it holds last is given up for
the others. So a sandbox that holds no more than all bytes, divided by the sandboxes that hold any, is
never refused, however many others hoard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from skerry.node.workers.options import WorkersConfig
from skerry.node.workers.relay import Refused, Request

SHARES = (
    8  # of all bodies' bytes one sandbox holds at most a share, or one body, even if it is alone
)


class Places:
    """Of one node. Invariant: `body_bytes` is what all shares hold, at most `bodies_bytes_max`."""

    def __init__(self, config: WorkersConfig) -> None:
        self.config = config
        self.body_bytes = 0
        self.waiting = 0
        self.connections = 0
        self.counts: Counter[str] = Counter()
        self._holding: dict[Share, None] = {}

    def make_room(self, share: Share, size: int) -> None:
        """Makes room for more bytes of a share; Refused if nobody holds more than it would."""
        limit = self.config.bodies_bytes_max
        while self.body_bytes + size > limit:
            most = max(self._holding, key=lambda one: one.held, default=share)
            if most is share or most.held <= share.held + size:
                raise _too_much(share.held)
            most.give_up()
        self._holding[share] = None
        self.body_bytes += size

    def free(self, share: Share, size: int) -> None:
        """Bytes of a share are held no more."""
        self.body_bytes -= size
        if not share.held:
            self._holding.pop(share, None)

    @contextmanager
    def wait(self) -> Iterator[None]:
        """A place for a request that waits for the block; Refused if there is none."""
        if self.waiting >= self.config.waiting_max:
            text = f"{self.waiting} model requests of all sandboxes wait"
            raise Refused(503, text, "overloaded", retry=True)
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1


class Share:
    """The bodies of one sandbox. Invariant: `held` is what its requests hold; each holds something."""

    def __init__(self, places: Places) -> None:
        self.held = 0
        self.places = places
        self._requests: dict[Request, None] = {}  # oldest first

    def hold(self, request: Request, size: int) -> None:
        """A request holds so many bytes more; Refused if that is too much for this sandbox."""
        config = self.places.config
        most = max(config.body_bytes_max, config.bodies_bytes_max // SHARES)
        if self.held + size > most:
            raise _too_much(self.held)
        self.places.make_room(self, size)
        self.held += size
        self._requests[request] = None

    def free(self, request: Request, size: int) -> None:
        """A request holds nothing any more."""
        if self._requests.pop(request, False) is None:
            self.held -= size
            self.places.free(self, size)

    def give_up(self) -> None:
        """Refuses the newest request that holds anything."""
        next(reversed(self._requests)).refuse(_too_much(self.held))


def _too_much(held: int) -> Refused:
    text = f"this sandbox has sent more than its share: {held} bytes that no worker has yet"
    return Refused(429, text, "too_many_bodies", retry=True)
