"""What a sandbox may be given when it is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from skerry.errors import InvalidRequest
from skerry.sdk.typed import typed
from skerry.spec.limits import parse_bytes
from skerry.spec.sandbox import CpuClass, OnIdle, SandboxSpec


class SandboxOptions(TypedDict, total=False):
    """What `create` and `create_many` take by name; `spec_of` has what holds without it.

    `image` and `layers` are names (`kind/name[:tag]`) or digests; `cpu` is in cores, `memory` and
    `disk` are bytes or texts such as "1GiB"; `network` says what may be reached, () being loopback
    only; `idle_timeout` and `ttl` are in seconds. With `detached` it outlives an embedded node's
    client; of the creates of one client that wait, a higher `priority` (-10 to 10) is first.
    """

    image: str
    layers: Sequence[str]
    cpu: float
    cpu_class: str
    cpu_weight: int
    cpu_burst: float
    memory: int | str
    pids: int
    disk: int | str | None
    nofile: int
    env: dict[str, str] | None
    user: str
    workdir: str | None
    hostname: str
    network: Sequence[str]
    idle_timeout: float | None
    on_idle: str
    ttl: float | None
    labels: dict[str, str] | None
    detached: bool
    priority: int


def spec_of(
    backend: str,
    *,
    image: str = "debian:12",
    layers: Sequence[str] = (),
    cpu: float = 1.0,
    cpu_class: str = "latency-sensitive",
    cpu_weight: int = 100,
    cpu_burst: float = 0.0,
    memory: int | str = "1GiB",
    pids: int = 512,
    disk: int | str | None = None,
    nofile: int = 4096,
    env: dict[str, str] | None = None,
    user: str = "root",
    workdir: str | None = None,
    hostname: str = "skerry",
    network: Sequence[str] = (),
    idle_timeout: float | None = None,
    on_idle: str = "stop",
    ttl: float | None = None,
    labels: dict[str, str] | None = None,
    key: str | None = None,
    detached: bool = False,
    priority: int = 0,
) -> SandboxSpec:
    """Returns the checked spec of what a caller asked for; raises InvalidRequest."""
    for what, names_given in (("layers", layers), ("network", network)):
        if isinstance(names_given, str):
            raise InvalidRequest(f"{what} is a list: write {what}=[{names_given!r}]")
    if on_idle not in OnIdle.__members__.values():
        raise InvalidRequest(f"on_idle must be one of {', '.join(OnIdle)}, not {on_idle!r}")
    if cpu_class not in CpuClass.__members__.values():
        names = ", ".join(CpuClass)
        raise InvalidRequest(f"cpu_class must be one of {names}, not {cpu_class!r}")
    spec = SandboxSpec(
        backend=backend,
        image=image,
        layers=tuple(layers),
        cpu=cpu,
        cpu_class=CpuClass(cpu_class),
        cpu_weight=cpu_weight,
        cpu_burst=cpu_burst,
        memory_bytes=parse_bytes(memory, "memory"),
        pids=pids,
        disk_bytes=None if disk is None else parse_bytes(disk, "disk"),
        nofile=nofile,
        env=env or {},
        user=user,
        workdir=workdir,
        hostname=hostname,
        network=tuple(network),
        idle_timeout_s=idle_timeout,
        on_idle=OnIdle(on_idle),
        ttl_s=ttl,
        labels=labels or {},
        key=key,
        detached=detached,
        priority=priority,
    )
    return typed(spec).check()
