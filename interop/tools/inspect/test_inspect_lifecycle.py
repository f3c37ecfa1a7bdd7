"""What is left when an evaluation ends, is interrupted or killed, and when its sandbox is lost."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess

import pytest
from evaluations import PATIENCE_S, ended, evaluation, inspect, log_of, place, theirs, wait_for

from conftest import IMAGE

__all__ = ["place"]  # a fixture


@pytest.mark.parametrize(("count", "busy"), [(16, 16), (1, 0)])
def test_interrupt_leaves_no_sandbox(node, place, count, busy) -> None:
    process = evaluation(place, "-T", "line=sleep 1000", "--max-samples", "16")
    wait_for(node, count, busy, process)
    process.send_signal(signal.SIGINT)
    said = ended(process)
    assert "interrupted" in said
    assert theirs(node) == []
    assert log_of(place).status == "cancelled"


def test_sandboxes_say_whose_they_are_and_open_a_terminal(node, place) -> None:
    process = evaluation(place, "-T", "line=touch here; sleep 1000", "-T", "samples=1")
    wait_for(node, 1, 1, process)
    (info,) = theirs(node)
    labels = info.spec.labels
    assert labels["task"] == "work"
    assert labels["sample"] == "1"
    assert labels["epoch"] == "1"
    assert labels["sandbox"] == "default"
    assert labels["eval"]
    process.send_signal(signal.SIGINT)
    ended(process)


def test_killed_evaluation_is_cleaned_up_by_inspects_own_command(node, place) -> None:
    process = evaluation(place, "-T", "line=sleep 1000", "--max-samples", "4")
    wait_for(node, 4, 4, process)
    other = node.sandboxes.create(image=IMAGE)
    process.kill()
    ended(process)
    left = [info.id for info in theirs(node)]
    assert len(left) == 4
    one = inspect(place, "sandbox", "cleanup", "skerry", left[0])
    assert f"removed {left[0]}" in ended(one)
    assert len(theirs(node)) == 3
    rest = inspect(place, "sandbox", "cleanup", "skerry")
    assert "3 removed" in ended(rest)
    assert theirs(node) == []
    assert other.run("echo mine").text == "mine\n"
    other.destroy()


def test_sandboxes_that_are_to_stay_stay_and_can_be_entered(node, place) -> None:
    process = evaluation(
        place, "-T", "line=echo was here > note", "-T", "samples=2", "--no-sandbox-cleanup"
    )
    said = ended(process)
    assert process.returncode == 0, said
    left = [info.id for info in theirs(node)]
    assert len(left) == 2
    for one in left:
        assert re.search(rf"{one} work, sample [12], epoch 1", said), said
        assert node.sandboxes.get(one).run("cat note").text == "was here\n"
    assert "2 removed" in ended(inspect(place, "sandbox", "cleanup", "skerry"))


def test_lost_sandbox_is_an_error_of_the_sample_and_not_the_agents(node, place) -> None:
    """It is taken away in the middle of a command; the same again has a fresh one."""
    line = "until test -e /tmp/go; do sleep 0.1; done"
    words = ("-T", f"line={line}", "-T", "samples=1", "--retry-on-error", "1")
    process = evaluation(place, *words)
    wait_for(node, 1, 1, process)
    (first,) = theirs(node)
    node.sandboxes.get(first.id).destroy()
    wait_for(node, 1, 1, process)
    (second,) = theirs(node)
    assert second.id != first.id
    node.sandboxes.get(second.id).files.write("/tmp/go", "")
    said = ended(process)
    log = log_of(place)
    assert log.status == "success", said
    (sample,) = log.samples
    (error,) = sample.error_retries
    assert "deleted" in error.message
    assert sample.error is None
    assert theirs(node) == []


def test_lost_sandbox_that_is_not_tried_again_ends_the_sample_with_an_error(node, place) -> None:
    (place / "skerry.toml").write_text(f'image = "{IMAGE}"\nttl = 3\n')
    process = evaluation(place, "-T", "line=sleep 1000", "-T", "samples=1")
    said = ended(process)
    log = log_of(place)
    assert log.status == "error", said
    (sample,) = log.samples
    assert "SandboxFailed" in sample.error.traceback
    assert sample.messages[-1].role == "user", "no tool has told a model of it"


def test_node_that_is_away_ends_the_evaluation_before_it_begins(place) -> None:
    process = evaluation(place, "--sandbox", "skerry:away.toml")
    (place / "away.toml").write_text('url = "http://127.0.0.1:9"\n')
    said = ended(process)
    assert process.returncode != 0
    assert "cannot reach the node" in said
    assert "Traceback" not in said


def test_image_that_is_not_there_is_told_with_what_to_do(node, place) -> None:
    (place / "skerry.toml").write_text('image = "python:9.99"\n')
    process = evaluation(place)
    said = ended(process)
    assert process.returncode != 0
    assert "skerry image import base/python:9.99" in said
    assert "Traceback" not in said


def test_recipe_that_fails_is_told_with_its_line(node, place) -> None:
    (place / "skerry.toml").unlink()
    (place / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN echo why; false\n")
    process = evaluation(place)
    said = ended(process)
    assert process.returncode != 0
    assert "line 2" in said
    assert "why" in said
    assert "Traceback" not in said


def test_shell_line_of_a_connection_opens_a_terminal(node) -> None:
    import asyncio

    from inspect_ai.util._sandbox.registry import registry_find_sandboxenv

    async def line(kind, config) -> None:
        await kind.task_init("terminal", config)
        made = await kind.sample_init("terminal", config, {})
        try:
            connection = await made["default"].connection(user="nobody")
            assert connection.container == made["default"].sandbox.id
            assert await asyncio.to_thread(typed, connection.command) == 0
        finally:
            await kind.sample_cleanup("terminal", config, made, interrupted=False)
            with pytest.raises(ConnectionError):
                await made["default"].connection()
            await kind.task_cleanup("terminal", config, cleanup=True)

    kind = registry_find_sandboxenv("skerry")
    config = kind.config_deserialize({"image": IMAGE})
    asyncio.run(line(kind, config))


def typed(command: str) -> int:
    """Types into the terminal that a shell line opens, once there is a prompt; returns its status."""
    here, there = pty.openpty()
    process = subprocess.Popen(["sh", "-c", command], stdin=there, stdout=there, stderr=there)
    os.close(there)
    said, asked = b"", False
    try:
        while select.select([here], [], [], PATIENCE_S)[0]:
            data = os.read(here, 4096)
            said += data
            if not asked and said.rstrip().endswith(b"$"):
                os.write(here, b"test $(id -un) = nobody && exit 0; exit 1\n")
                asked = True
    except OSError:  # the terminal is closed
        pass
    os.close(here)
    try:
        return process.wait(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
        assert asked, said
