"""The bounds that a pool of function containers keeps to."""

from __future__ import annotations

from dataclasses import dataclass

from skerry.errors import InvalidRequest

CELLS_MAX = 32  # of one container: the agent knows no more


@dataclass(frozen=True, kw_only=True)
class Marks:
    """Of one pool. A cell is what one call runs in; half of them are being made anew at any time."""

    containers_min: int = 0  # kept also when nobody calls
    containers_max: int = 8
    cells: int = 16  # of a container
    running: int = 8  # calls at once in a container
    useful_max: int = 1024  # more would not run more calls: demand alone asks for no more
    calls_max: int = 50_000  # after so many a container is replaced
    idle_s: float = 120.0  # what was not needed for so long ends
    residue_bytes_max: int = 64 << 20  # memory that calls left in a container, and nothing explains
    broken_max: int = 2  # cells that cannot be made any more, and then the container ends

    def check(self) -> Marks:
        """Returns itself if it makes sense; raises InvalidRequest naming what does not."""
        if not 0 <= self.containers_min <= self.containers_max <= 1024:
            raise InvalidRequest("functions: containers_min and containers_max are out of bounds")
        if not 1 <= self.running <= self.cells <= CELLS_MAX:
            raise InvalidRequest(
                f"functions: 1 <= running <= cells <= {CELLS_MAX} does not hold for "
                f"{self.running} and {self.cells}"
            )
        if self.calls_max < 1 or self.residue_bytes_max < 1 or self.broken_max < 1:
            raise InvalidRequest("functions: calls_max, residue_bytes_max, broken_max: at least 1")
        if not 1 <= self.idle_s <= 86_400:
            raise InvalidRequest("functions: idle_s must be between a second and a day")
        return self


def once(marks: Marks, *, stock_max: int) -> Marks:
    """Returns the marks of a pool whose containers serve one call each (isolation `container`)."""
    return Marks(
        containers_min=marks.containers_min,
        containers_max=stock_max,
        cells=1,
        running=1,
        useful_max=marks.useful_max * marks.running,
        calls_max=1,
        idle_s=marks.idle_s,
        residue_bytes_max=marks.residue_bytes_max,
        broken_max=1,
    )
