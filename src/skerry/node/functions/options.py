"""What a node is told about function calls: its table `[functions]`."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from skerry.backends.function.marks import Marks
from skerry.errors import InvalidRequest
from skerry.spec.limits import GIB, MIB


@dataclass(frozen=True, kw_only=True)
class FunctionsConfig:
    """Bounds of function calls. Calls and containers beyond them wait, and are refused by name."""

    containers_max: int = 16  # of all environments together
    containers_per_pool_max: int = 4
    calls_running_max: int = 0  # at once; 0: four for each core
    # The sum of what running calls may use: so they cannot drive the host out of memory together.
    calls_memory_max_bytes: int = 0  # 0: half of the host's memory
    calls_waiting_max: int = 4096
    calls_waiting_per_owner_max: int = 2048
    calls_waiting_bytes_max: int = 256 * MIB  # what they hold
    stock_max: int = 8  # containers of one environment for isolation `container`
    pool_idle_s: float = 120.0  # a container that nobody needed for so long ends
    calls_per_container_max: int = 50_000
    start_within_s: float = 60.0  # a container, with the imports of its modules
    drain_s: float = 5.0  # calls that run when the node ends may take so long

    def check(self) -> FunctionsConfig:
        """Returns itself if it makes sense; raises InvalidRequest naming what does not."""
        for name in (
            "containers_max",
            "containers_per_pool_max",
            "calls_waiting_max",
            "calls_waiting_per_owner_max",
            "stock_max",
        ):
            if not 1 <= getattr(self, name) <= 65_536:
                raise InvalidRequest(f"functions.{name} must be between 1 and 65536")
        if self.calls_running_max < 0 or self.calls_memory_max_bytes < 0:
            raise InvalidRequest(
                "functions.calls_running_max and calls_memory_max_bytes: 0 or more"
            )
        if self.calls_waiting_bytes_max < MIB:
            raise InvalidRequest("functions.calls_waiting_bytes_max must be at least 1 MiB")
        if not 1 <= self.start_within_s <= 3600 or not 0 <= self.drain_s <= 3600:
            raise InvalidRequest("functions.start_within_s and drain_s must be within an hour")
        self.marks().check()
        return self

    def marks(self) -> Marks:
        """Returns the bounds of one pool."""
        running = Marks().running
        return Marks(
            containers_max=self.containers_per_pool_max,
            # One more than what all calls that may run at once fill: should one be lost.
            useful_max=math.ceil(self.running_max / running) + 1,
            calls_max=self.calls_per_container_max,
            idle_s=self.pool_idle_s,
        )

    @property
    def running_max(self) -> int:
        """How many calls run at once."""
        return self.calls_running_max or 4 * (os.cpu_count() or 1)

    @property
    def memory_max(self) -> int:
        """What they may use together."""
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return self.calls_memory_max_bytes or max(GIB, total // 2)
