"""Who may come in: limits that are answered at once, by name, before anything is made.

A create passes two doors. The first is **room**: `ask` says yes or no at once, or queues those that
said how long they would wait. The second is a **place** among the creates that a backend carries out
at once. Both queues are fair between flows (jobs, owner connections, or the rest of a token). Who is at
a limit of its own waits beside the queue and holds up nobody else.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from skerry.density.pressure import Pressure
from skerry.errors import Bug, Overloaded, Unavailable
from skerry.node.admission.fairness import FairQueue, Flow
from skerry.node.admission.holders import Holder, Holders, name_of
from skerry.node.admission.lineup import Line
from skerry.node.admission.places import Places
from skerry.node.admission.quotas import Quotas
from skerry.node.admission.rates import Rate
from skerry.node.admission.refusals import Refusals, draining, ending
from skerry.node.admission.shortage import LOOK_EVERY_S, Claim, Claims, Shortage, Shortages
from skerry.node.admission.waits import PLACE_KEPT_S, Gone, KeptPlaces, Wait
from skerry.node.clock import Clock
from skerry.node.config import Limits
from skerry.node.gauges.readings import Readings
from skerry.node.timers import Timer, Timers


class Admission:
    """Counts what is in, and says no with the limit's name and a time to come back.

    Invariant: nobody waits for room that was there at the last look (half a second ago at most).
    """

    def __init__(
        self,
        limits: Limits,
        clock: Clock,
        timers: Timers,
        host: Callable[[], Readings] = Readings,
        *,
        pressure: Pressure | None = None,
        lag: Callable[[], float] = lambda: 0.0,
        weights: dict[str, float] | None = None,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.limits = limits
        self.claims = Claims()
        self.holders = Holders()
        self.quotas = Quotas(limits, self.holders, clock.monotonic)
        # Members of batches that have not asked yet: they wait behind those that have.
        self.expected: Counter[Holder] = Counter()
        self.operations = 0
        self._shut: Callable[[], Unavailable] | None = None
        self.shortages = Shortages(limits, clock.monotonic, host, pressure, lag)
        self.admitted = Rate(clock.monotonic)
        self.ended = Rate(clock.monotonic)
        self._clock = clock
        self._refusals = Refusals(self.holders, self.ended, jitter)
        self.refused = self._refusals.counts
        self._timers = timers
        self._weights = weights or {}
        self._room: FairQueue[Wait] = FairQueue(self._weight)
        self._places = Places(limits, self._weight)
        self._kept = KeptPlaces(clock.monotonic, limits.creates_waiting_max)
        self._parked: dict[str, str] = {}  # flows at a limit of their own: their tokens
        self._poll: Timer | None = None

    @property
    def sandboxes(self) -> int:
        """How many were admitted and have not ended."""
        return len(self.claims)

    @property
    def creating(self) -> int:
        """How many places for creates are taken."""
        return self._places.taken

    @property
    def closing(self) -> bool:
        """Whether the node is ending: nobody comes in any more, and nothing is begun."""
        return self._shut is ending

    @closing.setter
    def closing(self, on: bool) -> None:
        self._shut = ending if on else None
        self._let_in()

    @property
    def draining(self) -> bool:
        """Whether no new sandboxes are taken; commands in those that live go on."""
        return self._shut is draining

    @draining.setter
    def draining(self, on: bool) -> None:
        if not self.closing:
            self._shut = draining if on else None
            self._let_in()

    @property
    def waiting(self) -> int:
        """How many creates wait, for room or for a place."""
        return len(self._room) + len(self._places.queue)

    # -- room -------------------------------------------------------------------------------------

    def ask(
        self, claim: Claim, *, wait_s: float = 0.0, priority: int = 0, key: str | None = None
    ) -> Wait | None:
        """Counts the claim in and returns None, or returns the wait for it.

        Whose time is over has its place again if the same key asks within seconds. Raises Overloaded
        if there is no room and `wait_s` is 0, or if too many wait already.
        """
        self._check_open()
        own = self.quotas.find(claim)
        short = own or self.shortages.find(self.claims, claim)
        if short is None and self._room.head() is None:
            self.count(claim)
            return None
        if wait_s <= 0:
            raise self._refuse(short or self._queued(), claim.holder)
        wait = self._enqueue(self._room, claim, priority, key=key)
        if own is not None:
            self._park(claim.holder)
        wait.timer = self._timers.after(wait_s, lambda: self._give_up(wait))
        self._watch()
        return wait

    def check(self, claim: Claim) -> None:
        """Raises Overloaded unless the claim would be let in now."""
        self._check_open()
        short = self.find(claim)
        if short is not None or self._room.head() is not None:
            raise self._refuse(short or self._queued(), claim.holder)

    def find(self, claim: Claim) -> Shortage | None:
        """Returns what is in the way of a claim now, but for those who wait before it."""
        return self.quotas.find(claim) or self.shortages.find(self.claims, claim)

    async def until_admitted(self, wait: Wait, gone: Gone | None = None) -> None:
        """Returns when the claim is counted in; raises Overloaded once its time is over.

        With `gone`, Unavailable as soon as that returns: whoever asked does not wait any more.
        """
        try:
            await wait.until_served(gone)
        except BaseException:
            if wait.served:
                self.release(wait.claim.sandbox)
            raise
        finally:
            self._dequeue(self._room, wait)

    def _check_open(self) -> None:
        if self._shut is not None:
            raise self._shut()

    def count(self, claim: Claim) -> None:
        """Counts it in without asking: it is there already."""
        if claim.sandbox in self.claims.by_sandbox:
            raise Bug(f"{claim.sandbox} was counted already")
        self.claims.add(claim, self._clock.monotonic())
        self.holders.add(claim.holder)
        self.admitted.note()

    def swap(self, reserved: str, claim: Claim) -> None:
        """Counts a claim in for one that was counted in before, for its sake."""
        before = self.claims.remove(reserved)
        if before is None:
            raise Bug(f"{reserved} was not reserved")
        self.holders.remove(before.holder)
        self.claims.add(claim, self._clock.monotonic())
        self.holders.add(claim.holder)

    def release(self, sandbox: str, *, lived: bool = True) -> None:
        """Counts it out, and lets in who waited for that; idempotent."""
        claim = self.claims.remove(sandbox)
        if claim is None:
            return
        self.holders.remove(claim.holder)
        if lived:
            self.ended.note()
            self.quotas.ended(claim.holder)
        self._unpark(claim.holder.tenant)
        self._let_in()

    def hold(self, holder: Holder, why: Shortage | None) -> None:
        """A job takes no creates for that reason: they wait; or it takes them again."""
        self.quotas.hold(holder.flow, why)
        self.look_again(holder)

    def look_again(self, holder: Holder) -> None:
        """Something that held its creates up has changed."""
        self._unpark(holder.tenant)
        self._let_in()

    def _park(self, holder: Holder) -> None:
        self._room.park(holder.flow)
        self._parked[holder.flow] = holder.tenant

    def _unpark(self, tenant: str | None = None) -> None:
        """Lets flows of a token, or all, have turns again: their limits are looked at anew then."""
        for flow in [one for one, of in self._parked.items() if tenant in (None, of)]:
            self._room.unpark(flow)
            del self._parked[flow]

    def _let_in(self) -> None:
        if self._shut is not None:
            self._unpark()
        while (head := self._room.head()) is not None:
            wait = head.item
            if wait.done.done():  # it has left, and is about to say so itself
                self._room.remove(head)
                continue
            if self._shut is not None:
                self._room.remove(head)
                wait.ticket = None
                wait.leave(self._shut())
                continue
            if self.quotas.find(wait.claim) is not None:
                self._park(wait.claim.holder)
                continue
            if self.shortages.find(self.claims, wait.claim) is not None:
                return
            self._room.serve(head)
            wait.ticket = None
            self.count(wait.claim)
            wait.done.set_result(None)

    def _watch(self) -> None:
        """Looks again while someone waits: memory and pressure come back without an event."""
        if self._poll is None and len(self._room):
            self._poll = self._timers.after(LOOK_EVERY_S, self._looked)

    def _looked(self) -> None:
        self._poll = None
        self._let_in()
        self._watch()

    def _give_up(self, wait: Wait) -> None:
        short = self.find(wait.claim) or self._queued()
        if wait.done.done():
            return
        error = self._refuse(short, wait.claim.holder)
        if wait.key is not None and wait.ticket is not None:
            self._kept.keep(wait.ticket.flow, wait.key, wait.ticket.number)
            error.fields["place_kept_s"] = PLACE_KEPT_S
        wait.leave(error)

    # -- places -----------------------------------------------------------------------------------

    def place(
        self, claim: Claim, *, priority: int = 0, bounded: bool = True, gone: Gone | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Holds one of the places for creates within the block; turns go round by flow.

        With `bounded`, Overloaded if too many wait already; without, the caller bounds itself.
        """
        queue = self._places.queue
        return self._places.hold(
            lambda: self._enqueue(queue, claim, priority, bounded=bounded),
            lambda wait: self._dequeue(queue, wait),
            gone,
        )

    # -- queues -----------------------------------------------------------------------------------

    def _enqueue(
        self,
        queue: FairQueue[Wait],
        claim: Claim,
        priority: int,
        *,
        bounded: bool = True,
        key: str | None = None,
    ) -> Wait:
        flow, limits = claim.holder.flow, self.limits
        mine = self._room.waiting(flow) + self._places.queue.waiting(flow)
        if bounded and self.waiting >= limits.creates_waiting_max:
            raise self._refuse(self._queued(), claim.holder)
        if bounded and mine >= limits.creates_waiting_per_owner_max:
            maximum = limits.creates_waiting_per_owner_max
            message = f"creates_waiting_per_owner: {mine} of {maximum} wait already"
            fields = {"used": mine, "maximum": maximum}
            short = Shortage("creates_waiting_per_owner", message, fields, self._turn_s())
            raise self._refuse(short, claim.holder)
        wait, holder = Wait(claim, key), claim.holder
        wait.ticket = queue.push(
            flow,
            priority,
            wait,
            group=holder.tenant,
            rank=self.quotas.terms(holder).priority,
            number=self._kept.take(flow, key),
        )
        return wait

    def _dequeue(self, queue: FairQueue[Wait], wait: Wait) -> None:
        if wait.timer is not None:
            wait.timer.cancel()
        if wait.ticket is not None:
            queue.remove(wait.ticket)
            wait.ticket = None
            self._let_in()  # the next one may ask for less

    def _weight(self, flow: str) -> float:
        return self._weights.get(name_of(flow), 1.0)

    def line(self, holder: Holder) -> Line:
        """Returns who of a job waits for room, in their order, and how long that takes."""
        flows = {flow.name: flow for flow in self._room.flows()}
        for one, more in (*self.expected.items(), (holder, 0)):
            name = one.flow
            rank, weight = self.quotas.terms(one).priority, self._weight(name)
            known = flows.get(name) or Flow(name, 0, one.tenant, rank, weight)
            flows[name] = known._replace(waiting=known.waiting + more)
        mine, waits = flows.pop(holder.flow), [one.item for one in self._room.line(holder.flow)]
        if mine.name not in self._parked:
            others = [flow for flow in flows.values() if flow.name not in self._parked]
            return Line(waits, mine, others, self.admitted.per_second())
        rate, shared = self.quotas.pace(holder)  # what others leave is not for it
        others = [flow for flow in flows.values() if shared and flow.group == holder.tenant]
        return Line(waits, mine, others, rate)

    # -- commands ---------------------------------------------------------------------------------

    def check_operation(self, running_there: int) -> None:
        """Raises Overloaded unless one more command may run now."""
        limits = self.limits
        if self.closing:
            raise ending()
        if self.operations >= limits.operations_max:
            raise self._full("operations", self.operations, limits.operations_max)
        if running_there >= limits.operations_per_sandbox_max:
            name, maximum = "operations_per_sandbox", limits.operations_per_sandbox_max
            raise self._full(name, running_there, maximum)

    def check_possible(self, wanted: int, holder: Holder) -> None:
        """Raises Overloaded if so many would not fit even on an empty node: waiting is in vain."""
        maximum, own = self.limits.sandboxes_max, self.quotas.largest(holder)
        maximum = maximum if own is None else min(own, maximum)
        if wanted > maximum:
            message = f"sandboxes: {wanted} are wanted at once, and at most {maximum} may live"
            fields = {"used": self.sandboxes, "maximum": maximum, "wanted": wanted}
            raise self._refuse(Shortage("sandboxes", message, fields), holder)

    def check_batches(self, running: int) -> None:
        """Raises Overloaded unless one more batch may run now."""
        self._check_open()
        if running >= self.limits.batches_max:
            raise self._full("batches", running, self.limits.batches_max)

    # -- answers ----------------------------------------------------------------------------------

    def _full(self, limit: str, used: int, maximum: int) -> Overloaded:
        message = f"{limit}: {used} of {maximum} are in use"
        return self._refuse(Shortage(limit, message, {"used": used, "maximum": maximum}, 1.0), None)

    def _queued(self) -> Shortage:
        waiting, maximum = self.waiting, self.limits.creates_waiting_max
        message = f"creates_waiting: {waiting} wait already, at most {maximum} may"
        fields = {"used": waiting, "maximum": maximum}
        return Shortage("creates_waiting", message, fields, self._turn_s())

    def _turn_s(self) -> float:
        """Returns how long the queues take at the rate at which creates were admitted lately."""
        rate = self.admitted.per_second()
        return self.waiting / rate if rate > 0 else 1.0

    def _refuse(self, short: Shortage, holder: Holder | None) -> Overloaded:
        return self._refusals.say(short, holder, len(self._room))

    def gauges(self) -> dict[str, float]:
        """Returns counts and readings for whoever exports them."""
        self.shortages.look()
        return {
            "sandboxes": self.sandboxes,
            "sandboxes_max": self.limits.sandboxes_max,
            "sandboxes_memory_bytes": self.claims.memory_bytes,
            "holders": len(self.holders),
            "operations": self.operations,
            "creates_in_flight": self.creating,
            "creates_waiting_for_room": len(self._room),
            "creates_waiting_for_place": len(self._places.queue),
            "admitted_total": self.admitted.total,
            "ended_total": self.ended.total,
            "refused_total": self.refused.total(),
            "memory_available_bytes": self.shortages.readings.memory_available,
            "disk_free_bytes": self.shortages.readings.disk_free,
        }

    def check_invariants(self) -> None:
        """Raises Bug unless the invariants hold."""
        self._room.check_invariants()
        self._places.check_invariants()
