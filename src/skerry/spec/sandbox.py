"""What a sandbox is: what may be asked for, what is reported, and its states."""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec

from skerry.errors import InvalidRequest
from skerry.spec import limits
from skerry.spec.ids import check_job_id, check_rollout
from skerry.spec.layers import LayerKind, MountedLayer, parse_layer_name
from skerry.spec.network import check_network
from skerry.spec.paths import check_covers
from skerry.spec.uplink import Uplink, check_uplinks


class State(StrEnum):
    """States of a sandbox (design §4); the table of transitions is `skerry.lifecycle`."""

    CREATING = "creating"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    RESUMING = "resuming"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class OnIdle(StrEnum):
    """What happens when the idle timeout passes."""

    STOP = "stop"
    PAUSE = "pause"


class CpuClass(StrEnum):
    """Who gives way when cores are short."""

    # Commands answer as fast as the host lets them; several of them share by weight.
    LATENCY_SENSITIVE = "latency-sensitive"
    # Runs in what the others leave, and gives a core up at once when one of them needs it.
    BEST_EFFORT = "best-effort"


class Durability(StrEnum):
    """What an operation's record has survived when its answer is given (decision 12)."""

    PROCESS = "process"  # kill -9 of the node
    LOCAL = "local"  # loss of the host's power: it is on the node's disk
    SHARED = "shared"  # loss of the host: it is in the layer store


