"""What the parts of a node are made of: state and resources that several of them use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from skerry.backends.api import Backend
from skerry.node.admission.doors import Admission
from skerry.node.blobs import Blobs
from skerry.node.clock import Clock
from skerry.node.commands.outputs import Outputs
from skerry.node.commands.results import Results
from skerry.node.config import NodeConfig
from skerry.node.gauges.loopwatch import LoopWatch
from skerry.node.identity import Identity
from skerry.node.images import Images
from skerry.node.imports import Imports
from skerry.node.jobs.jobs import Jobs
from skerry.node.keeper import Keeper
from skerry.node.ledger import Ledger
from skerry.node.life.owners import Owners
from skerry.node.life.sandboxes import Sandboxes
from skerry.node.network import Networks
from skerry.node.scrubber import Scrubber
from skerry.node.tasks import Tasks
from skerry.node.timers import Timers
from skerry.node.trail.acts import Trail
from skerry.node.trail.shipping import Shipping
from skerry.node.trajectories import Trajectories
from skerry.node.workers.uplinks import Uplinks


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts that know no other part; used from the event loop only."""

    config: NodeConfig
    clock: Clock
    identity: Identity
    tasks: Tasks
    timers: Timers
    ledger: Ledger
    trail: Trail
    shipping: Shipping
    outputs: Outputs
    results: Results
    admission: Admission
    loop_watch: LoopWatch
    sandboxes: Sandboxes
    owners: Owners
    jobs: Jobs
    images: Images
    imports: Imports
    keeper: Keeper
    scrubber: Scrubber
    trajectories: Trajectories
    blobs: Blobs | None  # None: no layer is mounted verified here
    networks: Networks
    uplinks: Uplinks
    backends: Mapping[str, Backend]
    version: str
