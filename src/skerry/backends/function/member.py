"""One container of a pool, as the policy sees it: its cells, its calls, and why it is to end."""

from __future__ import annotations

from collections import deque
from enum import Enum

from skerry.backends.function.marks import Marks
from skerry.errors import Bug


class Stage(Enum):
    """What becomes of a container, in this order."""

    STARTING = "starting"
    READY = "ready"
    RETIRING = "retiring"  # gets no further call; ends when its last one has


class Member:
    """Invariants: a cell is in at most one of `fresh` and `busy`; `running` calls hold the busy ones.

    A cell that is in neither is being made anew, or cannot be made any more (`broken`).
    """

    __slots__ = (
        "broken",
        "busy",
        "calls",
        "fresh",
        "last_used",
        "made",
        "marks",
        "name",
        "number",
        "residue_bytes",
        "stage",
        "why",
        "zygote",
    )

    def __init__(self, name: str, number: int, marks: Marks, now: float) -> None:
        self.name = name
        self.number = number  # older ones have lower numbers
        self.marks = marks
        self.stage = Stage.STARTING
        self.why = ""  # it is to end
        self.fresh: deque[int] = deque()
        self.busy: set[int] = set()
        self.broken: set[int] = set()
        self.zygote = False
        self.calls = 0
        self.residue_bytes = 0
        self.made = self.last_used = now

    @property
    def running(self) -> int:
        """How many calls run in it."""
        return len(self.busy)

    @property
    def room(self) -> int:
        """How many more calls may begin in it now."""
        if self.stage is not Stage.READY:
            return 0
        left = self.marks.calls_max - self.calls - self.running
        return max(0, min(len(self.fresh), self.marks.running - self.running, left))

    @property
    def finished(self) -> bool:
        """Whether it may be destroyed."""
        return self.stage is Stage.RETIRING and not self.busy

    def take(self, now: float) -> int:
        """Returns a fresh cell for a call: the one that has been ready for the longest time."""
        if not self.room:
            raise Bug(f"container {self.name} has no room for a call")
        cell = self.fresh.popleft()
        self.busy.add(cell)
        self.last_used = now
        return cell

    def end(self, cell: int, now: float, residue_bytes: int = 0) -> None:
        """A call has ended; what it left in memory and nothing explains adds up."""
        self.busy.remove(cell)
        self.calls += 1
        self.last_used = now
        self.residue_bytes = max(self.residue_bytes, residue_bytes)
        if self.calls >= self.marks.calls_max:
            self.retire(f"it has served {self.calls} calls")
        elif self.residue_bytes > self.marks.residue_bytes_max:
            self.retire(f"{self.residue_bytes >> 20} MiB stay in it without an explanation")

    def untouched(self, cell: int) -> None:
        """A call gave its cell back before anything ran in it."""
        self.busy.remove(cell)
        self.fresh.append(cell)

    def ready(self, cell: int) -> None:
        """A cell was made."""
        if cell in self.busy or cell in self.fresh:
            raise Bug(f"cell {cell} of {self.name} is ready twice")
        self.broken.discard(cell)
        self.fresh.append(cell)

    def broke(self, cell: int, why: str) -> None:
        """A cell cannot be made, or went away by itself."""
        if cell in self.fresh:
            self.fresh.remove(cell)
        self.broken.add(cell)
        if len(self.broken) >= self.marks.broken_max:
            self.retire(f"{len(self.broken)} of its cells are lost: {why}")

    def retire(self, why: str) -> None:
        """It gets no further call; the first reason counts."""
        if self.stage is not Stage.RETIRING:
            self.stage, self.why = Stage.RETIRING, why

    def check_invariants(self) -> None:
        """Raises Bug unless the invariants hold."""
        if len(set(self.fresh)) != len(self.fresh) or self.busy & set(self.fresh):
            raise Bug(f"a cell of {self.name} is in two places")
        if self.running > self.marks.running:
            raise Bug(f"{self.running} calls run in {self.name}")
        if not all(0 <= cell < self.marks.cells for cell in (*self.fresh, *self.busy)):
            raise Bug(f"{self.name} has a cell that it has not")
