"""Many sandboxes in one request: bodies, outcomes, and the stream of outcomes.

With `stream=1` the answer is a sequence of u32 little-endian length + msgpack BatchEvent, one for
each member as it becomes ready or fails, then one with `end` or `error`. A stream that ends without
those is broken: the members that it told of may or may not exist, and are found by their keys.
"""

from __future__ import annotations

import msgspec

from skerry.spec.sandbox import SandboxInfo, SandboxSpec
from skerry.wire.http import ErrorBody


class BatchCreate(msgspec.Struct, frozen=True, kw_only=True):
    """`count` sandboxes of one spec. With `all_or_nothing`, one failure undoes the rest.

    A `key` in the spec becomes `KEY/0`, `KEY/1`, ... so that a repeated batch finds its members.
    Members for which there is no room wait for it in the node's fair queue for up to `wait_s`
    seconds (at most a day) after the request came.
    """

    spec: SandboxSpec
    count: int
    all_or_nothing: bool = False
    wait_s: float = 0.0


class BatchDelete(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sandboxes to destroy; unknown ids count as destroyed.

    With `key`, the batch of that key is undone instead: if it is under way it ends, and all its
    members go but for those in `keep`; the outcomes are those of the members that there were.
    """

    ids: tuple[str, ...] = ()
    key: str | None = None
    keep: tuple[str, ...] = ()


class BatchItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One member's outcome."""

    info: SandboxInfo | None = None
    error: ErrorBody | None = None


class BatchResult(msgspec.Struct, frozen=True):
    """Outcomes in the order asked for."""

    items: tuple[BatchItem, ...]


class BatchEnd(msgspec.Struct, frozen=True):
    """How many of a streamed batch were made, and how many were not."""

    made: int
    failed: int


class BatchEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """A member's number and outcome, or the end, or the error that undid everything."""

    index: int = -1
    item: BatchItem | None = None
    end: BatchEnd | None = None
    error: ErrorBody | None = None
