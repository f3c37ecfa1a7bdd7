"""One node: its parts, and what is made of them. `build` makes the parts, `main` starts them."""

from __future__ import annotations

from skerry.errors import Bug
from skerry.node.commands.answers import Answers
from skerry.node.commands.execution import Execution
from skerry.node.commands.operations import Operations
from skerry.node.commands.sessions import Sessions
from skerry.node.disk import Disk
from skerry.node.files import Files
from skerry.node.forward import Forwarder
from skerry.node.functions.api import FunctionService, NoFunctions
from skerry.node.functions.devices import found_devices
from skerry.node.functions.pools import BACKEND
from skerry.node.functions.service import Functions
from skerry.node.gauges.metrics import Metrics
from skerry.node.gauges.probes import Probes
from skerry.node.jobs.keeping import Keeping
from skerry.node.life.batch import Batches
from skerry.node.life.chains import Chains
from skerry.node.life.commits import Commits
from skerry.node.life.control import Control
from skerry.node.life.drain import Drain
from skerry.node.life.forks import Forks
from skerry.node.life.idle import IdleReclaim
from skerry.node.life.lives import Lives
from skerry.node.parts import Parts
from skerry.node.trail.files import RecordedFiles


class Node:
    """Everything that serves requests."""

    def __init__(self, parts: Parts) -> None:
        self.config = parts.config
        self.clock = parts.clock
        self.identity = parts.identity
        self.tasks = parts.tasks
        self.timers = parts.timers
        self.ledger = parts.ledger
        self.trail = parts.trail
        self.shipping = parts.shipping
        self.outputs = parts.outputs
        self.results = parts.results
        self.admission = parts.admission
        self.loop_watch = parts.loop_watch
        self.sandboxes = parts.sandboxes
        self.owners = parts.owners
        self.jobs = parts.jobs
        self.images = parts.images
        self.imports = parts.imports
        self.keeper = parts.keeper
        self.scrubber = parts.scrubber
        self.trajectories = parts.trajectories
        self.blobs = parts.blobs
        self.networks = parts.networks
        self.uplinks = parts.uplinks
        self.workers = parts.uplinks.workers
        self.backends = parts.backends
        self.version = parts.version
        self.started = parts.clock.wall()
        self.probes = Probes(parts.backends, parts.clock)

        self.lives = Lives(parts)
        self.answers = Answers(parts)
        self.sessions = Sessions(parts, self.lives, self.answers)
        self.execution = Execution(parts, self.lives, self.answers, self.sessions)
        self.operations = Operations(parts, self.lives, self.execution, self.answers, self.sessions)
        self.control = Control(parts, self.lives)
        self.drain = Drain(parts, self.control, self.lives)
        self.keeping = Keeping(parts, self.control, self.lives)
        disk = Disk(self.lives, parts.images, parts.clock)
        self.files = RecordedFiles(parts.trail, Files(self.lives, parts.clock), disk)
        self.forwarder = Forwarder(self.lives, parts.clock, parts.trail)
        self.batches = Batches(parts, self.lives)
        self.forks = Forks(parts, self.lives, self.batches)
        self.chains = Chains(parts)
        self.commits = Commits(parts, self.lives, self.chains)
        self.idle = IdleReclaim(parts.config.idle_reclaim, parts.sandboxes, parts.clock)
        self.calls = Functions(parts, found_devices(parts.config.devices))
        self.functions: FunctionService = self.calls
        if BACKEND not in parts.backends:
            self.functions = NoFunctions(f"it has no backend {BACKEND}")
        self.metrics = Metrics()
        self.lives.observe = self.metrics.changed
        self.execution.observe = self.metrics.answered
        parts.owners.abandon = self.lives.abandon

    def gauges(self) -> dict[str, float]:
        """Returns plain counts and readings by name, for whoever exports them."""
        return {
            **self.admission.gauges(),
            **self.loop_watch.gauges(),
            **self.ledger.gauges(),
            **self.trail.levels.gauges(),
            **self.shipping.gauges(),
            **self.networks.gauges(),
            **self.workers.gauges(),
            **self.uplinks.gauges(),
            **(self.blobs.gauges() if self.blobs else {}),
            "uptime_seconds": round(self.clock.wall() - self.started, 3),
            "draining": float(self.drain.on),
            "timers": len(self.timers),
            "batches_running": len(self.batches),
            "commits_pending": self.commits.pending,
            "chains_waiting": len(self.chains),
            "chains_shortened_total": self.chains.shortened,
            "chains_failed_total": self.chains.failed,
            "owners": len(self.owners),
            **self.keeping.gauges(),
            "idle_reclaim_bytes_total": self.idle.given_bytes,
            "idle_reclaim_refaults_total": self.idle.policy.refaults,
            "tasks": len(self.tasks),
            **self.keeper.gauges(),
            **self.calls.gauges(),
            **self.scrubber.gauges(),
        }

    def check_invariants(self) -> None:
        """Raises Bug unless every part keeps its own, and they agree with each other."""
        self.owners.check_invariants()
        self.jobs.check_invariants()
        self.admission.check_invariants()
        self.calls.check_invariants()
        running = 0
        for sandbox in self.sandboxes:
            sandbox.check_invariants()
            running += sandbox.running
        if running != self.admission.operations:
            raise Bug(f"{running} operations run, {self.admission.operations} were counted")
