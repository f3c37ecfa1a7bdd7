"""What a node's operator may say of its trajectories: the section [trajectory] of the configuration."""

from __future__ import annotations

from dataclasses import dataclass

from skerry.errors import InvalidRequest
from skerry.spec.limits import GIB, KIB, MIB
from skerry.spec.sandbox import Durability


@dataclass(frozen=True, kw_only=True)
class TrajectoryOptions:
    """How the record of what was done is kept."""

    ship: bool = True  # to the layer store; False: it is kept only while its sandboxes live
    durability: Durability = Durability.PROCESS  # of sandboxes that ask for none
    segment_bytes: int = 32 * MIB
    seal_after_s: float = (
        300.0  # a segment is shipped that long after its first record, or when full
    )
    # What waits here while the store is away; beyond, the oldest is given up, which is recorded.
    local_bytes_max: int = 4 * GIB
    keep_days: float = 0.0  # of this node's trajectories in the store; 0: for ever
    inline_bytes: int = 4 * KIB  # longer contents are kept by their digest, beside the record
    content_bytes_max: int = 64 * MIB  # of longer ones only the digest is kept

    def check(self) -> TrajectoryOptions:
        """Returns itself if it makes sense; raises InvalidRequest naming what does not."""
        if not 16 * MIB <= self.segment_bytes <= GIB:
            raise InvalidRequest("trajectory.segment_bytes must be between 16 MiB and 1 GiB")
        if not 0.1 <= self.seal_after_s <= 86_400:
            raise InvalidRequest("trajectory.seal_after_s must be between 0.1 s and a day")
        if self.local_bytes_max < self.segment_bytes:
            raise InvalidRequest("trajectory.local_bytes_max must hold a segment")
        if not 0 <= self.keep_days <= 36_500:
            raise InvalidRequest("trajectory.keep_days must be 0, or at most a hundred years")
        if not 0 <= self.inline_bytes <= 64 * KIB:
            raise InvalidRequest("trajectory.inline_bytes must be at most 64 KiB")
        if not self.inline_bytes <= self.content_bytes_max <= GIB:
            raise InvalidRequest(
                "trajectory.content_bytes_max must be between inline_bytes and 1 GiB"
            )
        if self.durability is Durability.SHARED and not self.ship:
            raise InvalidRequest("trajectory.durability: shared needs ship")
        return self
