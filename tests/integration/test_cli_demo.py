"""The main job through the real command: real tasks, real sandboxes, rewards as they must be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_cli_live import place

from skerry.testing import rootfs
from skerry.testing.census import Watch

pytestmark = [pytest.mark.root, pytest.mark.slow]

SECONDS = 900.0
TASKS = ("--tasks", "semver-3.0.2", "--tasks", "xmltodict-0.14.2")


class Job:
    """Runs `skerry` with directories of its own."""

    def __init__(self, top: Path) -> None:
        self.argv = [sys.executable, "-m", "skerry.cli.main"]
        self.argv += ["--state", str(top / "s"), "--run", str(top / "r")]
        self.jobs = ("--jobs", str(top / "jobs"))
        env = {key: value for key, value in os.environ.items() if "SKERRY" not in key}
        self.keywords: dict[str, Any] = {"env": env, "stdin": subprocess.DEVNULL, "text": True}
        # A test run in the background of a script has SIGINT ignored, and its children would too.
        self.keywords["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.argv, *words, *self.jobs],
            **self.keywords, capture_output=True, timeout=SECONDS, check=False,
        )  # fmt: skip


@pytest.fixture(scope="module")
def job() -> Iterator[Job]:
    reason = rootfs.container_reason()
    if reason:
        pytest.skip(reason)
    before = Watch()
    with place() as top:
        before.watch(own=(str(top),))
        job = Job(top)
        done = job("demo", *TASKS)
        assert done.returncode == 0, done.stderr
        assert "no cheat paid" in done.stdout
        yield job
        # Its node ends by itself once the last command has gone, and leaves nothing.
        assert before.left() == []


def test_demo_pays_the_fix_and_nobody_else(job: Job) -> None:
    listed = job("trace", "ls", "--json")
    records = [json.loads(line) for line in listed.stdout.splitlines()]
    assert "the newest" in listed.stderr
    earned = {(item["policy"], item["reward"], item["verdict"]) for item in records}
    assert earned == {("gold", 1, "passed"), ("noop", 0, "failed"), ("cheat", 0, "tampered")}
    assert all(item["evidence"] for item in records if item["policy"] == "cheat")
    gold = next(item for item in records if item["policy"] == "gold")
    shown = job("trace", "show", gold["rollout"])
    assert "reward 1" in shown.stdout
    assert job("trace", "verify").returncode == 0


def test_a_demo_that_is_interrupted_leaves_no_sandbox_and_a_sound_record(job: Job) -> None:
    process = subprocess.Popen(
        [*job.argv, "demo", *TASKS, "-n", "20", *job.jobs], stderr=subprocess.PIPE, **job.keywords
    )
    assert process.stderr is not None
    while "[3/" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    process.stderr.close()
    assert process.wait(SECONDS) == 128 + signal.SIGINT
    assert "on record" in rest
    assert "Traceback" not in rest
    left = subprocess.run(
        [*job.argv, "ls", "-a", "--json"], **job.keywords, capture_output=True, check=False
    )
    assert (left.returncode, left.stdout) == (0, "")
    check = json.loads(job("trace", "verify", "--json").stdout)
    assert check["sound"]
    assert check["complete"]
    assert check["rollouts"] == 2 * 3 * 20
