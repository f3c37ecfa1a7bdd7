"""Tasks as `harbor init` writes them, filled in, and the real `harbor` that runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

IMAGE = os.environ["INTEROP_IMAGE"]
SCAFFOLD_IMAGES = {"ubuntu:24.04": IMAGE, "python:3.12-slim": IMAGE}
QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HARBOR_TELEMETRY": "off"}
ENVIRONMENT = "skerry.compat.harbor:SkerryEnvironment"
SOLVE = "#!/bin/bash\necho hello > /app/hello.txt\n"
TEST = """#!/bin/bash
if pytest -p no:cacheprovider /tests/test_outputs.py -rA; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""
OUTPUTS = """from pathlib import Path


def test_outputs():
    assert Path("/app/hello.txt").read_text() == "hello\\n"
"""


class Job:
    """A finished `harbor run`."""

    def __init__(self, place: Path, status: int, said: str) -> None:
        self.place, self.status, self.said = place, status, said
        paths = sorted(place.glob("*/*/result.json"))
        self.trials = [json.loads(path.read_text()) for path in paths]

    @property
    def rewards(self) -> list[float | None]:
        return [
            trial["verifier_result"]["rewards"]["reward"] if trial["verifier_result"] else None
            for trial in self.trials
        ]

    @property
    def exceptions(self) -> list[str | None]:
        return [
            trial["exception_info"]["exception_type"] if trial["exception_info"] else None
            for trial in self.trials
        ]

    def log(self) -> str:
        return "\n".join(
            path.read_text()
            for name in ("trial.log", "exception.txt")
            for path in self.place.rglob(name)
        )


class Harbor:
    """The program, with tasks in a directory of its own."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._jobs = 0

    def init(self, name: str, *options: str, rewrite: bool = True) -> Path:
        """A task as the program writes it, filled in; `rewrite`: its verifier's image needs no more."""
        argv = ["harbor", "init", "--task", f"acme/{name}", "-o", str(self.place), *options]
        subprocess.run(argv, check=True, capture_output=True, env=os.environ | QUIET)
        task = self.place / name
        for step in task.glob("steps/*") if (task / "steps").exists() else [task]:
            (step / "instruction.md").write_text("Write hello into /app/hello.txt.\n")
            (step / "solution" / "solve.sh").write_text(SOLVE)
            (step / "tests" / "test.sh").write_text(TEST)
            (step / "tests" / "test_outputs.py").write_text(OUTPUTS)
        for verifier in task.rglob("tests/Dockerfile") if rewrite else ():
            verifier.write_text("FROM python:3.12-slim\nWORKDIR /app\nCOPY . /tests/\n")
        if (task / "tests" / "Dockerfile").exists():
            self.edit(task, "artifacts = []", 'artifacts = ["/app/hello.txt"]')
        return task

    @staticmethod
    def edit(task: Path, old: str, new: str) -> None:
        path = task / "task.toml"
        text = path.read_text()
        assert old in text, text
        path.write_text(text.replace(old, new, 1))

    def start(self, task: Path, *options: str, **kwargs: object) -> subprocess.Popen[str]:
        self._jobs += 1
        self.jobs = self.place / f"jobs-{self._jobs}"
        argv = ["harbor", "run", "-e", ENVIRONMENT, "-p", str(task), "-o", str(self.jobs), "-y"]
        for name, value in ({"images": SCAFFOLD_IMAGES} | kwargs).items():
            argv += ["--ek", f"{name}={json.dumps(value)}"]
        return subprocess.Popen(
            [*argv, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | QUIET,
            start_new_session=True,
        )

    def run(self, task: Path, *options: str, **kwargs: object) -> Job:
        """Runs a job to its end."""
        process = self.start(task, *options, **kwargs)
        try:
            said, _ = process.communicate(timeout=280)
        except BaseException:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(30)
            raise
        return Job(self.jobs, process.returncode, said)


@pytest.fixture
def harbor(tmp_path: Path) -> Harbor:
    return Harbor(tmp_path)


def ours(client) -> list:
    """The sandboxes of Harbor that live."""
    return [
        info
        for info in client.sandboxes.list(labels={"harness": "harbor"})
        if info.state not in ("stopped", "failed")
    ]


def until(true, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def client():
    """Of the node; no sandbox of Harbor's is left at the end."""
    import skerry

    with skerry.connect() as client:
        yield client
        assert ours(client) == []
