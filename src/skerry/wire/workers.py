"""Bodies about a node's workers (what a worker itself is told stands in `skerry.spec.worker`)."""

from __future__ import annotations

import msgspec


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One worker of the node."""

    worker: int
    state: str  # unused, starting, ready
    pid: int = 0
    starts: int = 0  # by this node's process
    problem: str = ""  # why it is not ready
