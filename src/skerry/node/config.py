"""What a node is told at its start. `skerry.cli` reads it; nothing below reads a setting."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from skerry.backends.devices.listed import DevicesConfig
from skerry.density.idle import IdleMarks
from skerry.density.pressure import Marks
from skerry.errors import InvalidRequest
from skerry.images.lazy.options import LazyOptions
from skerry.images.objects.s3_options import S3Options, parse_place
from skerry.network.services import NetworkConfig
from skerry.node.functions.options import FunctionsConfig
from skerry.node.workers.options import WorkersConfig
from skerry.spec.limits import CHAIN_COMMITS_MAX, GIB, MIB, parse_bytes
from skerry.trajectory.options import TrajectoryOptions


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds that the node keeps by answering Overloaded; each is named so in that answer."""

    sandboxes_max: int = 4000  # in any state but stopped and failed
    creates_in_flight_max: int = 16  # backend creates at once
    creates_waiting_max: int = 4096  # creates that wait for room or for one of those, in all
    creates_waiting_per_owner_max: int = 1024
    sandboxes_per_owner_max: int = 0  # of one API token, its jobs' too; 0: no bound of its own
    jobs_max: int = 1000  # that have not ended
    jobs_per_owner_max: int = 1000
    job_away_s_max: float = 7 * 86_400.0  # a job whose trainer is away that long ends
    batches_max: int = 64  # batches under way; each waits with at most creates_in_flight_max hands
    connections_max: int = 8192  # to the API, WebSockets too; never more than half the descriptors
    operations_max: int = 20_000  # commands running, over all sandboxes
    operations_per_sandbox_max: int = 1000
    # What sandboxes ask for is a limit and not a need: most use a small part. So what they ask for
    # is bounded only if the operator says how much of it is real (of the host's memory and of
    # pid_max; 0: no bound), and what is really left is looked at.
    memory_overcommit: float = 0.0
    pids_overcommit: float = 0.0
    memory_free_min_bytes: int = 256 * MIB
    memory_young_bytes: int = 2 * MIB  # what one is expected to take in its first ten seconds
    disk_free_min_bytes: int = 512 * MIB
    pids_free_min: int = 1024
    descriptors_free_min: int = 256  # of the node, and of each daemon of a backend
    loop_lag_max_s: float = 3.0  # creates stop when the event loop is that late; 0: never
    # Not answered with Overloaded: older entries leave memory, or are forgotten.
    results_memory_bytes_max: int = 64 * MIB  # results kept in memory; the journal has them all
    results_per_sandbox_max: int = 65_536  # operation ids remembered for repeats
    results_per_sandbox_bytes_max: int = 64 * MIB  # and their output; the newest is always kept
    ended_max: int = 1000  # stopped and failed sandboxes kept for a look; the oldest are deleted
    owners_max: int = 1000
    image_threads_max: int = 4
    plan_s_max: float = 120.0  # a create waits that long for a layer store that does not answer

    def check(self) -> None:
        """Raises InvalidRequest naming what makes no sense."""
        if self.disk_free_min_bytes > 1024 * GIB:
            raise InvalidRequest("limits.disk_free_min_bytes is out of bounds")
        for name in ("creates_in_flight_max", "connections_max", "batches_max"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"limits.{name} must be at least 1")
        if not 1 <= self.plan_s_max <= 3600:
            raise InvalidRequest("limits.plan_s_max must be between a second and an hour")
        if self.sandboxes_per_owner_max < 0:
            raise InvalidRequest("limits.sandboxes_per_owner_max must not be negative")
        if not 60 <= self.job_away_s_max <= 366 * 86_400:
            raise InvalidRequest("limits.job_away_s_max must be between a minute and a year")


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """A node. Paths are absolute; the directories are made if missing (0700)."""

    state_dir: str  # node name, epoch, journal, spooled output
    run_dir: str  # sockets; on a tmpfs
    store_dir: str  # layers, unless `store` names a bucket
    store: str = ""  # "s3://BUCKET/PREFIX": layers there; "": in store_dir
    s3: S3Options = field(default_factory=S3Options)  # how that bucket is reached
    # How data of layers is read: "trusted" (in place, of a directory), "verified" (by the chunk,
    # checked and cached in state_dir); "": verified from a bucket, trusted from a directory.
    mounts: str = ""
    lazy: LazyOptions = field(default_factory=LazyOptions)  # of verified mounts
    cache_dir: str = "/var/cache/skerry"  # image tools and archives that can be had again
    # Credentials for registries (like ~/.docker/config.json), for imports and pushes that bring none.
    registry_auth_file: str | None = None
    registry_cache_dir: str = ""  # layers from registries; "": oci in cache_dir
    registry_cache_bytes: int = 10 * GIB  # how much of them is kept
    socket: str = ""  # API on a unix socket, mode 0600; "": node.sock in run_dir
    tcp: str | None = None  # API on "host:port" too; needs tokens; port 0 takes a free one
    tokens: tuple[str, ...] = ()
    backends: tuple[str, ...] = ("container",)
    backend_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    pressure: Marks = field(default_factory=Marks)
    # Turns that a job (or label `job`) or an owner gets in queues while others get one; at most 100.
    weights: dict[str, float] = field(default_factory=dict)
    idle_reclaim: IdleMarks = field(default_factory=IdleMarks)
    zram: str | None = None  # size of compressed swap that the node makes; None: none
    trajectory: TrajectoryOptions = field(default_factory=TrajectoryOptions)
    network: NetworkConfig = field(default_factory=NetworkConfig)  # what sandboxes may be allowed
    workers: WorkersConfig = field(default_factory=WorkersConfig)
    devices: DevicesConfig = field(default_factory=DevicesConfig)  # GPUs for function calls
    functions: FunctionsConfig = field(default_factory=FunctionsConfig)
    embedded: bool = False  # ends with its last owner (decision 21)
    keep_on_exit: bool = True  # instances outlive an orderly end, to be adopted
    # How long a node may be gone before what is not detached ends without it. None: for an embedded
    # one its lease and a minute, for others for ever.
    orphan_after_s: float | None = None
    registry_dir: str = ""  # where the node says that it is there; "": nowhere
    # On how many commits a restored sandbox may lie before they are merged in the background.
    chain_commits_max: int = 4
    collect_every_s: float = 3600.0  # of the layer store, by whichever node is due; 0: never
    # Every layer is read again and compared with its digests about that often, by any node of the
    # store, slowly, and after everybody else on the disk. 0: never.
    scrub_every_s: float = 7 * 86_400.0
    scrub_bytes_per_s: int = 8 * MIB
    log_format: str = "text"  # or "json": an object a line
    log_file: str | None = None  # of bounded size; None: standard error
    end_within_s: float = 30.0  # of an orderly end; what is not done by then is left to the next
    lease_s: float = 30.0  # how long an owner may be away
    exit_grace_s: float = 2.0  # embedded: between the last owner's end and the daemon's
    first_owner_s: float = 60.0  # embedded: how long the first owner may let itself be waited for

    @property
    def socket_path(self) -> str:
        """Path of the API's unix socket."""
        return self.socket or os.path.join(self.run_dir, "node.sock")

    @property
    def verified(self) -> bool:
        """Whether data of layers is read through the chunk cache."""
        return self.mounts == "verified" or bool(self.store and not self.mounts)

    @property
    def orphans_end_after_s(self) -> float | None:
        """How long instances that are not detached outlive their node; None: for ever."""
        if self.orphan_after_s is not None or not self.embedded:
            return self.orphan_after_s
        return self.lease_s + 60.0

    def check(self) -> NodeConfig:
        """Returns itself if it makes sense; raises InvalidRequest naming what does not."""
        for name in ("state_dir", "run_dir", "store_dir", "cache_dir"):
            if not os.path.isabs(getattr(self, name)):
                raise InvalidRequest(f"{name} must be an absolute path")
        if self.store:
            parse_place(self.store)
        self.s3.check()
        self.devices.check()
        if self.mounts not in ("", "trusted", "verified"):
            raise InvalidRequest(f"mounts: {self.mounts[:40]!r} is neither trusted nor verified")
        if self.mounts == "trusted" and self.store:
            raise InvalidRequest("mounts: layers in a bucket are only mounted verified")
        self.lazy.check()
        if len(os.fsencode(self.socket_path)) > 107:
            raise InvalidRequest(f"socket: {self.socket_path} is longer than a socket path may be")
        if not self.backends:
            raise InvalidRequest("backends: name at least one")
        if self.tcp is not None:
            tcp_address(self.tcp)
            if not self.tokens:
                raise InvalidRequest("tcp: needs tokens: who reaches the port owns the node")
        if any(len(token) < 16 or not token.isascii() for token in self.tokens):
            raise InvalidRequest("tokens: at least 16 ASCII characters each")
        self.network.check()
        self.workers.check()
        self.functions.check()
        self.trajectory.check()
        self.limits.check()
        self.pressure.check()
        if not all(0.01 <= weight <= 100 for weight in self.weights.values()):
            raise InvalidRequest("weights: between 0.01 and 100 each")
        self.idle_reclaim.check()
        if self.zram is not None:
            parse_bytes(self.zram, "zram")
        self._check_times()
        if not 64 << 10 <= self.scrub_bytes_per_s <= 1 << 40:
            raise InvalidRequest("scrub_bytes_per_s must be between 64 KiB and 1 TiB")
        if not 1 <= self.chain_commits_max <= CHAIN_COMMITS_MAX:
            raise InvalidRequest(f"chain_commits_max must be between 1 and {CHAIN_COMMITS_MAX}")
        if self.log_format not in ("text", "json"):
            raise InvalidRequest(f"log_format: {self.log_format[:40]!r} is neither text nor json")
        if self.registry_cache_bytes < 0:
            raise InvalidRequest("registry_cache_bytes must not be negative")
        for name in ("log_file", "registry_auth_file", "registry_cache_dir"):
            value = getattr(self, name)
            if value and not os.path.isabs(value):
                raise InvalidRequest(f"{name} must be an absolute path")
        return self

    def _check_times(self) -> None:
        for name in ("lease_s", "exit_grace_s", "first_owner_s", "end_within_s"):
            if not 0 < getattr(self, name) < 86_400:
                raise InvalidRequest(f"{name} must be above 0 and below a day")
        if not (self.collect_every_s == 0 or 60 <= self.collect_every_s < 30 * 86_400):
            raise InvalidRequest("collect_every_s must be 0, or between a minute and 30 days")
        if not (self.scrub_every_s == 0 or 1 <= self.scrub_every_s < 366 * 86_400):
            raise InvalidRequest("scrub_every_s must be 0, or between a second and a year")
        if self.orphan_after_s is not None and not 1 <= self.orphan_after_s < 30 * 86_400:
            raise InvalidRequest("orphan_after_s must be between a second and 30 days")


def tcp_address(text: str) -> tuple[str, int]:
    """Returns host and port of "host:port" or "[v6]:port"; raises InvalidRequest."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise InvalidRequest(f"tcp: {text!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)
