"""Two trajectories side by side: which operations are the same, and where they first differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from skerry.spec.trajectory import Event, canonical
from skerry.trajectory.reports.stats import MODEL_REQUEST

# What differs between two runs of the same thing. Contents are compared by their digests.
_VOLATILE: Final = frozenset(
    {"started", "ended", "cpu_seconds", "op_id", "create_ms", "seconds", "freeze_seconds",
     "acknowledged", "finished", "id", "mtime", "mtime_ns", "progress"}
)  # fmt: skip
# Whole bodies of a model request have names in them that are drawn; what was said is compared.
_BODIES: Final = frozenset({"digest", "sha256", "bytes"})


class Kind(StrEnum):
    """How two events stand to each other."""

    SAME = "same"
    REQUEST = "request"  # something else was asked for
    OUTCOME = "outcome"  # the same was asked for, and something else came of it
    LEFT_ONLY = "left_only"
    RIGHT_ONLY = "right_only"


class Pair(NamedTuple):
    """The events of one ordinal."""

    kind: Kind
    left: Event | None
    right: Event | None


def compare(left: Iterable[Event], right: Iterable[Event]) -> Iterator[Pair]:
    """Yields the events of two trajectories by their ordinal; holds one of each."""
    for one, other in zip_longest(left, right):
        yield Pair(_kind(one, other), one, other)


def asked_apart(pair: Pair) -> tuple[str, ...]:
    """Returns which fields of a pair's requests differ; empty if only what came of them does."""
    if pair.left is None or pair.right is None:
        return ()
    if pair.left.action != pair.right.action:
        return ("action",)
    one, other = _wanted(pair.left), _wanted(pair.right)

    def part(request: dict[str, Any], name: str) -> bytes:
        return canonical({name: request[name]} if name in request else {})

    return tuple(name for name in sorted({*one, *other}) if part(one, name) != part(other, name))


def _kind(one: Event | None, other: Event | None) -> Kind:
    if one is None or other is None:
        return Kind.LEFT_ONLY if other is None else Kind.RIGHT_ONLY
    if (one.action, one.request_digest) != (other.action, other.request_digest) and (
        one.action,
        _asked(one),
    ) != (other.action, _asked(other)):
        return Kind.REQUEST
    return Kind.SAME if _came(one) == _came(other) else Kind.OUTCOME


def _wanted(event: Event) -> dict[str, Any]:
    """Returns what was asked for; of a creation without what names this very sandbox."""
    request = dict(event.request)
    if event.action == "create":
        for name in ("key", "rollout", "job", "labels"):
            request.pop(name, None)
    if event.action == MODEL_REQUEST:
        for name in _BODIES:
            request.pop(name, None)
    return request


def _asked(event: Event) -> bytes:
    return canonical(_wanted(event))


def _came(event: Event) -> bytes:
    error = event.error or {}
    result = event.result
    if result is not None and event.action == MODEL_REQUEST:
        result = {name: value for name, value in result.items() if name not in _BODIES}
    told = {name: error[name] for name in ("code", "fault") if name in error}
    return canonical({"outcome": str(event.outcome), "result": _steady(result), "error": told})


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _steady(inner) for name, inner in value.items() if name not in _VOLATILE}
    if isinstance(value, list):
        return [_steady(inner) for inner in value]
    return value
