"""Who gets a place now: those who wait, in fair turns, and the bounds on all that runs at once."""

from __future__ import annotations

from collections.abc import Callable

from skerry.backends.function.pool import Place, Pool
from skerry.errors import Bug, SkerryError
from skerry.node.functions.line import CallLine, Waiting, Wanted


class Turns:
    """Invariants: nobody waits for what is there; `running` and `memory_bytes` are of places out.

    The sum of what running calls may use is bounded, so that they do not drive the host out of memory
    together; a call that is larger than that alone runs alone.
    """

    def __init__(
        self, line: CallLine, now: Callable[[], float], *, running_max: int, memory_max: int
    ) -> None:
        self.line = line
        self.running = 0
        self.memory_bytes = 0
        self.running_max = running_max
        self.memory_max = memory_max
        self._now = now

    def take(self, wanted: Wanted, memory_bytes: int) -> Place | None:
        """Returns a place at once, if there is one and nobody waits whose turn is before."""
        if self.line.head() is not None or not self._fits(memory_bytes):
            return None
        place = wanted.pool.take(self._now(), zygote=wanted.zygote)
        if place is not None:
            self._count(memory_bytes)
        return place

    def wait(self, wait: Waiting, *, priority: int = 0, rank: int = 0) -> None:
        """Puts a call into the queue: `wait.done` gives it its Place. Overloaded if that is full."""
        self.line.push(wait, priority=priority, rank=rank)
        self.let_in()

    def left(self, wait: Waiting) -> None:
        """A call waits no longer; a place that it was given in the same moment is another's."""
        self.line.remove(wait)
        done = wait.done
        if done.done() and not done.cancelled() and done.exception() is None:
            self.untouched(wait.key.pool, done.result(), wait.memory_bytes)
        else:
            self.let_in()  # the next one may ask for less

    def end(self, pool: Pool, place: Place, memory_bytes: int, residue_bytes: int = 0) -> None:
        """A call has ended; its cell is to be made anew."""
        pool.end(place, self._now(), residue_bytes)
        self._uncount(memory_bytes)

    def untouched(self, pool: Pool, place: Place, memory_bytes: int) -> None:
        """A place is given back in which nothing ran."""
        pool.untouched(place)
        self._uncount(memory_bytes)
        self.look_again(pool)

    def look_again(self, pool: Pool) -> None:
        """A pool may have a place again."""
        if not len(self.line):  # most often: nothing of this is for anybody
            self.line.unpark_all()
            return
        for zygote in (False, True):
            if pool.room(zygote=zygote):
                self.line.unpark(Wanted(pool, zygote))
        self.let_in()

    def let_in(self) -> None:
        """Gives places to who waits, as long as there are some."""
        while (wait := self.line.head()) is not None:
            wanted = wait.key
            if not self._fits(wait.memory_bytes):
                return
            place = wanted.pool.take(self._now(), zygote=wanted.zygote)
            if place is None:
                self.line.park(wanted)
                continue
            self.line.serve(wait)
            self._count(wait.memory_bytes)
            wait.done.set_result(place)

    def waiting(self, pool: Pool) -> int:
        """Returns how many wait for a pool."""
        return sum(self.line.of(Wanted(pool, zygote)) for zygote in (False, True))

    def refuse(self, pool: Pool, why: Callable[[], SkerryError], *, zygote: bool = False) -> None:
        """Tells all who wait for a pool, or for Python there alone, why they never get a place."""
        for wanted in (
            (Wanted(pool, True),) if zygote else (Wanted(pool, False), Wanted(pool, True))
        ):
            for wait in list(self.line.all_of(wanted)):
                self.line.remove(wait)
                wait.leave(why())

    def forget(self, pool: Pool) -> None:
        """A pool is no more."""
        for zygote in (False, True):
            self.line.forget(Wanted(pool, zygote))

    def check_invariants(self) -> None:
        """Raises Bug unless the invariants hold."""
        self.line.check_invariants()
        if not 0 <= self.running <= self.running_max or self.memory_bytes < 0:
            raise Bug(f"{self.running} calls run, with {self.memory_bytes} bytes")
        wait = self.line.head()
        if wait is not None and self._fits(wait.memory_bytes):
            raise Bug("a call waits for a place that is there")

    def _fits(self, memory_bytes: int) -> bool:
        if self.running >= self.running_max:
            return False
        return not self.running or self.memory_bytes + memory_bytes <= self.memory_max

    def _count(self, memory_bytes: int) -> None:
        self.running += 1
        self.memory_bytes += memory_bytes

    def _uncount(self, memory_bytes: int) -> None:
        self.running -= 1
        self.memory_bytes -= memory_bytes
