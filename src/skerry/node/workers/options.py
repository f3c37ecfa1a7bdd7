"""What the operator says about workers: `[workers]` of the node's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from skerry.errors import InvalidRequest
from skerry.spec.limits import MIB
from skerry.spec.uplink import WORKERS_MAX


@dataclass(frozen=True, kw_only=True)
class WorkersConfig:
    """How many workers there are, and bounds of what sandboxes ask of them."""

    count: int = 1  # started when they are first used
    # What runs instead of `skerry worker`; it gets --socket, --state, --node, and
    # --orphan-after where instances end without their node, too.
    command: tuple[str, ...] = ()
    connections_max: int = 128  # open at once at an uplink; more are answered with 503
    waiting_max: int = 8192  # requests of all sandboxes that wait for an answer
    body_bytes_max: int = 32 * MIB  # of one request
    bodies_bytes_max: int = 512 * MIB  # of requests that are being read, or no worker has yet

    def check(self) -> WorkersConfig:
        """Returns itself if it makes sense; raises InvalidRequest naming what does not."""
        for what, low, high in (
            ("count", 0, WORKERS_MAX),
            ("connections_max", 1, 256),
            ("waiting_max", 1, 1 << 20),
            ("body_bytes_max", 1024, 1 << 30),
            ("bodies_bytes_max", self.body_bytes_max, 1 << 40),
        ):
            if not low <= getattr(self, what) <= high:
                raise InvalidRequest(f"workers.{what} must be between {low} and {high}")
        return self
