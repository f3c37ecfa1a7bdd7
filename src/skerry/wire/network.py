"""Bodies about a sandbox's network (the routes stand in `skerry.wire.http`)."""

from __future__ import annotations

import msgspec


class NetworkBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The entries from now on; as in a SandboxSpec. Empty: loopback only."""

    network: tuple[str, ...]


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the proxy said to one request. Names come from inside: trust nothing but the verdict."""

    at: float  # seconds since the epoch
    verdict: str  # allowed, refused, failed (the other side could not be reached or broke off)
    method: str
    host: str
    port: int
    why: str  # the entry that allowed it, or the reason
    address: str | None = None  # that was connected to


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions since the node started, or took the sandbox over."""

    allowed: int = 0
    refused: int = 0
    failed: int = 0


class NetworkView(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox's network: its policy, and what came of it. Decisions are the last ones."""

    network: tuple[str, ...] = ()  # as it was asked for
    hosts: tuple[str, ...] = ()  # what that allows: names, *.names, with :port where one is fixed
    open_connections: int = 0
    totals: Totals = Totals()
    decisions: tuple[Decision, ...] = ()
