"""How much a function call may use, and the names of the limits that end one."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from skerry.errors import InvalidRequest
from skerry.spec import limits
from skerry.spec.limits import GIB, MIB

TIME_MAX_S: Final = 3600.0
MEMORY_MIN_BYTES: Final = 16 * MIB
MEMORY_MAX_BYTES: Final = 1 << 46
OUTPUT_BYTES_MAX: Final = 64 * MIB  # of what is returned with the result; streamed:
STREAMED_BYTES_MAX: Final = 1 << 46
PROCESSES_MAX: Final = 4096
DISK_MIN_BYTES: Final = MIB
DISK_MAX_BYTES: Final = 1 << 46
OPEN_FILES_MIN, OPEN_FILES_MAX = 16, 4096


class Limit(StrEnum):
    """Which limit ended a call. That is found out outside of it: nothing in it can forge or hide it."""

    CPU = "cpu"
    WALL = "wall"
    MEMORY = "memory"
    OUTPUT = "output"  # of standard output, of standard error, or of a value
    PROCESSES = "processes"
    DISK = "disk"


class CallLimits(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What one call may use, over all its processes; whoever reaches one is told its name.

    At `cpu_s`, `wall_s` and `output_bytes` the call is ended at once, with all its processes. At
    `memory_bytes` the kernel kills a process of it, at `processes` it refuses a fork, at `disk_bytes` a
    write (ENOSPC): if the call fails, that is the limit. What lies in its files counts as memory too.
    `open_files` refuses an open (EMFILE) and is named by nobody. Output up to the limit is returned.
    """

    wall_s: float = 30.0  # from the start of user code
    cpu_s: float | None = None  # None: as much as wall_s
    memory_bytes: int = 512 * MIB
    output_bytes: int = MIB  # of each of stdout and stderr
    processes: int = 64  # and threads
    disk_bytes: int = 256 * MIB  # all files that it has at one time, in memory: nothing is stored
    open_files: int = 256  # of each process

    @property
    def cpu_limit_s(self) -> float:
        """The limit of processor time that holds."""
        return self.wall_s if self.cpu_s is None else self.cpu_s

    def check(self, *, streamed: bool = False) -> CallLimits:
        """Returns itself if every value is in bounds; raises InvalidRequest naming one that is not.

        With `streamed` output may be longer: nobody has to hold it.
        """
        limits.check_duration(self.wall_s, "wall", TIME_MAX_S)
        limits.check_duration(self.cpu_s, "cpu", TIME_MAX_S)
        most = STREAMED_BYTES_MAX if streamed else OUTPUT_BYTES_MAX
        for what, value, low, high in (
            ("memory", self.memory_bytes, MEMORY_MIN_BYTES, MEMORY_MAX_BYTES),
            ("output", self.output_bytes, 0, most),
            ("processes", self.processes, 1, PROCESSES_MAX),
            ("disk", self.disk_bytes, DISK_MIN_BYTES, DISK_MAX_BYTES),
            ("open_files", self.open_files, OPEN_FILES_MIN, OPEN_FILES_MAX),
        ):
            if not low <= value <= high:
                raise InvalidRequest(f"{what} must be between {low} and {high}, not {value}")
        return self


# Compilers take more than what they compile.
COMPILE_LIMITS: Final = CallLimits(wall_s=60.0, memory_bytes=2 * GIB, processes=256)