IMAGE_DEFAULT = "debian:12"
_ENV_NAME = re.compile(r"[^=\x00-\x1f]{1,256}")
_HOSTNAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a caller asks for. `check()` must have passed before anything acts on it."""

    backend: str = "container"
    image: str = IMAGE_DEFAULT
    layers: tuple[str, ...] = ()
    restore: str | None = None  # a commit: the layers that it was made on, and then it
    cpu: float = 1.0  # cores: quota, and how many the sandbox sees
    cpu_class: CpuClass = CpuClass.LATENCY_SENSITIVE
    cpu_weight: int = limits.CPU_WEIGHT  # against other latency-sensitive ones, 1 to 10,000
    # Cores above `cpu` for up to 100 ms at a time, out of quota that was left before; 0 to `cpu`.
    cpu_burst: float = 0.0
    memory_bytes: int = limits.GIB
    pids: int = 512
    disk_bytes: int | None = None  # None: no limit of its own
    nofile: int = 4096
    shm_bytes: int = 64 * limits.MIB
    env: dict[str, str] = {}  # over what the image sets
    user: str | None = None  # default user of commands; None: the image's, or root
    workdir: str | None = None  # of commands; None: the image's, or the home of their user
    hostname: str = "skerry"
    network: tuple[str, ...] = ()  # entries as in spec.network; empty: loopback only
    idle_timeout_s: float | None = None
    on_idle: OnIdle = OnIdle.STOP
    ttl_s: float | None = None
    labels: dict[str, str] = {}
    key: str | None = None  # idempotency key, unique among the node's sandboxes
    detached: bool = False  # outlives the connection that made it
    priority: int = 0  # among its owner's creates that wait: higher first
    rollout: str | None = None  # the key under which its record is found again
    job: str | None = None  # the job that it belongs to
    durability: Durability | None = None  # None: what the node is configured for
    readonly: tuple[str, ...] = ()  # paths inside that nobody there can change
    hidden: tuple[str, ...] = ()  # paths inside that are empty for everybody there
    uplinks: tuple[Uplink, ...] = ()  # ports inside at which workers of its node answer

    @property
    def made_of(self) -> tuple[str, ...]:
        """The names of what its root file system is: a commit alone, or an image and layers."""
        return (self.image, *self.layers) if self.restore is None else (self.restore,)

    def check(self) -> SandboxSpec:
        """Returns itself if every value is in bounds; raises InvalidRequest naming one that is not."""
        parse_layer_name(self.image, LayerKind.BASE)
        if len(self.layers) > limits.LAYERS_MAX:
            raise InvalidRequest(f"layers: at most {limits.LAYERS_MAX}")
        for name in self.layers:
            parse_layer_name(name)
        if self.restore is not None:
            parse_layer_name(self.restore)
            if self.layers or self.image != IMAGE_DEFAULT:
                raise InvalidRequest("restore: a commit says what it lies on: no image, no layers")
        if not 0.01 <= self.cpu <= limits.CPU_MAX:
            raise InvalidRequest(f"cpu must be between 0.01 and {limits.CPU_MAX:g}, not {self.cpu}")
        self._check_cpu()
        if self.memory_bytes < limits.MEMORY_MIN_BYTES or self.memory_bytes > 1 << 46:
            raise InvalidRequest(f"memory must be at least {limits.MEMORY_MIN_BYTES} bytes")
        if not limits.PIDS_MIN <= self.pids <= limits.PIDS_MAX:
            raise InvalidRequest(f"pids must be between {limits.PIDS_MIN} and {limits.PIDS_MAX}")
        if self.disk_bytes is not None and not limits.MIB <= self.disk_bytes <= 1 << 46:
            raise InvalidRequest("disk must be at least 1 MiB")
        if not 16 <= self.nofile <= limits.NOFILE_MAX:
            raise InvalidRequest(f"nofile must be between 16 and {limits.NOFILE_MAX}")
        if not limits.MIB <= self.shm_bytes <= 1 << 40:
            raise InvalidRequest("shm must be at least 1 MiB")
        check_env(self.env)
        if _HOSTNAME.fullmatch(self.hostname) is None:
            raise InvalidRequest(f"hostname {self.hostname[:80]!r} is no DNS label")
        limits.check_duration(self.idle_timeout_s, "idle_timeout")
        limits.check_duration(self.ttl_s, "ttl")
        check_labels(self.labels)
        if not limits.PRIORITY_MIN <= self.priority <= limits.PRIORITY_MAX:
            raise InvalidRequest(
                f"priority must be between {limits.PRIORITY_MIN} and {limits.PRIORITY_MAX}"
            )
        if self.key is not None and not 1 <= len(self.key) <= 128:
            raise InvalidRequest("key must have 1 to 128 characters")
        if self.rollout is not None:
            check_rollout(self.rollout)
        if self.job is not None:
            check_job_id(self.job)
        check_network(self.network)
        check_covers(self.readonly, self.hidden)
        check_uplinks(self.uplinks)
        return self

    def _check_cpu(self) -> None:
        if not 1 <= self.cpu_weight <= limits.CPU_WEIGHT_MAX:
            most = limits.CPU_WEIGHT_MAX
            raise InvalidRequest(f"cpu_weight must be between 1 and {most}, not {self.cpu_weight}")
        if self.cpu_weight != limits.CPU_WEIGHT and self.cpu_class is CpuClass.BEST_EFFORT:
            raise InvalidRequest("cpu_weight: best-effort sandboxes share evenly what is left")
        if not 0.0 <= self.cpu_burst <= self.cpu:  # not a number is neither
            raise InvalidRequest(f"cpu_burst must be between 0 and cpu, not {self.cpu_burst}")


def check_env(env: dict[str, str], bytes_max: int = limits.ENV_BYTES_MAX) -> None:
    """Raises InvalidRequest unless names are sane and the whole is not too long."""
    total = 0
    for name, value in env.items():
        if _ENV_NAME.fullmatch(name) is None:
            raise InvalidRequest(f"env: {name[:80]!r} is no variable name")
        if "\x00" in value:
            raise InvalidRequest(f"env: the value of {name!r} holds a NUL")
        total += len(name.encode("utf-8", "surrogatepass"))
        total += len(value.encode("utf-8", "surrogatepass")) + 2
    if total > bytes_max:
        raise InvalidRequest(f"env: {total} bytes, at most {bytes_max}")


def check_labels(labels: dict[str, str]) -> None:
    """Raises InvalidRequest unless the labels are few and short."""
    if len(labels) > limits.LABELS_MAX:
        raise InvalidRequest(f"labels: at most {limits.LABELS_MAX}")
    for name, value in labels.items():
        if not name or max(len(name), len(value)) > limits.LABEL_BYTES_MAX:
            raise InvalidRequest(f"labels: {name[:80]!r} is empty or too long")


class SandboxInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a sandbox. Times are seconds since the epoch."""

    id: str
    state: State
    spec: SandboxSpec
    digests: tuple[str, ...] = ()  # of its layers, lowest first
    mounts: tuple[MountedLayer, ...] = ()  # the same, parts of layers too, and how they are checked
    created: float = 0.0
    last_activity: float = 0.0
    expires: float | None = None  # from ttl
    reason: str | None = None  # why it failed or stopped
    running_commands: int = 0
    create_ms: float | None = None
    pause_ms: float | None = None  # how long its last pause gave memory back
    pause_freed_bytes: int | None = None  # by how much its memory shrank in that time
    draining: bool = False  # its node takes no new sandboxes and is being emptied
    drain_deadline: float | None = None  # when it will be stopped for that, if it lives so long
    parent: str | None = None  # the sandbox whose disk it began with
    restored: str | None = None  # the commit that it began with, by name and digest


class Usage(msgspec.Struct, frozen=True):
    """Resources used since the sandbox started; 0 where the host cannot tell."""

    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    memory_peak_bytes: int = 0
    pids: int = 0
    oom_kills: int = 0
    memory_swapped: int = 0  # bytes of its memory that are in swap, not in memory_bytes
    major_faults: int = 0  # pages that were read back from swap or disk when they were needed
