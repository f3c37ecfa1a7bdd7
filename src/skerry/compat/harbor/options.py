"""What a job may say of its environments: `--ek NAME=VALUE`, or `environment.kwargs` of its file."""

from __future__ import annotations

from harbor.environments.options import EnvironmentOptions
from pydantic import Field

from skerry.compat.options import IDLE_TIMEOUT_S
from skerry.spec.sandbox import SandboxSpec

_SPEC = SandboxSpec()  # what holds for every sandbox of which nobody says otherwise


class SkerryOptions(EnvironmentOptions):
    """Options that Harbor's own settings do not cover; what a task says itself comes before them."""

    url: str | None = Field(
        default=None,
        description="Of the node, else SKERRY_URL, else a node of this machine.",
    )
    token: str | None = Field(
        default=None,
        description="Of that node. Harbor writes options into its records: SKERRY_TOKEN is better.",
        exclude=True,
    )
    backend: str = Field(default=_SPEC.backend, description="What runs the sandboxes.")
    layers: list[str] = Field(
        default_factory=list, description="Toolkits and workspaces above the task's own image."
    )
    cpu: float = Field(
        default=_SPEC.cpu, description="Cores, where neither task nor job says cpus."
    )
    cpu_class: str = Field(
        default=str(_SPEC.cpu_class), description="Or best-effort: cores that others leave."
    )
    memory: str | int = Field(
        default="4GiB", description="Limit, where neither task nor job says memory."
    )
    disk: str | int | None = Field(
        default=None, description="Limit of what is written, where nobody says storage."
    )
    pids: int = Field(default=4096, description="Most processes and threads.")
    nofile: int = Field(default=_SPEC.nofile, description="Most open files of a process.")
    idle_timeout: float | None = Field(
        default=IDLE_TIMEOUT_S,
        description="Seconds without a command after which a sandbox is removed.",
    )
    ttl: float | None = Field(
        default=None, description="Seconds after which a sandbox ends anyway."
    )
    priority: int = Field(default=_SPEC.priority, description="-10 to 10: who waits less for room.")
    durability: str | None = Field(default=None, description="Of records: process, local, shared.")
    labels: dict[str, str] = Field(default_factory=dict, description="Beside harness, task, trial.")
    public: list[str] = Field(
        default_factory=lambda: ["*", "build"],
        description="What a task's network_mode 'public' reaches, as entries of a network policy.",
    )
    images: dict[str, str] = Field(
        default_factory=dict,
        description="Layers that take the place of images: {'ubuntu:24.04': 'debian:12'}.",
    )
    registries: list[str] = Field(
        default_factory=list,
        description="Where the node may fetch images; the first is for names without a host.",
    )
    authfile: str | None = Field(
        default=None, description="Credentials for them, like ~/.docker/config.json."
    )
