"""What the node counts about itself, in the text format that Prometheus reads.

Nothing is counted where the work is done: `Metrics` is told of changes of state and of answers by one
observer each, of requests by every endpoint, and everything else is read when it is asked for. Labels
come from closed sets (states, error codes, routes, stages of a start), so that no client can make the
page grow. Format: the Prometheus exposition format, version 0.0.4.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from skerry.backends.api import Gauged
from skerry.density.pressure import Brake
from skerry.errors import SkerryError
from skerry.node.commands.operation import Op
from skerry.node.life.sandbox import Sandbox
from skerry.spec.command import RunResult
from skerry.spec.sandbox import State

CREATE_BOUNDS_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
COMMAND_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0)
REQUEST_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 60.0, 600.0)
LABELS_MAX = 64  # of names that another part chooses: stages, limits

# What ended a sandbox, by the reason that its users are told; anything else is "failed".
_ENDS = {
    "it was idle": "idle",
    "its ttl is over": "ttl",
    "it was deleted": "deleted",
    "a request asked for it": "stopped",
    "its owner is gone": "owner",
    "its node was drained": "drained",
    "its job ended": "job",
}
_NAME = re.compile(r"[^a-zA-Z0-9_]")
_STAGE = re.compile(r"([a-z_]{1,32})=([0-9]{1,12})")

Labels = tuple[tuple[str, str], ...]
Series = Iterable[tuple[Labels, float]]


class Histogram:
    """Counts of values by bound, cheap to add to."""

    __slots__ = ("bounds", "buckets", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Takes one value."""
        self.buckets[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: Labels = ()) -> Iterator[str]:
        """Gives its lines, counts summed up as the format wants them."""
        count = 0
        for bound, bucket in zip((*self.bounds, float("inf")), self.buckets, strict=True):
            count += bucket
            edge = "+Inf" if bound == float("inf") else f"{bound:g}"
            yield f"{name}_bucket{_labels((*labels, ('le', edge)))} {count}"
        yield f"{name}_sum{_labels(labels)} {self.total:.6f}"
        yield f"{name}_count{_labels(labels)} {count}"


class Metrics:
    """Counters since the start of this process. Only the event loop touches them."""

    def __init__(self) -> None:
        self.changes: Counter[tuple[str, str]] = Counter()  # (from, to)
        self.ends: Counter[str] = Counter()
        self.create_failures: Counter[str] = Counter()  # by error code
        self.create_s = Histogram(CREATE_BOUNDS_S)
        self.stage_us: Counter[str] = Counter()
        self.commands: Counter[str] = Counter()  # by outcome
        self.command_s = Histogram(COMMAND_BOUNDS_S)
        self.output_bytes = 0
        self.requests: Counter[tuple[str, str, int]] = Counter()  # (method, route, status)
        self.request_s: dict[str, Histogram] = {}
        self.bytes_in = 0
        self.bytes_out = 0

    def changed(self, sandbox: Sandbox, before: State) -> None:
        """A sandbox has another state than before."""
        after = sandbox.state
        self.changes[before, after] += 1
        if before is State.CREATING:
            if after is State.FAILED:
                error = sandbox.end_error
                self.create_failures["bug" if error is None else error.code] += 1
            elif after is State.RUNNING and sandbox.create_ms is not None:
                self.create_s.add(sandbox.create_ms / 1000)
                for text in getattr(sandbox.instance, "stages", ()):
                    self._stage(text)
        elif after is State.FAILED or (after is State.STOPPING and before is not State.FAILED):
            failed = after is State.FAILED
            reason = (sandbox.reason or "").partition(":")[0]
            self.ends["failed" if failed else _ENDS.get(reason, "other")] += 1

    def _stage(self, text: str) -> None:
        match = _STAGE.fullmatch(text)
        if match is not None and (match[1] in self.stage_us or len(self.stage_us) < LABELS_MAX):
            self.stage_us[match[1]] += int(match[2])

    def answered(self, op: Op, answer: RunResult | SkerryError) -> None:
        """A command has its answer."""
        self.commands[_outcome(answer)] += 1
        if isinstance(answer, RunResult):
            self.command_s.add(max(0.0, answer.ended - op.started))
            self.output_bytes += answer.stdout_total + answer.stderr_total

    def served(
        self, method: str, route: str, status: int, seconds: float, *, bytes_in: int, bytes_out: int
    ) -> None:
        """A request was answered; `route` is a template, never a path."""
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out
        self.requests[method, route, status] += 1
        histogram = self.request_s.get(route)
        if histogram is None:
            histogram = self.request_s[route] = Histogram(REQUEST_BOUNDS_S)
        histogram.add(seconds)

    def lines(self) -> Iterator[str]:
        """Gives the lines of everything that is counted here."""
        yield from _family(
            "skerry_sandbox_transitions_total", "counter", "Changes of state of sandboxes.",
            (((("from", a), ("to", b)), n) for (a, b), n in self.changes.items()),
        )  # fmt: skip
        yield from _family("skerry_sandbox_ends_total", "counter", "Sandboxes that ended, by why.",
                           _by("reason", self.ends))  # fmt: skip
        yield from _family("skerry_create_failures_total", "counter", "Creates that failed.",
                           _by("code", self.create_failures))  # fmt: skip
        yield from _head("skerry_create_seconds", "histogram", "From the request to a live agent.")
        yield from self.create_s.lines("skerry_create_seconds")
        yield from _family(
            "skerry_create_stage_seconds_total", "counter", "Time of starts by stage, in all.",
            (((("stage", name),), us / 1e6) for name, us in self.stage_us.items()),
        )  # fmt: skip
        yield from _family("skerry_commands_total", "counter", "Commands with an answer.",
                           _by("outcome", self.commands))  # fmt: skip
        yield from _head("skerry_command_seconds", "histogram", "How long commands took.")
        yield from self.command_s.lines("skerry_command_seconds")
        yield from _family("skerry_command_output_bytes_total", "counter", "Written by commands.",
                           [((), self.output_bytes)])  # fmt: skip
        yield from _family(
            "skerry_http_requests_total", "counter", "Requests that were answered.",
            (((("method", m), ("route", r), ("status", str(s))), n)
             for (m, r, s), n in self.requests.items()),
        )  # fmt: skip
        yield from _head("skerry_http_request_seconds", "histogram", "To the end of the answer.")
        for route, histogram in self.request_s.items():
            yield from histogram.lines("skerry_http_request_seconds", (("route", route),))
        yield from _family("skerry_http_bytes_total", "counter", "Bodies in and out.",
                           [((("direction", "in"),), self.bytes_in),
                            ((("direction", "out"),), self.bytes_out)])  # fmt: skip


