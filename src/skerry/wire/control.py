"""Bodies of requests that change what lives: deadlines and labels of a sandbox, draining of a node."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from skerry.errors import InvalidRequest
from skerry.spec import limits
from skerry.spec.sandbox import OnIdle, SandboxSpec, Usage, check_labels


class SandboxChange(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What shall be different from now on; what is not named stays. null takes a limit away.

    `ttl_s` counts from the moment of the change: so a live sandbox is given more time, or less. Of
    `labels` only those named change; null removes one.
    """

    ttl_s: float | UnsetType | None = UNSET
    idle_timeout_s: float | UnsetType | None = UNSET
    on_idle: OnIdle | UnsetType = UNSET
    labels: dict[str, str | None] = {}

    def apply(self, spec: SandboxSpec, age_s: float) -> SandboxSpec:
        """Returns the spec of a sandbox of that age, changed.

        Raises InvalidRequest naming a value that is out of bounds.
        """
        changes: dict[str, object] = {}
        if not isinstance(self.ttl_s, UnsetType):
            limits.check_duration(self.ttl_s, "ttl")
            changes["ttl_s"] = None if self.ttl_s is None else max(0.0, age_s) + self.ttl_s
        if not isinstance(self.idle_timeout_s, UnsetType):
            limits.check_duration(self.idle_timeout_s, "idle_timeout")
            changes["idle_timeout_s"] = self.idle_timeout_s
        if not isinstance(self.on_idle, UnsetType):
            changes["on_idle"] = self.on_idle
        if self.labels:
            merged: dict[str, str | None] = {**spec.labels, **self.labels}
            labels = {name: value for name, value in merged.items() if value is not None}
            if any("\x00" in text for pair in labels.items() for text in pair):
                raise InvalidRequest("labels: a NUL in a name or a value")
            check_labels(labels)
            changes["labels"] = labels
        return msgspec.structs.replace(spec, **changes)


class DrainBody(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """No new sandboxes from now on. What still lives after `grace_s` is stopped; null: never."""

    grace_s: float | None = None

    def check(self) -> DrainBody:
        """Returns itself; InvalidRequest if the grace is out of bounds."""
        if self.grace_s is not None and not 0 <= self.grace_s <= limits.TIMEOUT_MAX_S:
            raise InvalidRequest(f"grace must be between 0 and {limits.TIMEOUT_MAX_S:g} s")
        return self


class DrainState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a node is: drained once `draining` is set and nothing lives."""

    draining: bool
    live: int  # sandboxes with an instance
    commands: int  # that run in them
    deadline: float | None = None  # when those that live are stopped; seconds since the epoch


class SandboxUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One live sandbox in a table of all of them."""

    id: str
    state: str
    usage: Usage
    commands: int = 0
    image: str = ""
    created: float = 0.0
    memory_limit_bytes: int = 0
    labels: dict[str, str] = {}


class NodeUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the sandboxes of a node use, and what the host has left. Zero where it cannot be told."""

    at: float  # monotonic seconds of the node: differences give rates
    items: tuple[SandboxUsage, ...]
    cores: int = 0
    memory_total_bytes: int = 0
    memory_available_bytes: int = 0
    load: tuple[float, float, float] = (0.0, 0.0, 0.0)
    pressure: dict[str, float] = {}  # share of the last 10 s that some task waited, in percent
    commands: int = 0
    draining: bool = False
