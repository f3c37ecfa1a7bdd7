"""Commits: acknowledged from a snapshot, packed afterwards.

POST sandboxes/ID/commits answers when the commit is acknowledged: everything that was written before
is in it, nothing that is written after, whatever becomes of the sandbox, and of this node's process.
GET commits/ID tells how it goes on.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from skerry.spec.layers import LayerManifest
from skerry.wire.http import ErrorBody


class CommitState(StrEnum):
    """How far a commit is."""

    PACKING = "packing"  # acknowledged; a layer is being made of it
    DONE = "done"  # the layer can be used
    FAILED = "failed"  # there is no layer


class CommitInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A commit. Times are seconds since the epoch; `manifest` once it is done, `error` if it failed."""

    id: str
    sandbox: str
    name: str
    state: CommitState
    acknowledged: float
    freeze_seconds: float  # for which the sandbox stood still
    seconds: float = 0.0  # from the request to the acknowledgement
    progress: str = ""
    finished: float | None = None
    manifest: LayerManifest | None = None
    error: ErrorBody | None = None


class ForkBody(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """`count` sandboxes that begin with what this one has on its disk now; no process is carried over.

    They have its spec and its very layers. What is given here takes the place of the spec's: labels
    are added to it, `key` becomes KEY/0, KEY/1, ...; `ttl_s` and `idle_timeout_s` of 0 mean none.
    """

    count: int = 1
    all_or_nothing: bool = True
    wait_s: float = 0.0
    key: str | None = None
    labels: dict[str, str] = {}
    ttl_s: float | None = None
    idle_timeout_s: float | None = None
    detached: bool | None = None
    priority: int | None = None
