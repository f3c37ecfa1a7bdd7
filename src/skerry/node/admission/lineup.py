"""How many turns there are before one's own, and how long that takes at the rate of late."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from skerry.node.admission.fairness import Flow
from skerry.node.admission.waits import Wait


class Line(NamedTuple):
    """Who of one flow waits, those that have asked in their order, and who else does."""

    waits: Sequence[Wait]
    mine: Flow  # with those that have not asked yet
    others: Sequence[Flow]
    per_second: float  # creates let in of late

    def position(self, number: int) -> int:
        """Returns at which turn the `number`th of the flow is let in, from 1."""
        return position(self.others, self.mine, number)

    def seconds(self, turns: int) -> float | None:
        """Returns how long so many turns take; None if nothing was let in of late."""
        return seconds(turns, self.per_second)


def position(others: Iterable[Flow], mine: Flow, number: int) -> int:
    """Returns at which turn from now the `number`th (from 1) of a flow is let in.

    It is what fair queueing comes to on average, if nobody comes or leaves meanwhile; 1 is next.
    """
    others = [flow for flow in others if flow.waiting > 0]
    family = [flow for flow in others if flow.group == mine.group]
    own = number
    for flow in family:
        if flow.rank > mine.rank:
            own += flow.waiting
        elif flow.rank == mine.rank:
            own += min(flow.waiting, math.ceil((number - 1) * flow.weight / mine.weight))
    share = mine.weight + sum(flow.weight for flow in family)
    return own + sum(
        min(flow.waiting, math.ceil((own - 1) * flow.weight / share))
        for flow in others
        if flow.group != mine.group
    )


def seconds(turns: int, per_second: float) -> float | None:
    """Returns how long so many turns take; None if nothing is known of the rate."""
    return round(turns / per_second, 1) if per_second > 1e-4 else None
