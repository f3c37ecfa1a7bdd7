"""Limits and counters of a function container's cells, written and read by the node itself.

Between calls nothing is created or destroyed: limits are written where they change, and counts are
differences since a cell was opened. What a call leaves in its group is page cache of the layers,
which others use too; so a limit is never set near it (decision 19). Counters are read for every
call, and while it runs; so their files stay open, five a cell: a read is 1 us where an open is 7.
"""

from __future__ import annotations

import contextlib
import os

from skerry.backends.api import CellLimits, CellUsage
from skerry.backends.container.slots import RESIDUE_ROOM, RESIDUE_UNEXPLAINED_MAX, Slot
from skerry.backends.shared import proc
from skerry.backends.shared.cells import CellGroups
from skerry.backends.shared.cgroup import keyed, memory_writes, number_in
from skerry.errors import InvalidRequest, Unavailable

_READ_MAX = 8192


class CellGroup:
    """One cell's groups. `limits` is what they are set to (None: unknown)."""

    def __init__(self, plan: CellGroups) -> None:
        self.limits: CellLimits | None = None
        self._base = CellUsage()
        self._plan = plan
        self._memsw = plan.v1 and os.path.exists(f"{plan.memory}/memory.memsw.limit_in_bytes")
        self._files: dict[
            str, int
        ] = {}  # open ones by path; v2 restarts the peak for one of them only
        self._closed = False

    def open(self, limits: CellLimits) -> bool:
        """Sets limits and begins the counts anew; False if what the cell holds leaves no room."""
        held = self._held()
        if held * RESIDUE_ROOM > limits.memory_bytes:
            return False
        if held > RESIDUE_UNEXPLAINED_MAX and self.residue() > RESIDUE_UNEXPLAINED_MAX:
            return False
        before, self.limits = self.limits, None
        try:
            self._write(before, limits)
            self._restart_peak()
        except OSError as error:
            raise Unavailable(f"the limits of a cell cannot be set: {error}") from error
        self.limits = limits
        self._base = self._read()
        return True

    def usage(self) -> CellUsage:
        """Returns what was used since `open`; files that are gone count as 0."""
        now, base = self._read(), self._base
        # At its limit a call drives out what others had left: what is not there any more was its own.
        before = min(base.memory_bytes, now.memory_bytes)
        return CellUsage(
            memory_bytes=now.memory_bytes - before,
            memory_peak_bytes=max(0, now.memory_peak_bytes - before),
            cpu_us=max(0, now.cpu_us - base.cpu_us),
            oom_kills=max(0, now.oom_kills - base.oom_kills),
            pids_refused=max(0, now.pids_refused - base.pids_refused),
        )

    def residue(self) -> int:
        """Returns bytes that are no page cache."""
        stat = proc.content(f"{self._plan.memory}/memory.stat", _READ_MAX)
        return max(0, self._held() - keyed(stat, b"cache" if self._plan.v1 else b"file"))

    def close(self) -> None:
        """Lets go of what is open."""
        self._closed = True
        files, self._files = self._files, {}
        for handle in files.values():
            os.close(handle)

    def _held(self) -> int:
        name = "usage_in_bytes" if self._plan.v1 else "current"
        return number_in(self._content(f"{self._plan.memory}/memory.{name}"))

    def _read(self) -> CellUsage:
        plan = self._plan
        oom = "memory.oom_control" if plan.v1 else "memory.events"
        return CellUsage(
            memory_bytes=self._held(),
            memory_peak_bytes=number_in(self._content(self._peak_path, os.O_RDWR)),
            cpu_us=keyed(self._content(f"{plan.work}/cpu.stat"), b"usage_usec"),
            oom_kills=keyed(self._content(f"{plan.memory}/{oom}"), b"oom_kill"),
            pids_refused=keyed(self._content(f"{plan.pids}/pids.events"), b"max"),
        )

    @property
    def _peak_path(self) -> str:
        return f"{self._plan.memory}/memory.{'max_usage_in_bytes' if self._plan.v1 else 'peak'}"

    def _content(self, path: str, access: int = os.O_RDONLY) -> bytes:
        """Reads a file that stays open; one that is gone is empty."""
        try:
            handle = self._files.get(path)
            if handle is None and not self._closed:
                handle = self._files[path] = _open(path, access)
            return b"" if handle is None else os.pread(handle, _READ_MAX, 0)
        except OSError:
            return b""

    def _write(self, old: CellLimits | None, new: CellLimits) -> None:
        memory, pids = self._plan.memory, self._plan.pids
        before = None if old is None else old.memory_bytes
        if self._plan.v1:
            writes = memory_writes(before, new.memory_bytes, memsw=self._memsw)
        else:  # swap is closed for the whole container
            writes = [] if before == new.memory_bytes else [("memory.max", new.memory_bytes)]
        for file, value in writes:
            _write(f"{memory}/{file}", value)
        if old is None or old.pids != new.pids:
            _write(f"{pids}/pids.max", new.pids)

    def _restart_peak(self) -> None:
        if self._content(self._peak_path, os.O_RDWR):
            with contextlib.suppress(OSError):
                os.pwrite(self._files[self._peak_path], b"0", 0)


class CellBooks:
    """The cells of one container."""

    def __init__(self, slot: Slot) -> None:
        self._cells = [CellGroup(plan) for plan in slot.cell_plans()]

    def __len__(self) -> int:
        return len(self._cells)

    def of(self, cell: int) -> CellGroup:
        """Returns one; InvalidRequest if there is none."""
        if not 0 <= cell < len(self._cells):
            raise InvalidRequest(f"cell {cell} of {len(self._cells)}")
        return self._cells[cell]

    def close(self) -> None:
        """Lets go of what is open; safe to call twice."""
        for cell in self._cells:
            cell.close()


def _open(path: str, access: int) -> int:
    try:
        return os.open(path, access | os.O_CLOEXEC)
    except PermissionError:  # v2 before Linux 6.12: the peak is of the group's life
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _write(path: str, value: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(handle, b"%d" % value)
    finally:
        os.close(handle)
