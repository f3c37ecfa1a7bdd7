"""What a sandbox may be given when it is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

from skerry.errors import InvalidRequest
from skerry.sdk.typed import listed, typed
from skerry.spec.layers import LayerKind
from skerry.spec.limits import parse_bytes
from skerry.spec.sandbox import CpuClass, Durability, OnIdle, SandboxSpec
from skerry.spec.uplink import Uplink

NO_DISKS = (
    "sandboxes that are containers take no block disks: the host's kernel would read a file system "
    "that a guest has written. `skerry disk open` makes one a file for a virtual machine; what is to "
    "be in a sandbox goes there as a layer (layers=) or by files.upload"
)
_SECONDS = ("idle_timeout", "ttl")
_LISTS = ("layers", "network", "readonly", "hidden", "uplinks")
_WORDS = (("on_idle", OnIdle), ("cpu_class", CpuClass), ("durability", Durability))


class SandboxOptions(TypedDict, total=False):
    """What `create` and `create_many` take by name, with what holds otherwise.

    image="debian:12", layers=(): names (`kind/name[:tag]`) or digests; or restore=None: a commit
    (`workspace/name[:tag]`), with all that it was made on.
    cpu=1.0 (cores), cpu_class="latency-sensitive" or "best-effort", cpu_weight=100, cpu_burst=0.0.
    memory="1GiB", disk=None (no limit of its own): texts or bytes; pids=512, nofile=4096. `disk` is
    what it may write; block disks of the store (`skerry disk`) containers do not take.
    env={}, user=None, workdir=None (the image's; else root, the user's home), hostname="skerry".
    network=(): loopback only.
    idle_timeout=None, ttl=None: seconds; on_idle="stop" or "pause".
    labels={}; detached=False (else it outlives an embedded node's client); priority=0 (-10 to 10;
    of one client's creates that wait, a higher one is first).
    rollout=None: a key under which its record is found again; job=None: the job it belongs to;
    durability=None (what the node is configured for), or "process", "local", "shared".
    readonly=(), hidden=(): absolute paths that nobody inside can change, or that are empty there, root
    too; each must exist in the layers.
    uplinks=(): ports inside at which a worker of the node answers, as {"port": 8017, "worker": 0}.
    """

    image: str
    layers: Sequence[str]
    restore: str | None
    cpu: float
    cpu_class: str
    cpu_weight: int
    cpu_burst: float
    memory: int | str
    pids: int
    disk: int | str | None
    nofile: int
    env: dict[str, str] | None
    user: str | None
    workdir: str | None
    hostname: str
    network: Sequence[str]
    idle_timeout: float | None
    on_idle: str
    ttl: float | None
    labels: dict[str, str] | None
    detached: bool
    priority: int
    rollout: str | None
    job: str | None
    durability: str | None
    readonly: Sequence[str]
    hidden: Sequence[str]
    uplinks: Sequence[Uplink | dict[str, int]]


def spec_of(
    backend: str, *, key: str | None = None, **options: Unpack[SandboxOptions]
) -> SandboxSpec:
    """Returns the checked spec of what a caller asked for.

    Raises InvalidRequest, and TypeError for an option that there is not, as any call does.
    """
    disk = options.get("disk")
    if "disks" in options or (isinstance(disk, str) and disk.startswith(f"{LayerKind.DISK}/")):
        raise InvalidRequest(NO_DISKS)
    known = SandboxOptions.__annotations__.keys()
    if unknown := options.keys() - known:
        raise TypeError(f"a sandbox has no option {min(unknown)!r}; there are {', '.join(known)}")
    fields: dict[str, Any] = {
        f"{name}_s" if name in _SECONDS else name: value for name, value in options.items()
    }
    fields |= {name: listed(name, fields[name]) for name in _LISTS if name in fields}
    fields |= {name: fields[name] or {} for name in ("env", "labels") if name in fields}
    if "memory" in fields:
        fields["memory_bytes"] = parse_bytes(fields.pop("memory"), "memory")
    if (disk := fields.pop("disk", None)) is not None:
        fields["disk_bytes"] = parse_bytes(disk, "disk")
    for name, kind in _WORDS:
        value = fields.get(name)
        if value is not None and value not in kind.__members__.values():
            raise InvalidRequest(f"{name} must be one of {', '.join(kind)}, not {value!r}")
    return typed(SandboxSpec(backend=backend, key=key, **fields)).check()
