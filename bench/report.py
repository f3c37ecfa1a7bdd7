"""What the benchmarks say: the summary object, its file, the leak census and the README's table.

Usage: python bench/report.py README.md      rewrites the table from bench/results/*.json
"""

import argparse
import asyncio
import json
import math
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import uvloop

from harness import RESULTS, BenchmarkFailedError, Percentiles, machine_facts
from product import RUN, STATE
from skerry.testing.census import Watch

BEGIN = "<!-- bench:begin -->"
END = "<!-- bench:end -->"
CENSUS_PATIENCE_SECONDS = 30.0


@dataclass(frozen=True)
class Metric:
    """One figure; `n` is the number of samples behind it."""

    value: float
    unit: str
    n: int
    better: Literal["higher", "lower"]


@dataclass
class Result:
    """The summary object of one benchmark, in the shape that `--json` prints.

    `floors` and `peers` use the names of `metrics`, so that each stands beside its figure.
    """

    name: str
    version: int = 1
    machine: dict[str, Any] = field(default_factory=machine_facts)
    metrics: dict[str, Metric] = field(default_factory=dict)
    floors: dict[str, dict[str, Any]] = field(default_factory=dict)
    peers: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(
        self, name: str, value: float, unit: str, n: int, better: Literal["higher", "lower"]
    ) -> None:
        """Add one figure."""
        self.metrics[name] = Metric(_rounded(value), unit, n, better)

    def add_percentiles(self, stem: str, suffix: str, figures: Percentiles, unit: str) -> None:
        """Add `{stem}_p50{suffix}` and so on to max; for these lower is better."""
        for name in ("p50", "p90", "p99", "max"):
            self.add(f"{stem}_{name}{suffix}", getattr(figures, name), unit, figures.n, "lower")

    def add_floor(self, name: str, value: float, how: str) -> None:
        """Set the floor of one metric beside it, with how it was measured."""
        self.floors[name] = {"value": _rounded(value), "how": how}

    def add_peer(self, peer: str, name: str, value: float) -> None:
        """Set what a peer reached in one metric beside it."""
        self.peers.setdefault(peer, {})[name] = _rounded(value)

    def to_json(self) -> str:
        """Return the object on one line."""
        return json.dumps(asdict(self))


def _rounded(value: float) -> float:
    """Four significant digits: more would be noise written down."""
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, max(0, 3 - math.floor(math.log10(abs(value)))))


# ---- The leak census ---------------------------------------------------------------------------


@asynccontextmanager
async def census() -> AsyncIterator[None]:
    """Fail the benchmark if the machine holds more after the block than before it.

    Daemons may take a moment to end, so a difference counts only if it is still there after
    `CENSUS_PATIENCE_SECONDS`. An error of the block goes first: its leaks are its consequence.
    """
    watch = Watch()
    watch.watch(places=(STATE, RUN))
    yield
    leaks = await asyncio.to_thread(watch.left, CENSUS_PATIENCE_SECONDS)
    if leaks:
        more = f"; and {len(leaks) - 20} more" if len(leaks) > 20 else ""
        raise BenchmarkFailedError("left behind: " + "; ".join(leaks[:20]) + more)


# ---- The program around a benchmark ------------------------------------------------------------


def run(name: str, doc: str, measure: Callable[[Result, bool], Awaitable[None]]) -> int:
    """Be the `main` of `bench/NAME.py`: options, census, output. Returns the exit status.

    0 for figures that may be used, 1 if a rule was broken (then no figure is written), 2 if the
    product is not installed here.
    """
    options = _options(name, doc)
    result = Result(name)
    if options.quick:
        result.notes.append("quick: fewer repeats and wider error than a full run")
    try:
        uvloop.run(_measured(result, options.quick, measure))
    except ModuleNotFoundError as error:
        print(f"bench {name}: {error}; install the checkout first", file=sys.stderr)
        return 2
    except BenchmarkFailedError as error:
        print(f"bench {name} failed: {error}", file=sys.stderr)
        return 1
    out = options.out or (None if options.quick else RESULTS / f"{name}.json")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(asdict(result), indent=1) + "\n", encoding="utf-8")
    print(result.to_json() if options.json else _as_text(result))
    return 0


def _options(name: str, doc: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"bench {name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="about 30 seconds, wider error")
    parser.add_argument("--json", action="store_true", help="last line is one JSON object")
    parser.add_argument("--out", type=Path, help="file for the summary")
    return parser.parse_args()


async def _measured(
    result: Result, quick: bool, measure: Callable[[Result, bool], Awaitable[None]]
) -> None:
    async with census():
        await measure(result, quick)


def _as_text(result: Result) -> str:
    lines = [f"{result.name} on {machine_line(result.machine)}, load {result.machine['load']}"]
    for name, metric in result.metrics.items():
        beside = _beside(asdict(result), name)
        lines.append(f"  {name:<28} {metric.value:>12g} {metric.unit:<5} n={metric.n:<7} {beside}")
    return "\n".join(lines + [f"  note: {note}" for note in result.notes])


def _beside(result: dict[str, Any], name: str) -> str:
    parts = []
    if name in result["floors"]:
        parts.append(f"floor {result['floors'][name]['value']:g}")
    parts += [f"{peer} {row[name]:g}" for peer, row in result["peers"].items() if name in row]
    return ", ".join(parts)


# ---- The README --------------------------------------------------------------------------------


def machine_line(machine: dict[str, Any]) -> str:
    return (
        f"{machine['cpus']} CPUs, {machine['memory_gib']} GiB, kernel {machine['kernel']}, "
        f"cgroup {machine['cgroup']}"
    )


def table(results: list[dict[str, Any]]) -> str:
    """Draw the Markdown table: every metric but p90 and max, wins and losses alike."""
    machines = sorted({machine_line(result["machine"]) for result in results})
    lines = [f"Measured on {machine}." for machine in machines]
    lines += [
        "",
        "| benchmark | metric | Skerry | unit | in the same run |",
        "|---|---|--:|---|---|",
    ]
    for result in results:
        for name, metric in result["metrics"].items():
            if "_p90" in name or "_max" in name:
                continue
            row = [result["name"], name, f"{metric['value']:g}", metric["unit"]]
            lines.append("| " + " | ".join([*row, _beside(result, name)]) + " |")
    return "\n".join(lines)


def write_readme_table(readme: Path, results: Path = RESULTS) -> None:
    """Replace what stands between the two markers of `readme`; the rest stays as it is."""
    before, begin, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BenchmarkFailedError(f"{readme} lacks the markers {BEGIN} and {END}")
    paths = sorted(results.glob("*.json"))
    loaded = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    temporary = readme.with_name(readme.name + ".new")
    temporary.write_text(f"{before}{BEGIN}\n{table(loaded)}\n{END}{after}", encoding="utf-8")
    temporary.replace(readme)


if __name__ == "__main__":
    write_readme_table(Path(sys.argv[1]))
