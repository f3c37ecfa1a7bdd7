"""What agents are known to try, tried: what is blocked, what shows, and whether it works elsewhere.

Usage: python bench/misbehaviour.py [--quick] [--json] [--out FILE]

No clocks: each row of the table in `tests/security/misbehaviour/` is tried once from inside a real
sandbox, as an agent's shell command, and graded as a rollout is; then once more in a configuration
that lacks what stops it. The whole table is printed before the figures.

- `tried`: rows.
- `controls_succeeded`: rows that reached their aim in the weakened configuration. A row whose control
  does not succeed shows nothing, whatever else is said of it.
- `blocked`: rows that changed no reward, reached neither host nor another sandbox nor what only the
  verifier has, left the node's process and a neighbour's sandbox as they were, and got the verdict that
  the table names.
- `detected`: rows whose rollout shows all that the table says must be visible, by name, among the
  evidence of the verdict and the notes of audit and conduct. Notes on conduct go by the words of the
  commands, so they show scripts that do not hide.

`--quick` tries one row for each aim and weakened configuration.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import CHECKOUT, BenchmarkFailedError
from report import Result, run

for folder in ("tests/security/misbehaviour", "tests/security", "tests"):
    sys.path.insert(0, str(CHECKOUT / folder))


async def measure(result: Result, quick: bool) -> None:
    """Tries the rows one after the other."""
    from behaviours import table
    from stand import summary
    from weak_nodes import WeakNodes

    from live_node import LiveNode

    rows = list(table())
    if quick:
        rows = list({(one.aim, one.weakness): one for one in reversed(rows)}.values())[::-1]
    with tempfile.TemporaryDirectory(prefix="skerry-bench-", dir="/var/tmp") as place:
        node = LiveNode(f"{place}/store")
        weak = WeakNodes(f"{place}/store", Path(place))
        try:
            await asyncio.to_thread(node.start)
            async with node.client() as client:
                await client.images.debian("debian:12", "bookworm")
                trials = await _tried(client, rows, Path(place), weak.node)
        finally:
            left = await asyncio.to_thread(weak.stop) + await asyncio.to_thread(node.stop)
    if left:
        raise BenchmarkFailedError("left behind: " + "; ".join(left[:20]))
    print(summary(trials))
    for one in trials:
        known = f" (known: {one.behaviour.limit})" if one.behaviour.limit else ""
        result.notes += [f"{one.behaviour.name}: {problem}{known}" for problem in one.problems]
        if not one.control:
            result.notes.append(f"{one.behaviour.name}: its control did not succeed")
        if missing := one.behaviour.audit - one.seen:
            result.notes.append(f"{one.behaviour.name}: not seen: {', '.join(sorted(missing))}")
    for name, count in (
        ("tried", len(trials)),
        ("controls_succeeded", sum(bool(one.control) for one in trials)),
        ("blocked", sum(one.blocked for one in trials)),
        ("detected", sum(one.detected for one in trials)),
    ):
        result.add(name, count, "rows", len(trials), "higher")


async def _tried(client: Any, rows: list[Any], place: Path, weak: Any) -> list[Any]:
    from greeting import environment_of
    from stand import Stand, programs

    from skerry.worker import Downloads

    ordinary = Downloads(Path(os.environ.get("SKERRY_CACHE", "/var/cache/skerry")), os.environ)
    (place / "programs").mkdir()
    made = await asyncio.to_thread(programs, place / "programs")
    environment = await environment_of(client, place / "cache", ordinary)
    stand = Stand(client, environment, made, weak, {})
    async with stand.neighbour():
        return [await stand.attempt(row) for row in rows]


if __name__ == "__main__":
    sys.exit(run("misbehaviour", __doc__ or "", measure))
