"""examples/training_loop as it is written, on a real node: it learns to fix, and survives its kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skerry.errors import NotFound
from skerry.sdk.client import AsyncClient
from skerry.spec.worker import RolloutState
from waiting import until

pytestmark = [pytest.mark.root, pytest.mark.slow]

EXAMPLE = Path(__file__).parents[2] / "examples" / "training_loop" / "train.py"
STEPS, ROLLOUTS, SEED = 3, 6, 3
MUST_EARN = {
    "fix": (1.0, "passed"),
    "nothing": (0.0, "failed"),
    "cheat": (0.0, "tampered"),
    "wrong": (0.0, "failed"),
}
WITHIN_S = 240.0


def started(url: str, state: Path) -> subprocess.Popen[str]:
    sizes = ("--steps", str(STEPS), "--rollouts", str(ROLLOUTS), "--seed", str(SEED))
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(EXAMPLE), "--state", str(state), *sizes],
        env={**os.environ, "SKERRY_URL": url},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def learned(process: subprocess.Popen[str], state: Path) -> dict[str, Any]:
    said, _ = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 0, said
    assert "step 3: mean reward" in said
    return json.loads(state.read_text())


def chance_of_the_fix(state: dict[str, Any]) -> float:
    sys.path.insert(0, str(EXAMPLE.parent))
    try:
        import train
    finally:
        sys.path.remove(str(EXAMPLE.parent))
    return train.softmax(state["logits"])[train.NAMES.index("fix")]


async def test_the_policy_learns_to_fix_and_a_kill_changes_no_weight(live_node, tmp_path) -> None:
    calm = learned(started(live_node.url, tmp_path / "calm.json"), tmp_path / "calm.json")
    assert [len(step) for step in calm["history"]] == [ROLLOUTS] * STEPS
    rows = [row for step in calm["history"] for row in step]
    assert {action for action, _, _ in rows} >= {"fix", "cheat"}
    assert [(reward, verdict) for _, reward, verdict in rows] == [
        MUST_EARN[action] for action, _, _ in rows
    ]
    assert chance_of_the_fix(calm) > 0.5  # from 0.25

    path = tmp_path / "killed.json"
    process = started(live_node.url, path)
    for step in range(STEPS):  # once in the middle of each step
        async with live_node.client() as client:
            await _some_have_ended(client, path, step)
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
        process = started(live_node.url, path)
    killed = learned(process, path)
    for field in ("logits", "history", "first", "second"):
        assert killed[field] == calm[field]
    async with live_node.client() as client:
        ours = (calm["run"], killed["run"])
        assert [
            one.id for one in await client.jobs.list(ended=True) if one.id.startswith(ours)
        ] == []
        living = [one.spec.job or "" for one in await client.sandboxes.list()]
        assert [job for job in living if job.startswith(ours)] == []


async def _some_have_ended(client: AsyncClient, path: Path, step: int) -> None:
    """Returns when two rollouts of the step have ended and others go on, or else the step is over."""

    async def some() -> bool:
        state = json.loads(path.read_text()) if path.exists() else {"step": -1}
        if state["step"] != step:
            return state["step"] > step
        try:
            job = await client.jobs.get(f"{state['run']}-{step}")
            states = [one.state async for one in job.rollouts()]
        except NotFound:
            return False
        return states.count(RolloutState.ENDED) >= 2

    await until(some, WITHIN_S, pause_s=0.05)
