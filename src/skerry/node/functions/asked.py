"""One call as the service carries it: what is asked, by whom, and where it may run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol, TypeVar

from skerry.node.admission.holders import Holder
from skerry.node.functions.api import CallStreams
from skerry.node.functions.cellrun import CellRun
from skerry.node.functions.functionpool import FunctionPool
from skerry.node.functions.line import Wanted
from skerry.spec.function import CallSpec, CompileRunCall

R = TypeVar("R")


class Asked(NamedTuple):
    """One call, or one step of it: what is asked, and by whom."""

    spec: CallSpec
    streams: CallStreams | None
    pool: FunctionPool
    wanted: Wanted
    holder: Holder
    rank: int  # of its job
    memory: int  # that it may use
    since: float

    @property
    def size(self) -> int:
        """About how many bytes it holds while it waits."""
        kind = self.spec.kind
        total = len(self.spec.stdin) + sum(
            len(one.data) if one.text is None else len(one.text) for one in self.spec.files.values()
        )
        if isinstance(kind, CompileRunCall):
            return total + sum(map(len, kind.sources.values()))
        return total + len(getattr(kind, "code", "") or getattr(kind, "source", ""))


Work = Callable[[CellRun, Asked], Awaitable[R]]  # what is done in a cell
Emptied = Callable[[Awaitable[None]], None]  # is given what ends once a cell that was used is empty


class Places(Protocol):
    """Who gives calls a cell."""

    async def in_place(self, asked: Asked, work: Work[R], emptied: Emptied | None = None) -> R:
        """Returns what the work does in a cell of `asked.pool`, in its turn.

        What never started is done in another cell. `emptied` is told of each that was used.
        """
