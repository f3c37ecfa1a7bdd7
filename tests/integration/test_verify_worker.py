"""What a task says of its verification and of its stages, at a worker of a real node."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from skerry.sdk.client import AsyncClient
from skerry.spec.grading import ScoreProgram
from skerry.spec.stages import AgentStage, Setup, Stages
from skerry.worker import load_tasks

pytestmark = pytest.mark.root

EXAMPLES = Path(__file__).parents[2] / "examples" / "tasks"
SCORE = """
import json, os, sys
passed = [one == "passed" for one in json.load(sys.stdin)["outcomes"].values()]
os.write(int(os.environ["SKERRY_SCORE_FD"]), b"7.5" if all(passed) else b"0")
"""


async def test_repeats_a_score_and_stages_hold_at_a_worker(node_client: AsyncClient) -> None:
    spec = load_tasks([EXAMPLES / "xmltodict-0.14.2"])[0]
    tests = msgspec.structs.replace(
        spec.tests, repeats=3, passes=2, score=ScoreProgram(program=SCORE, high=10.0)
    )
    stages = Stages(
        setup=Setup(("useradd agent && chown -R agent /testbed",)),
        agent=AgentStage("agent", readonly=spec.test_paths, hidden=("/usr/share/doc",)),
    )
    spec = msgspec.structs.replace(spec, tests=tests, stages=stages).check()
    job = await node_client.jobs.create("verifying", lease=600)
    try:
        await job.submit([spec], policy="gold")
        (record,) = [one async for one in job.results()]
    finally:
        await job.end()
    assert (record.verdict, record.reward, record.score) == ("passed", 0.75, 7.5), record.detail
    assert record.attempts == ()
    assert record.repeats is not None
    assert (len(record.repeats.runs), record.repeats.passed, record.repeats.needed) == (3, 3, 2)
    assert await node_client.sandboxes.list() == []