def page(
    metrics: Metrics,
    *,
    sandboxes: Iterable[Sandbox],
    refused: Mapping[str, int],
    gauges: Mapping[str, float],
    histograms: Mapping[str, Histogram],
    brakes: Iterable[Brake],
    calls: Iterable[str] = (),
    backends: Mapping[str, object],
    version: str,
) -> str:
    """Returns the whole page; a few milliseconds for thousands of sandboxes."""
    states = Counter(str(sandbox.state) for sandbox in sandboxes)
    out = [*_family("skerry_info", "gauge", "The node.", [((("version", version),), 1)])]
    out += _family("skerry_sandboxes_by_state", "gauge", "Sandboxes that are known.",
                   (((("state", str(state)),), states[state]) for state in State))  # fmt: skip
    limits = dict(sorted(refused.items())[:LABELS_MAX])
    out += _family("skerry_refusals_total", "counter", "Requests refused, by the limit.",
                   _by("limit", limits))  # fmt: skip
    out += metrics.lines()
    out += calls
    out += _brake_lines(list(brakes))
    for name, histogram in histograms.items():
        out += [*_head(f"skerry_{name}", "histogram", ""), *histogram.lines(f"skerry_{name}")]
    for name, value in {**gauges, **process_gauges()}.items():
        clean = f"skerry_{_NAME.sub('_', name)}"
        kind = "counter" if name.endswith("_total") else "gauge"
        out += _family(clean, kind, "", [((), value)])
    own: dict[str, list[tuple[Labels, float]]] = {}
    for backend, made in backends.items():
        if isinstance(made, Gauged):
            for name, value in made.gauges().items():
                own.setdefault(name, []).append(((("backend", backend),), value))
    for name, series in own.items():
        out += _family(f"skerry_backend_{_NAME.sub('_', name)}", "gauge", "", series)
    return "\n".join(out) + "\n"


def call_lines(
    calls: Mapping[tuple[str, str], int], call_s: Histogram, queued_s: Histogram
) -> Iterator[str]:
    """Gives the lines of function calls."""
    yield from _family(
        "skerry_function_calls_total", "counter", "Function calls that were answered.",
        (((("kind", kind), ("outcome", how)), n) for (kind, how), n in calls.items()),
    )  # fmt: skip
    yield from _head("skerry_function_call_seconds", "histogram", "From the request to the result.")
    yield from call_s.lines("skerry_function_call_seconds")
    yield from _head("skerry_function_queue_seconds", "histogram", "Of those that had to wait.")
    yield from queued_s.lines("skerry_function_queue_seconds")


def _brake_lines(brakes: list[Brake]) -> Iterator[str]:
    yield from _family(
        "skerry_brake_value", "gauge", "Percent of the last ten seconds; for loop_lag, seconds.",
        (((("brake", brake.name),), brake.value) for brake in brakes),
    )  # fmt: skip
    yield from _family("skerry_brake_held", "gauge", "Whether it stops creates now.",
                       (((("brake", brake.name),), int(brake.holds)) for brake in brakes))  # fmt: skip
    yield from _family("skerry_brake_engaged_total", "counter", "How often it began to.",
                       (((("brake", brake.name),), brake.times) for brake in brakes))  # fmt: skip


def process_gauges() -> dict[str, float]:
    """Returns what this process itself takes."""
    with open("/proc/self/statm", "rb") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    times = os.times()
    return {
        "process_resident_bytes": resident,
        "process_descriptors": len(os.listdir("/proc/self/fd")) - 1,
        "process_cpu_seconds_total": round(times.user + times.system, 3),
    }


def _outcome(answer: RunResult | SkerryError) -> str:
    if isinstance(answer, SkerryError):
        return f"error_{answer.code}"
    if answer.oom_killed:
        return "oom_killed"
    if answer.timed_out:
        return "timed_out"
    if answer.cancelled:
        return "cancelled"
    if answer.start_error is not None:
        return "not_started"
    if answer.signal is not None:
        return "signal"
    return "ok" if answer.ok else "nonzero"


def _by(label: str, counts: Mapping[str, int]) -> Series:
    return ((((label, name),), count) for name, count in counts.items())


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    if text:
        yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def _family(name: str, kind: str, text: str, series: Series) -> Iterator[str]:
    yield from _head(name, kind, text)
    for labels, value in series:
        yield f"{name}{_labels(labels)} {value!r}"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{pairs}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
