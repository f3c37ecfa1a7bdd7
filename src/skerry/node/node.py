"""One node: its parts, by name. `build` puts them together, `main` starts and ends them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from skerry.backends.api import Backend
from skerry.node.admission import Admission
from skerry.node.batch import Batches
from skerry.node.clock import Clock
from skerry.node.config import NodeConfig
from skerry.node.disk import Disk
from skerry.node.files import Files
from skerry.node.forward import Forwarder
from skerry.node.identity import Identity
from skerry.node.images import Images
from skerry.node.ledger import Ledger
from skerry.node.lives import Lives
from skerry.node.operations import Operations
from skerry.node.outputs import Outputs
from skerry.node.owners import Owners
from skerry.node.results import Results
from skerry.node.sandboxes import Sandboxes
from skerry.node.tasks import Tasks
from skerry.node.timers import Timers


@dataclass(frozen=True, kw_only=True)
class Node:
    """The parts of a node; every one is used from the event loop only."""

    config: NodeConfig
    clock: Clock
    identity: Identity
    tasks: Tasks
    timers: Timers
    ledger: Ledger
    outputs: Outputs
    results: Results
    admission: Admission
    sandboxes: Sandboxes
    owners: Owners
    backends: Mapping[str, Backend]
    images: Images
    lives: Lives
    operations: Operations
    files: Files
    disk: Disk
    forwarder: Forwarder
    batches: Batches
    started: float  # wall clock

    def check_invariants(self) -> None:
        """Raises Bug unless every part keeps its own, and they agree with each other."""
        self.owners.check_invariants()
        running = 0
        for sandbox in self.sandboxes:
            sandbox.check_invariants()
            running += sandbox.running
        if running != self.admission.operations:
            raise AssertionError(f"{running} operations run, {self.admission.operations} counted")
