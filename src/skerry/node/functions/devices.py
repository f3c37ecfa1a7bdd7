"""Calls that want a device: one queue for each name, fair between jobs; who is next is waited for.

So a call that wants a device whole is not passed by without an end by those who want parts: from its
turn on, what is free stays free for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from skerry.backends.devices.ledger import Held, Ledger
from skerry.backends.devices.listed import DevicesConfig
from skerry.backends.devices.provider import take_stock
from skerry.errors import Bug, InvalidRequest, Overloaded, SkerryError, Unavailable
from skerry.node.admission.fairness import FairQueue, Ticket
from skerry.node.admission.holders import Holder, name_of
from skerry.node.admission.rates import Rate
from skerry.node.timers import Timers
from skerry.spec.device import SHARES, Device, DeviceClaim, DeviceUse

SHOWN: Final = 3
RETRY_S: Final = (1.0, 60.0)
RETRY_UNKNOWN_S: Final = 5.0
log = logging.getLogger("skerry.node")

Prefer = Callable[[Device], bool]


def found_devices(config: DevicesConfig) -> tuple[Device, ...]:
    """Returns the devices of this host, and logs what was found and why not."""
    stock = take_stock(config.all_providers())
    for found in stock.found:
        names = ", ".join(device.id for device in found.devices) or "none"
        log.info("devices of %s: %s %s", found.provider, names, found.reason)
    return stock.devices


class _Wait:
    """A call in a queue; done once it holds a device."""

    __slots__ = ("claim", "done", "holder", "prefer", "ticket")

    def __init__(self, claim: DeviceClaim, holder: Holder, prefer: Prefer) -> None:
        self.claim = claim
        self.holder = holder
        self.prefer = prefer
        self.done: asyncio.Future[Held] = asyncio.get_running_loop().create_future()
        self.ticket: Ticket[_Wait] | None = None


@dataclass(frozen=True)
class Loan:
    """A device that a call holds, and how long it waited for it."""

    held: Held
    queued_s: float

    @property
    def device(self) -> Device:
        """The device."""
        return self.held.device

    def use(self, now: float) -> DeviceUse:
        """Returns what is reported of it."""
        held = self.held
        return DeviceUse(
            id=held.device.id,
            name=held.claim.name,
            mode=held.claim.mode,
            share=held.claim.shares / SHARES,
            queued_s=self.queued_s,
            held_s=max(0.0, now - held.since),
        )


class Desk:
    """Lends devices. Invariant: nobody who is next waits for a device that has room for it."""

    def __init__(
        self,
        devices: Iterable[Device],
        timers: Timers,
        *,
        waiting_max: int = 1024,
        weights: dict[str, float] | None = None,
    ) -> None:
        self.ledger = Ledger(devices)
        self.refused: Counter[str] = Counter()  # by the device's name
        self._withheld = ""
        self._timers = timers
        self._waiting_max = waiting_max
        self._weights = weights or {}
        names = {device.name for device in self.ledger.devices.values()}
        self._queues: dict[str, FairQueue[_Wait]] = {
            name: FairQueue(self._weight) for name in sorted(names)
        }
        self._ended = {name: Rate(timers.now) for name in names}
        self._holders: dict[int, Holder] = {}

    def withhold(self, why: str) -> None:
        """Lends none from now on: something that nobody counts may use them."""
        self._withheld = why

    def check(self, claim: DeviceClaim) -> None:
        """Raises InvalidRequest if there is no device of that name here: waiting would be in vain.

        Unavailable if they are withheld.
        """
        if self._withheld:
            raise Unavailable(self._withheld)
        if claim.name not in self._queues:
            names = ", ".join(self._queues) or "none at all"
            raise InvalidRequest(f"device: this node has no {claim.name}; it has: {names}")

    async def borrow(
        self,
        claim: DeviceClaim,
        holder: Holder,
        *,
        wait_s: float,
        priority: int = 0,
        prefer: Prefer = lambda _device: False,
    ) -> Loan:
        """Returns a device that is the caller's until `give_back`.

        Raises Overloaded, with the device's name as the limit and who holds them, if none is to be had
        within `wait_s`, or if too many wait; InvalidRequest as `check` does.
        """
        self.check(claim)
        began = self._timers.now()
        wait = self._ask(claim, holder, prefer, priority, queue_it=wait_s > 0)
        timer = self._timers.after(wait_s, lambda: self._late(wait, wait_s))
        try:
            held = await wait.done
        except BaseException:
            self._leave(wait)
            raise
        finally:
            timer.cancel()
        return Loan(held, held.since - began)

    def give_back(self, loan: Loan) -> None:
        """Nothing of its call can use the device any more; idempotent."""
        self._free(loan.held)

    def refuse(self, why: Callable[[], SkerryError]) -> None:
        """Tells all who wait why they get none."""
        for queue in self._queues.values():
            for flow in queue.flows():
                for ticket in queue.line(flow.name):
                    if not ticket.item.done.done():
                        ticket.item.done.set_exception(why())

    @property
    def waiting(self) -> int:
        """How many calls wait for a device."""
        return sum(len(queue) for queue in self._queues.values())

    def gauges(self) -> dict[str, float]:
        """Returns counts for whoever exports them."""
        devices = self.ledger.devices
        used = [self.ledger.shares_of(name) for name in devices]
        return {
            "devices": len(devices),
            "devices_in_use": sum(1 for shares in used if shares),
            "devices_held": sum(used) / SHARES,
            "devices_calls": len(self.ledger.held),
            "devices_waiting": self.waiting,
            "devices_granted_total": self.ledger.granted,
            "devices_refused_total": self.refused.total(),
            "devices_held_seconds_total": sum(self.ledger.seconds.values()),
        }

    def check_invariants(self) -> None:
        """Raises Bug unless the invariants hold."""
        self.ledger.check_invariants()
        if set(self._holders) != {held.number for held in self.ledger.held}:
            raise Bug("a device is held by nobody, or somebody holds none")
        for queue in self._queues.values():
            queue.check_invariants()
            head = queue.head()
            if head is None or head.item.done.done():
                continue
            if self.ledger.find(head.item.claim) is not None:
                raise Bug("a call waits for a device that is there")

    # -- inside -----------------------------------------------------------------------------------

    def _ask(
        self, claim: DeviceClaim, holder: Holder, prefer: Prefer, priority: int, *, queue_it: bool
    ) -> _Wait:
        wait, queue = _Wait(claim, holder, prefer), self._queues[claim.name]
        if queue.head() is None and self._lend(wait):
            return wait
        if not queue_it:
            raise self._full(
                claim, holder, f"{claim.name}: no device is free, and nobody waits for it"
            )
        if len(queue) >= self._waiting_max:
            message = (
                f"{claim.name}: {len(queue)} of {self._waiting_max} calls wait for one already"
            )
            raise self._full(claim, holder, message)
        wait.ticket = queue.push(holder.flow, priority, wait, group=holder.tenant)
        self._let_in(claim.name)  # its job's turn may be before, and it may ask for less
        return wait

    def _lend(self, wait: _Wait) -> bool:
        device = self.ledger.find(wait.claim, wait.prefer)
        if device is None:
            return False
        held = self.ledger.take(device, wait.claim, wait.holder.flow, self._timers.now())
        self._holders[held.number] = wait.holder
        wait.done.set_result(held)
        return True

    def _free(self, held: Held) -> None:
        if self.ledger.free(held, self._timers.now()):
            del self._holders[held.number]
            self._ended[held.claim.name].note()
            self._let_in(held.claim.name)

    def _let_in(self, name: str) -> None:
        queue = self._queues[name]
        while (head := queue.head()) is not None:
            if head.item.done.done():  # it has left, and is about to say so itself
                queue.remove(head)
                head.item.ticket = None
                continue
            if not self._lend(head.item):
                return
            queue.serve(head)
            head.item.ticket = None

    def _leave(self, wait: _Wait) -> None:
        """It waits no longer; a device that it was given in the same moment is another's."""
        done = wait.done
        if wait.ticket is not None:
            self._queues[wait.claim.name].remove(wait.ticket)
            wait.ticket = None
            self._let_in(wait.claim.name)  # the next one may ask for less
        elif done.done() and not done.cancelled() and done.exception() is None:
            self._free(done.result())

    def _late(self, wait: _Wait, waited_s: float) -> None:
        if not wait.done.done():
            message = f"{wait.claim.name}: no device was free within {waited_s:g} s"
            wait.done.set_exception(self._full(wait.claim, wait.holder, message))

    def _full(self, claim: DeviceClaim, holder: Holder, message: str) -> Overloaded:
        self.refused[claim.name] += 1
        rate, waiting = self._ended[claim.name].per_second(), len(self._queues[claim.name])
        after = (1 + waiting) / rate if rate > 0 else RETRY_UNKNOWN_S
        devices = self.ledger.named(claim.name)
        fields: dict[str, Any] = {
            "used": sum(1 for one in devices if self.ledger.shares_of(one.id)),
            "maximum": len(devices),
            "waiting": waiting,
            "holders": self._told_to(holder, claim.name),
        }
        return Overloaded(
            message,
            limit=claim.name,
            retry_after_s=round(max(RETRY_S[0], min(RETRY_S[1], after)), 2),
            **fields,
        )

    def _told_to(self, holder: Holder, name: str) -> list[dict[str, Any]]:
        """Returns who holds devices of a name, as one of them may see it."""
        calls: Counter[Holder] = Counter()
        for held in self.ledger.held:
            if held.claim.name == name:
                calls[self._holders[held.number]] += 1
        mine = calls.pop(holder, 0)
        merged: Counter[str] = Counter()
        for one, count in calls.items():
            merged[one.told_to(holder)] += count
        told = [{"who": who, "calls": count} for who, count in merged.most_common(SHOWN)]
        return [*told, {"who": "you", "calls": mine}]

    def _weight(self, flow: str) -> float:
        return self._weights.get(name_of(flow), 1.0)
