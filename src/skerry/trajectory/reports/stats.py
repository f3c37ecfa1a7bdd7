"""What trajectories add up to: commands, time at work, time between, output, failures by fault."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from skerry.spec.trajectory import Event, Outcome, content_bytes

COMMANDS = frozenset({"run", "session.run"})
MODEL_REQUEST = "model.request"


class TrajectoryStats(msgspec.Struct, kw_only=True):
    """One sandbox's figures, or those of several together. Times are seconds.

    `busy_s` is when at least one operation was under way, `between_s` the time from the end of one to
    the begin of the next: what the model, or whoever drives the sandbox, thought. Requests of a model
    are no operations here. `paused_s` is in neither. `failures` counts errors by whose fault they are.
    """

    sandboxes: int = 0
    events: int = 0
    commands: int = 0
    nonzero: int = 0  # commands with another exit status than 0
    timed_out: int = 0
    oom_killed: int = 0
    span_s: float = 0.0
    busy_s: float = 0.0
    between_s: float = 0.0
    paused_s: float = 0.0
    cpu_seconds: float = 0.0
    bytes_out: int = 0  # of commands, before anything was cut
    failures: dict[str, int] = {}
    model_requests: int = 0  # that were answered
    model_s: float = 0.0  # from each request to its answer: parallel ones count each
    input_tokens: int = 0  # as far as the trainer counted them
    output_tokens: int = 0
    unknown: int = 0  # operations of which nobody knows whether they ran

    def add(self, other: TrajectoryStats) -> None:
        """Adds another one's."""
        for name in self.__struct_fields__:
            if name != "failures":
                setattr(self, name, getattr(self, name) + getattr(other, name))
        for fault, count in other.failures.items():
            self.failures[fault] = self.failures.get(fault, 0) + count


def stats_of(events: Iterable[Event]) -> TrajectoryStats:
    """Returns the figures of one sandbox; `events` are all of it, in order."""
    stats = TrajectoryStats(sandboxes=1)
    line = _Line()
    for event in events:
        stats.events += 1
        if event.outcome is Outcome.UNKNOWN:
            stats.unknown += 1
        elif event.error is not None:
            fault = str(event.error.get("fault", "bug"))
            stats.failures[fault] = stats.failures.get(fault, 0) + 1
        if event.action in COMMANDS:
            _command(stats, event)
        if event.action == MODEL_REQUEST:  # no work: the agent waits
            _model_request(stats, event)
        else:
            line.take(event)
    stats.span_s = line.span_s
    stats.busy_s, stats.between_s, stats.paused_s = line.busy_s, line.between_s, line.paused_s
    return stats


def _command(stats: TrajectoryStats, event: Event) -> None:
    result = event.result or {}
    stats.commands += 1
    stats.nonzero += event.outcome is Outcome.DONE and result.get("exit_code") != 0
    stats.timed_out += bool(result.get("timed_out"))
    stats.oom_killed += bool(result.get("oom_killed"))
    stats.cpu_seconds += _number(event.usage.get("cpu_seconds"))
    for stream in ("stdout", "stderr"):
        stats.bytes_out += int(_number(result.get(f"{stream}_total"))) or _length(
            result.get(stream)
        )


def _model_request(stats: TrajectoryStats, event: Event) -> None:
    if (event.result or {}).get("answered") is True:
        stats.model_requests += 1
        stats.model_s += max(0.0, event.ended - event.started)
        stats.input_tokens += int(_number(event.usage.get("input_tokens")))
        stats.output_tokens += int(_number(event.usage.get("output_tokens")))


class _Line:
    """Time, cut into what is covered by operations and what lies between."""

    def __init__(self) -> None:
        self.busy_s = self.between_s = self.paused_s = 0.0
        self._first: float | None = None
        self._until = 0.0  # the last end so far
        self._paused = False

    @property
    def span_s(self) -> float:
        """From the first begin to the last end."""
        return 0.0 if self._first is None else self._until - self._first

    def take(self, event: Event) -> None:
        """Takes the next operation; one that has no end is left out."""
        if event.ended <= 0:
            return
        if self._first is None:
            self._first = self._until = event.started
        gap = event.started - self._until
        if gap > 0:
            if self._paused:
                self.paused_s += gap
            else:
                self.between_s += gap
        self.busy_s += max(0.0, event.ended - max(event.started, self._until))
        self._until = max(self._until, event.ended)
        self._paused = event.action == "pause"


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _length(value: Any) -> int:
    if not isinstance(value, dict):
        return 0
    data = content_bytes(value)
    return len(data) if data is not None else int(_number(value.get("bytes")))


__all__ = ["COMMANDS", "TrajectoryStats", "stats_of"]
