"""Who holds a node's places: for fair turns, and for an answer that says why there is none."""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Any, NamedTuple

SHOWN = 3
LOOKED_AT = 64
FRESH = 64
JOB_LABEL = "job"


class Holder(NamedTuple):
    """On whose behalf a sandbox is made. `tenant` tells tokens apart; "" is the unix socket.

    With `made` the job is one (node/jobs); without, it is only a label of that name.
    """

    tenant: str = ""
    owner: str | None = None
    job: str | None = None
    made: bool = False

    @property
    def flow(self) -> str:
        """Its turn in queues: its job; or its owner connection; or its token and label `job`."""
        if self.made:
            return f"job {self.tenant} {self.job}"
        if self.owner is not None:
            return f"owner {self.owner}"
        return f"token {self.tenant} job {self.job or ''}"

    def told_to(self, other: Holder) -> str:
        """Returns its name for someone else's eyes: names of other tokens' jobs stay theirs.

        An owner's name would let its reader act as that owner, so only its beginning is shown.
        """
        if self.tenant != other.tenant:
            return "another token"
        if self.job:
            return f"job {self.job[:64]}"
        if self.owner is not None:
            return f"owner {self.owner[:6]}..."
        return "no owner and no label job"


def name_of(flow: str) -> str:
    """Returns the name of a flow for which an operator may have given it a weight: job or owner."""
    kind, _, name = flow.partition(" ")
    if kind == "token":
        return name.partition(" job ")[2]
    return name.partition(" ")[2] if kind == "job" else name


class Holders:
    """Counts places by holder. Among many the order of the biggest is at most FRESH changes old."""

    def __init__(self) -> None:
        self._counts: Counter[Holder] = Counter()
        self._tenants: Counter[str] = Counter()
        self._biggest: list[Holder] = []
        self._changes = 0

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, holder: Holder) -> None:
        """It has one more."""
        self._counts[holder] += 1
        self._tenants[holder.tenant] += 1
        self._changes += 1

    def remove(self, holder: Holder) -> None:
        """It has one less; a holder of none is forgotten."""
        self._counts[holder] -= 1
        self._tenants[holder.tenant] -= 1
        self._changes += 1
        if self._counts[holder] <= 0:
            del self._counts[holder]
        if self._tenants[holder.tenant] <= 0:
            del self._tenants[holder.tenant]

    def of(self, holder: Holder) -> int:
        """Returns how many it holds."""
        return self._counts.get(holder, 0)

    def of_tenant(self, tenant: str) -> int:
        """Returns how many all holders of a token hold."""
        return self._tenants.get(tenant, 0)

    def told_to(self, other: Holder) -> list[dict[str, Any]]:
        """Returns the biggest holders as one of them may see them; nothing tells tokens apart."""
        merged: Counter[str] = Counter()
        for holder in self._big():
            merged[holder.told_to(other)] += self._counts.get(holder, 0)
        told = [{"who": who, "sandboxes": count} for who, count in merged.most_common(SHOWN)]
        return [*told, {"who": "you", "sandboxes": self.of(other)}]

    def _big(self) -> list[Holder]:
        if len(self._counts) <= LOOKED_AT:
            return list(self._counts)
        if self._changes >= FRESH or not self._biggest:
            # Thousands of refusals a second must not sort thousands of holders.
            self._changes = 0
            self._biggest = heapq.nlargest(LOOKED_AT, self._counts, key=self._counts.__getitem__)
        return self._biggest
