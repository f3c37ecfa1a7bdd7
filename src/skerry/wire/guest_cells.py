"""Cells and the zygote of a function container on the guest channel (native/PROTOCOL.md, "Cells")."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from skerry.wire.fields import Body, Message, number, text
from skerry.wire.frames import GuestFrame, ProtocolError, Tag

CELLS_MAX: Final = 32  # of one container
_ERRNO_MAX: Final = 4095
_STEP_BYTES_MAX: Final = 256


class CellAction(IntEnum):
    """What is asked of a cell."""

    MAKE = 1  # what is there is ended first
    DROP = 2


class CellState(IntEnum):
    """How a cell is, or the zygote, which is never GONE: its DONE tells."""

    READY = 1
    GONE = 2
    FAILED = 3


class Rlimits(Body, frozen=True, kw_only=True):
    """Resource limits of an operation; what is None stays as the agent's commands have it."""

    PARTS = (
        number("fsize", Tag.FSIZE, optional=True),
        number("nofile", Tag.NOFILE, optional=True),
        number("stack", Tag.STACK, optional=True),
        number("core", Tag.CORE, optional=True),
    )
    fsize: int | None = None
    nofile: int | None = None
    stack: int | None = None
    core: int | None = None


class Cell(Message, frozen=True, kw_only=True):
    """Makes a cell afresh, or ends what is in it; CELL_IS answers."""

    CODE = GuestFrame.CELL
    PARTS = (
        number("cell", Tag.CELL, 0, CELLS_MAX - 1),
        number("action", Tag.ACTION, CellAction.MAKE, CellAction.DROP),
        number("disk", Tag.DISK, optional=True),
        number("inodes", Tag.INODES, optional=True),
    )
    cell: int
    action: int
    disk: int | None = None  # bytes of its tmpfs
    inodes: int | None = None


class _State(Message, frozen=True, kw_only=True):
    """READY, GONE, or FAILED with a reason."""

    state: int
    error_step: str | None = None
    errno: int | None = None

    def check(self) -> None:
        """Raises ProtocolError unless exactly a failure has a step and an errno."""
        failed = self.state == CellState.FAILED
        if (self.error_step is not None) != failed or (self.errno is not None) != failed:
            raise ProtocolError(f"{self.CODE.name} of state {self.state}, with half a reason")


_REASON: Final = (
    text("error_step", Tag.ERROR_STEP, _STEP_BYTES_MAX, optional=True),
    number("errno", Tag.ERRNO, 0, _ERRNO_MAX, optional=True),
)


class CellIs(_State, frozen=True, kw_only=True):
    """What became of a CELL; GONE comes unasked, too, when a cell has ended by itself."""

    CODE = GuestFrame.CELL_IS
    PARTS = (
        number("cell", Tag.CELL, 0, CELLS_MAX - 1),
        number("state", Tag.STATE, CellState.READY, CellState.FAILED),
        *_REASON,
    )
    cell: int


class ZygoteIs(_State, frozen=True, kw_only=True):
    """The zygote takes calls, or will never."""

    CODE = GuestFrame.ZYGOTE_IS
    PARTS = (number("state", Tag.STATE, CellState.READY, CellState.FAILED), *_REASON)

    def check(self) -> None:
        """Raises ProtocolError for GONE, too."""
        super().check()
        if self.state == CellState.GONE:
            raise ProtocolError("ZYGOTE_IS of state 2")
