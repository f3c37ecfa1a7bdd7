"""What a node knows of one sandbox's model requests: who waits, and what was handed over."""

from __future__ import annotations

import secrets
from collections import OrderedDict

from skerry.wire.relay import HANDED, WAITING, handed_text

HANDED_MAX = 64  # that the worker has not heard of yet; older ones are forgotten: see `told`


class Requests:
    """The requests of one sandbox to its worker.

    A worker tells a repeated request from a new one by this, so it is changed at the very moment when
    a client leaves or an answer is whole. What is forgotten costs at most a sampling: the worker takes
    a request of which it hears nothing for one whose client has left.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, None] = {}
        self._handed: OrderedDict[str, bool] = OrderedDict()

    def begin(self) -> str:
        """Returns the name of a new request, whose client waits from here on."""
        relay = secrets.token_hex(16)
        self._waiting[relay] = None
        return relay

    def left(self, relay: str) -> None:
        """Its client is gone, or has an error; idempotent."""
        self._waiting.pop(relay, None)

    def handed(self, relay: str, *, held: bool) -> None:
        """All of the answer was handed to the sandbox, which was `held` meanwhile or was not."""
        self._waiting.pop(relay, None)
        self._handed[relay] = held
        while len(self._handed) > HANDED_MAX:
            self._handed.popitem(last=False)

    def told(self, relays: tuple[str, ...]) -> None:
        """The worker has heard that these were handed over."""
        for relay in relays:
            self._handed.pop(relay, None)

    def untold(self) -> tuple[str, ...]:
        """Returns what the worker has not heard of yet."""
        return tuple(self._handed)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Returns what goes with every request."""
        return [
            (WAITING.encode(), ",".join(self._waiting).encode()),
            (HANDED.encode(), handed_text(self._handed.items()).encode()),
        ]
