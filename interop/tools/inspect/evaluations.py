"""Evaluations as a user starts them: by `inspect eval`, in a folder with a task and a sandbox file."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from inspect_ai.log import list_eval_logs, read_eval_log

from conftest import IMAGE

PATIENCE_S = 120.0
TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, accuracy, scorer
from inspect_ai.solver import solver
from inspect_ai.util import sandbox


@scorer(metrics=[accuracy()])
def fine():
    async def score(state, target):
        return Score(value=True)

    return score


@solver
def runs(line):
    async def solve(state, generate):
        result = await sandbox().exec(["sh", "-c", line])
        assert result.success, result.stderr
        return state

    return solve


@task
def work(line="true", samples=16):
    dataset = [Sample(input="go") for _ in range(samples)]
    return Task(dataset=dataset, solver=runs(line), scorer=fine(), sandbox="skerry")
"""


@pytest.fixture
def place(tmp_path) -> Path:
    """A folder with a task and, beside it, what its sandboxes are."""
    (tmp_path / "work.py").write_text(TASK)
    (tmp_path / "skerry.toml").write_text(f'image = "{IMAGE}"\nmemory = "128MiB"\n')
    return tmp_path


def inspect(place: Path, *words: str, **options) -> subprocess.Popen:
    """Begins `inspect ...` there, as a user would."""
    return subprocess.Popen(
        [str(Path(sys.executable).with_name("inspect")), *words],
        cwd=place,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"INSPECT_LOG_DIR": str(place / "logs"), "INSPECT_DISPLAY": "plain"},
        **options,
    )


def evaluation(place: Path, *words: str) -> subprocess.Popen:
    return inspect(place, "eval", "work.py", "--model", "mockllm/model", *words)


def ended(process: subprocess.Popen) -> str:
    said, _ = process.communicate(timeout=PATIENCE_S)
    return " ".join(said.split())  # however it was wrapped


def theirs(node) -> list:
    return node.sandboxes.list(labels={"harness": "inspect"})


def wait_for(node, count: int, busy: int, process: subprocess.Popen) -> None:
    """Returns when there are as many sandboxes, and commands in as many."""
    until = time.monotonic() + PATIENCE_S
    while True:
        found = theirs(node)
        if len(found) >= count and sum(info.running_commands > 0 for info in found) >= busy:
            return
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, found
        time.sleep(0.05)


def log_of(place: Path):
    (info,) = list_eval_logs(str(place / "logs"))
    return read_eval_log(info)
