"""`python -m interop`: installs each harness in an environment of its own and runs it on Skerry."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from interop import table
from interop.environments import NoEnvironment, environment, lock
from interop.node import IMAGE, node
from interop.run import Row, objections, run
from interop.tools import ROOT, Tool, tools


def main() -> int:
    """Returns 0 if every scenario ran and each failure in it is explained."""
    parser = argparse.ArgumentParser(prog="python -m interop", description=__doc__)
    parser.add_argument("tool", nargs="*", help="folders of interop/tools; all without any")
    parser.add_argument("--fast", action="store_true", help="only what CI runs on every change")
    parser.add_argument(
        "--seconds", type=float, default=3600.0, help="for all scenarios; installing is not counted"
    )
    parser.add_argument(
        "--save", action="store_true", help="keep the figures and write README's table"
    )
    parser.add_argument("--no-census", action="store_true", help="others use this machine too")
    parser.add_argument("--lock", action="store_true", help="choose versions anew: lock.txt")
    asked = parser.parse_args()
    _be_interruptible()
    chosen = tools(tuple(asked.tool))
    if asked.lock:
        for tool in chosen:
            print(f"==> {tool.name}: choosing versions", flush=True)
            lock(tool)
        return 0
    if asked.fast:
        chosen = [tool for tool in chosen if any(scenario.fast for scenario in tool.scenario)]
    installed, broken = _installed(chosen)
    rows: list[Row] = []
    if installed:
        with node(census=not asked.no_census) as url:
            until = time.monotonic() + asked.seconds
            for tool, python in installed:
                made, why = _scenarios(tool, python, url, until, fast=asked.fast)
                rows += made
                broken += why
    print(table.render(rows))
    if asked.save:
        table.save(rows)
        table.write(ROOT / "README.md")
    for line in broken:
        print(f"FAILED {line}", file=sys.stderr)
    return 1 if broken or not rows else 0


def _be_interruptible() -> None:
    """However this is ended, the node and the tests end with it, in order.

    A shell starts a job behind `&` with SIGINT ignored, and all that the job starts would inherit that.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def _installed(chosen: list[Tool]) -> tuple[list[tuple[Tool, Path]], list[str]]:
    """Returns each tool's python, and why others cannot be installed here."""
    installed, broken = [], []
    for tool in chosen:
        print(f"==> {tool.name}: its environment", flush=True)
        try:
            installed.append((tool, environment(tool)))
        except NoEnvironment as why:
            broken.append(f"{tool.name}: {why}")
    return installed, broken


def _scenarios(
    tool: Tool, python: Path, url: str, until: float, *, fast: bool
) -> tuple[list[Row], list[str]]:
    """Returns what ran, and what speaks against it."""
    ran = []
    for scenario in tool.scenario:
        if fast and not scenario.fast:
            continue
        print(f"==> {tool.name}: {scenario.name}", flush=True)
        row, names = run(tool, scenario, python, url, image=IMAGE, compare=not fast, until=until)
        print(f"    {row.passed} passed, {row.failed} failed, {row.seconds:g} s", flush=True)
        ran.append((row, names))
    rows = [row for row, _ in ran]
    names = frozenset[str]().union(*(names for _, names in ran))
    return rows, objections(tool, rows, names)


if __name__ == "__main__":
    sys.exit(main())
