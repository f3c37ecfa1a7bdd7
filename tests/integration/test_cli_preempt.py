"""`skerry demo --preempt` on a real node: trainer and worker are killed for real; signals clean up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_cli_demo import Job
from test_cli_live import place

from skerry.testing import rootfs
from skerry.testing.census import Watch
from waiting import ended, soon

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(600)]

LEASE_S = 120.0
WORDS = ("demo", "--preempt", "--tasks", "xmltodict-0.14.2")


@pytest.fixture(scope="module")
def job() -> Iterator[Job]:
    reason = rootfs.container_reason()
    if reason:
        pytest.skip(reason)
    before = Watch()
    with place() as top:
        before.watch(own=(str(top),))
        yield Job(top)
        # The node waits for the lease of the demo that was killed to run out.
        assert before.left(LEASE_S) == []


def trainers(demo: int) -> list[int]:
    """Returns the trainers of a demo: its children that are ones."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes()
            stat = Path(f"/proc/{name}/stat").read_text()
        except OSError:
            continue
        if b"skerry.cli.preempt.trainer" in words and stat.rpartition(")")[2].split()[1] == str(
            demo
        ):
            found.append(int(name))
    return found


def begun(job: Job) -> tuple[subprocess.Popen[str], str, list[int]]:
    """Starts a demo; returns it, its job, and its trainer, once that has been killed and is back."""
    process = subprocess.Popen(
        [*job.argv, *WORDS, "-n", "20", "--kills", "20", *job.jobs],
        stderr=subprocess.PIPE, **job.keywords,
    )  # fmt: skip
    assert process.stderr is not None
    name = ""
    for line in process.stderr:
        if line.startswith("job "):
            name = line.split()[1].rstrip(":")
        if "killed the trainer (1 of 20)" in line:
            break
    assert process.poll() is None
    assert soon(lambda: trainers(process.pid) != [])
    return process, name, trainers(process.pid)


def listed(job: Job, *words: str) -> str:
    done = subprocess.run(
        [*job.argv, *words, "--json"], **job.keywords, capture_output=True, check=True
    )
    return done.stdout


def test_kills_of_trainer_and_worker_lose_and_double_nothing(job: Job) -> None:
    done = job(*WORDS, "--kills", "3", "--worker-kills", "1", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    killed, calm = said["preempted"], said["undisturbed"]
    assert said["identical"]
    assert (killed["trainer_kills"], killed["worker_kills"]) == (3, 1)
    assert (calm["trainer_kills"], calm["worker_kills"]) == (0, 0)
    for one in (killed, calm):
        assert (one["rollouts"], one["requests"]) == (4, 16)
        assert (one["lost"], one["double"], one["restarted"]) == (0, 0, 0)
    earned = [row[2:] for row in killed["table"]]
    assert earned == [
        ["fix", 1, "passed"],
        ["nothing", 0, "failed"],
        ["cheat", 0, "tampered"],
        ["wrong", 0, "failed"],
    ]


def test_a_demo_that_is_interrupted_leaves_no_trainer_and_no_job(job: Job) -> None:
    process, _, living = begun(job)
    assert process.stderr is not None
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 128 + signal.SIGINT
    assert "Traceback" not in rest
    assert all(ended(pid) for pid in living)
    assert (listed(job, "ls", "-a"), listed(job, "job", "ls")) == ("", "")


def test_a_demo_that_is_killed_leaves_no_trainer_and_its_job_can_be_removed(job: Job) -> None:
    process, name, living = begun(job)
    assert process.stderr is not None
    process.kill()
    process.wait()
    process.stderr.close()
    assert all(ended(pid) for pid in living)
    assert [json.loads(line)["id"] for line in listed(job, "job", "ls").splitlines()] == [name]
    listed(job, "job", "rm", name)
    assert (listed(job, "ls", "-a"), listed(job, "job", "ls")) == ("", "")
