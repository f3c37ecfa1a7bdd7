"""A no with the limit's name, the numbers, who holds what, and when to come back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from skerry.errors import Overloaded, Unavailable
from skerry.node.admission.holders import Holder, Holders
from skerry.node.admission.rates import Rate
from skerry.node.admission.shortage import Shortage

RETRY_S = (1.25, 48.0)  # with the jitter between one second and a minute
RETRY_UNKNOWN_S = 5.0  # when nothing has ended lately, nobody can tell
JITTER = (0.8, 1.25)
DRAINING_RETRY_S = 30.0


class Refusals:
    """Makes and counts them. `ended` is how often a sandbox ends."""

    def __init__(
        self, holders: Holders, ended: Rate, jitter: Callable[[float, float], float]
    ) -> None:
        self.counts: Counter[str] = Counter()  # by limit
        self._holders = holders
        self._ended = ended
        self._jitter = jitter

    def say(self, short: Shortage, holder: Holder | None, waiting: int) -> Overloaded:
        """Returns the refusal; the time to come back is an estimate, and differs by client."""
        self.counts[short.limit] += 1
        after = short.after_s
        if after is None:
            rate = self._ended.per_second()
            after = (1 + waiting) / rate if rate > 0.01 else RETRY_UNKNOWN_S
        after = max(RETRY_S[0], min(RETRY_S[1], after)) * self._jitter(*JITTER)
        fields = dict(short.fields)
        if holder is not None:
            fields["holders"] = self._holders.told_to(holder)
        return Overloaded(short.message, limit=short.limit, retry_after_s=round(after, 2), **fields)


def ending() -> Unavailable:
    """Returns what is said by a node that ends."""
    return Unavailable("the node is ending: ask again", retry_after_s=0.1)


def draining() -> Unavailable:
    """Returns what is said to newcomers by a node that is being drained."""
    return Unavailable(
        "the node is being drained: it takes no new sandboxes",
        reason="draining",
        retry_after_s=DRAINING_RETRY_S,
    )
