"""What rollouts lose when trainer and workers are killed, and what grading in a fresh sandbox costs.

Usage: python bench/rollouts.py [--quick] [--json] [--out FILE]

First a job of 100 rollouts (`--quick`: 12) under which the trainer's process is killed 20 times and a
worker 10 times (`rollouts_preempt.py` says how), then the same undisturbed. An outside witness counts,
which agents and trainers tell of each step under names that they draw:

- `preempt_lost`: requests that no answer came back to; `preempt_double`: turns that were asked, sampled,
  recorded, or run more than once; `preempt_restarted`: agents that were begun again.
- `preempt_verdicts_differing`: rows of the result table that are not those of the undisturbed run. A row
  that is not as it must be (the fix 1; nothing, a cheat and an error 0) fails the benchmark, and so do
  fewer kills.
- `preempt_s`: from when the layers are there until the last verdict; its floor is the undisturbed job.
  What is in it: starts of trainers and workers, and rollouts that wait for them.

Then grading beside the same tests where the agent acted.
Tasks of `examples/tasks` with the real fix applied; their layers are made before any clock. Rounds take
turns between the two, one at a time. Both sandboxes exist before a clock starts: an agent acted there.

- `in_place_ms_*` (the floor): from just before the command with the task's own pytest line in a sandbox
  that has fix and hidden tests already, until its result is in the client's hands. That is what a
  grader pays that trusts the place.
- `verify_ms_*`: from just before the diff of the agent's sandbox is asked for until the verdict is
  there: audit, the submission as a tar, a fresh sandbox of the same digests with the hidden tests, the
  submission applied, the runner with its sentinels and fingerprint, and the sandbox's end.
  `collect_ms_p50` is the part until the agent's sandbox may go.
- `verify_overhead_ratio`: the median, over all pairs of one task and round, of `verify_ms` over
  `in_place_ms`; `verify_overhead_ms` is that of their differences. The two of a pair take turns in
  being first. The ratio depends on how long the tests take: the notes have it by task. It can be
  below 1, for the runner loads no plugins and writes no bytecode, and the place does.

A verdict that is not passed makes the benchmark fail, and so does a test that fails in place.
"""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import BenchmarkFailedError, RawLog, percentiles
from product import own_client
from report import Result, run
from rollouts_preempt import preempted

ROOT = Path(__file__).resolve().parents[1]
LABELS = {"role": "bench"}


@dataclass(frozen=True)
class Plan:
    """The tasks, and how many rounds."""

    tasks: tuple[str, ...]
    rounds: int


FULL = Plan(("jsonpatch-1.32", "humanize-4.12.3", "xmltodict-0.14.2"), 15)
QUICK = Plan(("jsonpatch-1.32", "xmltodict-0.14.2"), 5)


async def with_fix(sandbox: Any, environment: Any) -> None:
    """Apply the real fix in the workdir."""
    result = await sandbox.run(
        ["patch", "-p1", "--no-backup-if-mismatch"],
        cwd=environment.task.workdir,
        stdin=environment.patch,
    )
    if not result.ok:
        raise BenchmarkFailedError(f"the fix does not apply: {result.error_text[-200:]}")


async def in_place(client: Any, environment: Any) -> dict[str, float]:
    """Return the time of the tests where the agent acted."""
    from skerry.worker.lives import sandbox_of

    task = environment.task
    async with sandbox_of(
        client,
        task,
        image=environment.image,
        layers=environment.verify_layers,
        seconds=600,
        labels=LABELS,
    ) as sandbox:
        await with_fix(sandbox, environment)
        argv = [task.tests.interpreter, *task.tests.argv[1:]]
        start = time.perf_counter()
        result = await sandbox.run(argv, cwd=task.workdir, env=task.tests.env, timeout=300)
        seconds = time.perf_counter() - start
    if not result.ok:
        raise BenchmarkFailedError(f"{task.id}: tests fail in place: {result.text[-300:]}")
    return {"in_place_ms": seconds * 1000}


