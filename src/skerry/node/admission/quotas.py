"""Limits of those who ask, beside those of the node: of a job, and of all that one API token has.

Who is at such a limit waits beside the queue: it holds up nobody else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from skerry.node.admission.holders import Holder, Holders
from skerry.node.admission.rates import Rate
from skerry.node.admission.shortage import Claim, Shortage
from skerry.node.config import Limits

END_WINDOW_S = 60.0


class Terms(NamedTuple):
    """What creates of a job keep to."""

    priority: int = 0  # among the jobs of its token
    sandboxes_max: int | None = None


class Quotas:
    """Answers whether a job or a token may have one more. `holders` counts what they have."""

    def __init__(self, limits: Limits, holders: Holders, now: Callable[[], float]) -> None:
        self._limits = limits
        self._holders = holders
        self._now = now
        self._terms: dict[str, Terms] = {}  # of jobs, by flow
        self._held: dict[str, Shortage] = {}  # flows whose job takes no creates now
        self._ends: dict[str, Rate] = {}  # of jobs that are at their limit or have been, by flow
        self._token_ends: dict[str, Rate] = {}  # likewise of tokens

    def find(self, claim: Claim, more: int = 1) -> Shortage | None:
        """Returns the limit of its own that says no to so many more."""
        holder, maximum = claim.holder, self._limits.sandboxes_per_owner_max
        if holder.made:
            held = self._held.get(holder.flow)
            if held is not None:
                return held
            most, used = self.terms(holder).sandboxes_max, self._holders.of(holder)
            if most is not None and used + more > most:
                self._ends.setdefault(holder.flow, Rate(self._now, END_WINDOW_S))
                return _full("sandboxes_per_job", f"of job {holder.job} ", used, most)
        used = self._holders.of_tenant(holder.tenant)
        if maximum and used + more > maximum:
            self._token_ends.setdefault(holder.tenant, Rate(self._now, END_WINDOW_S))
            return _full("sandboxes_per_owner", "of this API token ", used, maximum)
        return None

    def largest(self, holder: Holder) -> int | None:
        """Returns how many it may ever have at once; None: only the node bounds it."""
        bounds = [
            bound
            for bound in (self.terms(holder).sandboxes_max, self._limits.sandboxes_per_owner_max)
            if bound
        ]
        return min(bounds, default=None)

    def terms(self, holder: Holder) -> Terms:
        """Returns the terms of its job; the default ones without a job."""
        return self._terms.get(holder.flow, Terms())

    def agree(self, flow: str, terms: Terms) -> None:
        """A job has these terms from here on; a priority holds for flows that begin to wait."""
        self._terms[flow] = terms

    def hold(self, flow: str, why: Shortage | None) -> None:
        """A job takes no creates for a reason, or takes them again."""
        if why is None:
            self._held.pop(flow, None)
        else:
            self._held[flow] = why

    def ended(self, holder: Holder) -> None:
        """One of it has ended."""
        for rate in (self._ends.get(holder.flow), self._token_ends.get(holder.tenant)):
            if rate is not None:
                rate.note()

    def pace(self, holder: Holder) -> tuple[float, bool]:
        """Returns how often of late places came free for which it waits, and whether it shares them.

        A job at its own limit waits for places of the job alone; at its token's limit for those of
        the token, with all that the token has. 0 if none came free, or if it takes no creates now.
        """
        if holder.flow in self._held:
            return 0.0, False
        most = self.terms(holder).sandboxes_max
        own = most is not None and self._holders.of(holder) >= most
        rate = self._ends.get(holder.flow) if own else self._token_ends.get(holder.tenant)
        return 0.0 if rate is None else rate.per_second(), not own

    def forget(self, flow: str) -> None:
        """Its job is over."""
        for known in (self._terms, self._held, self._ends):
            known.pop(flow, None)


def _full(limit: str, whose: str, used: int, maximum: int) -> Shortage:
    message = f"{limit}: {used} of {maximum} {whose}are in use"
    return Shortage(limit, message, {"used": used, "maximum": maximum})
