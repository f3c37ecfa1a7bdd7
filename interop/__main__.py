"""`python -m interop`: installs each harness in an environment of its own and runs it on Skerry."""

from __future__ import annotations

import argparse
import sys
import time

from interop import table
from interop.environments import NoEnvironment, environment, lock
from interop.node import IMAGE, node
from interop.run import Row, run
from interop.tools import ROOT, Tool, tools


def main() -> int:
    """Returns 0 if every scenario ran and each failure in it is explained."""
    parser = argparse.ArgumentParser(prog="python -m interop", description=__doc__)
    parser.add_argument("tool", nargs="*", help="folders of interop/tools; all without any")
    parser.add_argument("--fast", action="store_true", help="only what CI runs on every change")
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after that many")
    parser.add_argument(
        "--save", action="store_true", help="keep the figures and write README's table"
    )
    parser.add_argument("--no-census", action="store_true", help="others use this machine too")
    parser.add_argument("--lock", action="store_true", help="choose versions anew: lock.txt")
    asked = parser.parse_args()
    chosen = tools(tuple(asked.tool))
    if asked.lock:
        for tool in chosen:
            print(f"==> {tool.name}: choosing versions", flush=True)
            lock(tool)
        return 0
    until = time.monotonic() + asked.seconds
    rows, broken = [], []
    with node(census=not asked.no_census) as url:
        for tool in chosen:
            made, why = _scenarios(tool, url, until, fast=asked.fast)
            rows += made
            broken += why
    print(table.render(rows))
    if asked.save:
        table.save(rows)
        table.write(ROOT / "README.md")
    for row in rows:
        broken += [f"{row.tool}, {row.scenario}: {what}" for what in row.unexplained]
        if not row.passed:
            broken.append(f"{row.tool}, {row.scenario}: nothing passed")
    for line in broken:
        print(f"FAILED {line}", file=sys.stderr)
    return 1 if broken or not rows else 0


def _scenarios(tool: Tool, url: str, until: float, *, fast: bool) -> tuple[list[Row], list[str]]:
    wanted = [scenario for scenario in tool.scenario if scenario.fast or not fast]
    if not wanted:
        return [], []
    print(f"==> {tool.name}: its environment", flush=True)
    try:
        python = environment(tool)
    except NoEnvironment as why:
        return [], [f"{tool.name}: {why}"]
    rows = []
    for scenario in wanted:
        print(f"==> {tool.name}: {scenario.name}", flush=True)
        row = run(tool, scenario, python, url, image=IMAGE, compare=not fast, until=until)
        print(f"    {row.passed} passed, {row.failed} failed, {row.seconds:g} s", flush=True)
        rows.append(row)
    return rows, []


if __name__ == "__main__":
    sys.exit(main())
