"""Part of rollouts.py: kills of trainer and workers under a job, counted by an outside witness.

The job is that of `skerry demo --preempt`, larger. Four kinds of agents (the fix, nothing, a cheat, an
error) act on real tasks and ask a scripted model in four turns each; a trainer process answers. Kills
are SIGKILL, at random moments that are drawn anew in each run, one of the trainer in each twentieth of
the requests and one of a worker in each tenth, all before the last fifth of them.
"""

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import CHECKOUT, BenchmarkFailedError, RawLog
from product import RUN, STATE
from report import Result


@dataclass(frozen=True)
class Kills:
    """The job, and how many are killed of whom."""

    tasks: tuple[str, ...] = ("jsonpatch-1.32", "xmltodict-0.14.2")
    n: int = 50
    concurrency: int = 6
    trainers: int = 20
    workers: int = 10


FULL = Kills()
QUICK = Kills(n=6, concurrency=4, trainers=4, workers=2)


async def preempted(result: Result, client: Any, downloads: Any, raw: RawLog, quick: bool) -> None:
    """Run the job with kills and undisturbed, and add what the witness saw."""
    from skerry.cli.preempt.script import script_of
    from skerry.cli.preempt.trainer import Orders
    from skerry.cli.preempt.undergo import Course, undergo, unexpected
    from skerry.worker import load_tasks

    plan = QUICK if quick else FULL
    tasks = load_tasks([CHECKOUT / "examples" / "tasks" / name for name in plan.tasks])
    script = await script_of(tasks, downloads, plan.n, lambda _: None)
    seed = random.randrange(1 << 32)
    common = {"tasks": tasks, "script": script, "concurrency": plan.concurrency, "seed": seed}
    courses = {
        "killed": Course(trainer_kills=plan.trainers, worker_kills=plan.workers, **common),
        "calm": Course(**common),
    }
    outcomes = {}
    with tempfile.TemporaryDirectory(prefix="skerry-bench-", dir="/var/tmp") as folder:
        for name, course in courses.items():
            orders = Orders(job=name, witness="", script=script, state_dir=STATE, run_dir=RUN)
            outcome = outcomes[name] = await undergo(
                client, orders, course, jobs_dir=Path(folder), on_event=lambda _: None
            )
            raw.write(name, 0, [{"row": list(row)} for row in outcome.table])
            if wrong := [*unexpected(outcome.table), *outcome.deaths]:
                raise BenchmarkFailedError(f"{name}: {'; '.join(wrong[:10])}")
    _tell(result, plan, outcomes, seed)


def _tell(result: Result, plan: Kills, outcomes: dict[str, Any], seed: int) -> None:
    killed, calm = outcomes["killed"], outcomes["calm"]
    if (killed.trainer_kills, killed.worker_kills) != (plan.trainers, plan.workers):
        raise BenchmarkFailedError(f"kills: {killed.trainer_kills} and {killed.worker_kills}")
    if not calm.judgement.good:
        raise BenchmarkFailedError(f"without any kill: {calm.judgement}")
    seen, rollouts = killed.judgement, len(killed.table)
    requests = seen.requests + seen.lost
    result.add("preempt_lost", seen.lost, "requests", requests, "lower")
    result.add("preempt_double", seen.double, "turns", requests, "lower")
    result.add("preempt_restarted", seen.restarted, "agents", rollouts, "lower")
    pairs = zip(killed.table, calm.table, strict=True)
    differing = sum(one != other for one, other in pairs)
    result.add("preempt_verdicts_differing", differing, "rollouts", rollouts, "lower")
    result.add("preempt_s", killed.summary.seconds, "s", rollouts, "lower")
    result.add_floor("preempt_s", calm.summary.seconds, "the same job undisturbed, after it")
    result.notes += list(seen.reasons)
    result.notes.append(
        f"{killed.trainer_kills} kills of the trainer and {killed.worker_kills} of workers under "
        f"{rollouts} rollouts with {requests} requests, seed {seed}"
    )