async def verified(client: Any, environment: Any) -> dict[str, float]:
    """Return the times of grading the same fix as rollouts are graded."""
    from skerry.spec.verdict import Outcome
    from skerry.worker.lives import sandbox_of
    from skerry.worker.verify import Guards, collect, grade

    guards = Guards()
    async with sandbox_of(
        client,
        environment.task,
        image=environment.image,
        layers=environment.layers,
        seconds=600,
        labels=LABELS,
    ) as sandbox:
        await with_fix(sandbox, environment)
        start = time.perf_counter()
        submission = await collect(sandbox, environment, guards)
        between = time.perf_counter()
        verdict = await grade(client, environment, submission, guards=guards, labels=LABELS)
        end = time.perf_counter()
    if verdict.outcome is not Outcome.PASSED:
        raise BenchmarkFailedError(f"{environment.task.id}: {verdict.outcome}: {verdict.detail}")
    return {"collect_ms": (between - start) * 1000, "verify_ms": (end - start) * 1000}


async def measure(result: Result, quick: bool) -> None:
    """Take all figures."""
    from skerry.worker import Downloads, load_tasks
    from skerry.worker.environment import Builder

    plan = QUICK if quick else FULL
    cache = Path(os.environ.get("SKERRY_CACHE", "/var/cache/skerry"))
    tasks = load_tasks([ROOT / "examples" / "tasks" / name for name in plan.tasks])
    taken: dict[str, dict[str, list[float]]] = {task.id: {} for task in tasks}
    with RawLog("rollouts") as raw:
        async with own_client() as client:
            builder = Builder(client.images, Downloads(cache, os.environ), lambda _: None)
            environments = await builder.build(tasks)
            await preempted(result, client, Downloads(cache, os.environ), raw, quick)
            for turn in range(-1, plan.rounds):
                for environment in environments:
                    parties = (in_place, verified) if turn % 2 else (verified, in_place)
                    sample: dict[str, float] = {}
                    for party in parties:
                        sample |= await party(client, environment)
                    if turn < 0:
                        continue  # mounts of the layers, the first slots
                    raw.write(environment.task.id, turn, [sample])
                    for name, value in sample.items():
                        taken[environment.task.id].setdefault(name, []).append(value)
    tell(result, taken)


def tell(result: Result, taken: dict[str, dict[str, list[float]]]) -> None:
    """Add the figures."""

    def everything(name: str) -> list[float]:
        return [value for samples in taken.values() for value in samples[name]]

    pairs = list(zip(everything("verify_ms"), everything("in_place_ms"), strict=True))
    count = len(pairs)
    ratio = percentiles([one / other for one, other in pairs]).p50
    result.add("verify_overhead_ratio", ratio, "ratio", count, "lower")
    result.add_floor("verify_overhead_ratio", 1.0, "the same tests where the agent acted, same run")
    difference = percentiles([one - other for one, other in pairs]).p50
    result.add("verify_overhead_ms", difference, "ms", count, "lower")
    for name in ("verify_ms", "in_place_ms"):
        result.add_percentiles(name, "", percentiles(everything(name)), "ms")
    result.add_floor("verify_ms_p50", percentiles(everything("in_place_ms")).p50, "in_place_ms_p50")
    result.add("collect_ms_p50", percentiles(everything("collect_ms")).p50, "ms", count, "lower")
    for task, samples in taken.items():
        one, other = (percentiles(samples[name]).p50 for name in ("verify_ms", "in_place_ms"))
        by_pair = zip(samples["verify_ms"], samples["in_place_ms"], strict=True)
        own = percentiles([first / second for first, second in by_pair]).p50
        result.notes.append(f"{task}: ratio {own:.2f}, medians {one:.0f} and {other:.0f} ms")


if __name__ == "__main__":
    sys.exit(run("rollouts", __doc__ or "", measure))
