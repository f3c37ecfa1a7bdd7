"""Jobs: many trials at once, an interrupt, and a node that fails."""

from __future__ import annotations

import os
import signal

import pytest

import skerry
from conftest import Job, ours, until
from interop.lost import other_node

TRIALS, AT_ONCE = 64, 16
SOLUTION = "/logs/agent/oracle.txt"  # stands in the command that runs it
SLOW = "#!/bin/bash\ntouch /app/began\nsleep 600\n"


def built(client) -> set[str]:
    """The images of Harbor's tasks; some are from runs before: the store is kept."""
    return {one.name for one in client.images.list() if one.name.startswith("workspace/harbor/")}


def test_64_trials_16_at_once_share_one_image(harbor, client) -> None:
    task = harbor.init("many", "--verifier-mode", "shared")
    (task / "environment" / "Dockerfile").write_text(
        f"FROM ubuntu:24.04\nRUN echo {os.getpid()} > /made-once\nWORKDIR /app\n"
    )
    before = built(client)
    job = harbor.run(task, "-a", "oracle", "-k", str(TRIALS), "-n", str(AT_ONCE))
    assert job.exceptions == [None] * TRIALS, job.said
    assert job.rewards == [1.0] * TRIALS
    said = job.log()
    assert said.count("[1/2] RUN echo") == TRIALS
    assert said.count("\ncached\n") == 2 * (TRIALS - 1)
    (made,) = built(client) - before
    client.images.remove(made)


def test_an_interrupt_leaves_no_sandbox(harbor, client) -> None:
    task = harbor.init("slow", "--verifier-mode", "shared")
    (task / "solution" / "solve.sh").write_text(SLOW)
    process = harbor.start(task, "-a", "oracle", "-k", "4", "-n", "4")
    try:
        until(lambda: [info.running_commands for info in ours(client)] == [1] * 4)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    finally:
        process.kill()
    assert ours(client) == []


def test_a_sandbox_that_is_kept_stands_still_with_what_it_has(harbor, client) -> None:
    task = harbor.init("kept", "--verifier-mode", "shared")
    assert harbor.run(task, "-a", "oracle", "--no-delete").rewards == [1.0]
    (kept,) = ours(client)
    assert kept.state == "paused"
    assert kept.spec.labels["task"] == "kept"
    assert kept.spec.labels["trial"].startswith("kept__")
    with client.sandboxes.get(kept.id) as sandbox:
        assert sandbox.files.read_text("/app/hello.txt") == "hello\n"


@pytest.fixture
def own_node():
    with other_node() as node:
        yield node


@pytest.mark.parametrize("mode", ["shared", "separate"])
def test_a_sandbox_that_is_lost_under_the_agent_is_no_reward(harbor, client, mode) -> None:
    """The agent's work is gone: in either mode nothing may be graded, though the node is well."""
    task = harbor.init("lost", "--verifier-mode", mode)
    (task / "solution" / "solve.sh").write_text(SLOW)
    process = harbor.start(task, "-a", "oracle")
    try:
        until(lambda: [info.running_commands for info in ours(client)] == [1])
        client.sandboxes.get(ours(client)[0].id).destroy()
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    job = Job(harbor.jobs, process.returncode, said)
    assert job.exceptions == ["RuntimeRequestError"], job.log()
    assert job.rewards == [None]
    assert job.trials[0]["reward_valid"] is False


@pytest.mark.own_node
def test_a_node_that_is_gone_is_no_reward_and_one_that_comes_back_loses_nothing(
    harbor, own_node, monkeypatch
) -> None:
    url = own_node.url
    monkeypatch.setenv("SKERRY_URL", url)
    task = harbor.init("killed", "--verifier-mode", "separate")
    (task / "solution" / "solve.sh").write_text(
        "#!/bin/bash\necho hello > /app/hello.txt\nuntil test -e /app/go; do sleep 0.1; done\n"
    )
    process = harbor.start(task, "-a", "oracle")
    own_node.wait_for(SOLUTION)
    with skerry.connect(url) as client:
        running = ours(client)[0].id
    own_node.kill()
    own_node.start()
    with skerry.connect(url) as client:
        client.sandboxes.get(running).files.write("/app/go", "")
    said, _ = process.communicate(timeout=120)
    job = Job(harbor.jobs, process.returncode, said)
    assert (job.exceptions, job.rewards) == ([None], [1.0]), job.log()

    (task / "solution" / "solve.sh").write_text(SLOW)
    process = harbor.start(task, "-a", "oracle")
    own_node.kill_under(SOLUTION)
    said, _ = process.communicate(timeout=240)
    job = Job(harbor.jobs, process.returncode, said)
    own_node.start()
    assert job.exceptions == ["RuntimeRequestError"], job.log()
    assert job.rewards == [None]
    with skerry.connect(url) as client:
        client.sandboxes.destroy_many([info.id for info in ours(client)])

    # The agent's time runs out while the node is away: it is back for the verifier.
    harbor.edit(task, "[agent]\ntimeout_sec = 600.0", "[agent]\ntimeout_sec = 20.0")
    process = harbor.start(task, "-a", "oracle")
    own_node.kill_under(SOLUTION)
    (log,) = harbor.jobs.rglob("trial.log")
    until(lambda: process.poll() is not None or "given up" in log.read_text())
    own_node.start()
    said, _ = process.communicate(timeout=240)
    job = Job(harbor.jobs, process.returncode, said)
    assert job.rewards == [None], job.log()
    with skerry.connect(url) as client:
        client.sandboxes.destroy_many([info.id for info in ours(client)])


def test_a_node_that_does_not_answer_is_told_before_any_trial(harbor, monkeypatch) -> None:
    monkeypatch.setenv("SKERRY_URL", "unix:///run/skerry-nobody/node.sock")
    job = harbor.run(harbor.init("nobody"), "-a", "oracle")
    assert job.status != 0
    assert "Skerry: " in job.said
    assert job.trials == []
