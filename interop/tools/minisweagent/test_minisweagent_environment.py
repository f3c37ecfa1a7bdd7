"""The batch runner, and the environment by itself: faults, limits, options, cleanup."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

import pytest
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.exceptions import Submitted
from minisweagent.models.test_models import DeterministicModel
from scripted_turns import ENVIRONMENT, configuration, sandboxed, turns

import skerry
from interop.looking import interrupted, sandboxes, until
from skerry.compat.minisweagent import SkerryEnvironment

NAME = "skerry.compat.minisweagent.SkerryEnvironment"
TEMPLATES = {"system_template": "You act.", "instance_template": "{{task}} on {{system}}"}


@pytest.fixture(scope="module")
def environment():
    made = get_environment(sandboxed())
    yield made
    made.cleanup()


def agent(environment, *commands):
    model = DeterministicModel(outputs=turns(*commands), cost_per_call=0.0)
    return DefaultAgent(model, environment, **TEMPLATES)


def test_swebench_in_a_batch_with_one_image_and_a_startup_command(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    instances = [
        {
            "instance_id": f"owner__repo-{number}",
            "problem_statement": f"Mend number {number}.",
            "base_commit": f"commit{number}",
        }
        for number in range(8)
    ]
    (data / "test.jsonl").write_text("".join(json.dumps(one) + "\n" for one in instances))
    config = configuration(
        tmp_path,
        "git branch --show-current; ls",
        "echo new >> mended && git add mended && git diff --cached > /tmp/patch",
        "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; git branch --show-current; cat /tmp/patch",
        environment=sandboxed(cwd="/srv", cpu=0.5, labels={"job": "batch"}),
        run={"env_startup_command": "git init -q -b {{base_commit}} && touch {{instance_id}}"},
    )
    argv = ["mini-extra", "swebench", "--subset", str(data), "--split", "test", "-w", "4"]
    done = subprocess.run(
        [*argv, "-c", "swebench.yaml", "-c", str(config), "-o", str(tmp_path / "out")],
        env=os.environ | ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    predictions = json.loads((tmp_path / "out" / "preds.json").read_text())
    assert len(predictions) == 8, done.stdout
    for number in range(8):
        name = f"owner__repo-{number}"
        patch = predictions[name]["model_patch"]
        assert patch.startswith(f"commit{number}\n"), patch
        assert patch.count("+new") == 1  # nobody else has been here
        trajectory = json.loads((tmp_path / "out" / name / f"{name}.traj.json").read_text())
        assert trajectory["info"]["exit_status"] == "Submitted"
        said = [message["content"] for message in trajectory["messages"]]
        assert f"commit{number}\n{name}\n" in said[3]
    assert not sandboxes(job="batch")


def test_output_is_one_text_and_ends_are_told_as_the_harness_tells_them(environment):
    run = environment.execute
    assert run({"command": "echo a; echo b >&2; echo c; exit 3"}) == {
        "output": "a\nb\nc\n",
        "returncode": 3,
        "exception_info": "",
    }
    late = run({"command": "echo early; sleep 60"}, timeout=1)
    assert (late["output"], late["returncode"]) == ("early\n", -1)
    assert "timed out after 1 seconds" in late["exception_info"]
    assert late["extra"]["exception_type"] == "TimeoutExpired"
    nowhere = run({"command": "pwd"}, cwd="/no/such")
    assert (nowhere["returncode"], "/no/such" in nowhere["exception_info"]) == (-1, True)
    assert run({"command": "a\0b"})["returncode"] == -1
    assert run({"command": "pwd"}, cwd="/usr")["output"] == "/usr\n"
    assert run({"command": "kill -9 $$"})["returncode"] == 137
    assert run({"command": "printf '\\377'"})["output"] == "�"
    assert run({})["returncode"] == 0
    # What one command leaves running, the next one finds.
    run({"command": "nohup sleep 600 >/dev/null 2>&1 & echo $! >/tmp/pid"})
    assert run({"command": "kill $(cat /tmp/pid)"})["returncode"] == 0


@pytest.mark.parametrize(
    ("command", "submission"),
    [
        ("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo it", "it\n"),
        ("echo; echo ' COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT '", ""),
        ("echo first; echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT", None),
        ("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; exit 1", None),
        ("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; kill $$", None),
    ],
)
def test_what_submits_is_what_submits_locally(environment, command, submission):
    for place in (environment, get_environment({"environment_class": "local"})):
        if submission is None:
            place.execute({"command": command})
            continue
        with pytest.raises(Submitted) as raised:
            place.execute({"command": command})
        assert raised.value.messages[0]["extra"]["submission"] == submission


def test_an_interpreter_and_variables(monkeypatch):
    monkeypatch.setenv("INTEROP_SECRET", "s3cret")
    options = {
        "interpreter": ["python3", "-c"],
        "env": {"A": "1"},
        "forward_env": ["INTEROP_SECRET"],
    }
    made = get_environment(sandboxed(**options))
    try:
        code = "import os; print(os.environ['A'], os.environ['INTEROP_SECRET'])"
        assert made.execute({"command": code})["output"] == "1 s3cret\n"
        assert "s3cret" not in json.dumps(made.serialize())
    finally:
        made.cleanup()


def test_options_are_skerrys_and_nothing_is_ignored():
    before = sandboxes(harness="mini-swe-agent")
    for options, why in (
        ({"imgae": "x"}, "no option 'imgae'; there are .*cwd, .*interpreter, .*url"),
        ({"run_args": ["--privileged"]}, "no option 'run_args'"),
        ({"network": ["10.0.0.1"]}, "network"),
        ({"memory": "lots"}, "memory"),
    ):
        with pytest.raises(skerry.InvalidRequest, match=why):
            get_environment(sandboxed(**options))
    assert sandboxes(harness="mini-swe-agent") == before
    made = get_environment(sandboxed(memory="300MiB", pids=50, token="t0ken", labels={"task": "a"}))
    try:
        spec = made.sandbox.info().spec
        assert (spec.memory_bytes, spec.pids) == (300 << 20, 50)
        assert spec.labels == {"harness": "mini-swe-agent", "task": "a"}
        said = json.dumps(made.serialize())
        assert "t0ken" not in said + repr(made.config)
        assert NAME in said
        assert made.sandbox.id in said
    finally:
        made.cleanup()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"cwd": "/no/such"}, "/no/such"),
        ({"cwd": "/etc/passwd"}, "/etc/passwd"),
        ({"interpreter": ["no-such-shell", "-c"]}, "no-such-shell"),
        ({"user": "nobody-such"}, "nobody-such"),
    ],
)
def test_what_no_command_could_run_with_is_told_before_a_model_sees_it(wrong, why):
    label = secrets.token_hex(8)
    with pytest.raises(skerry.InvalidRequest, match=f"no command can run in the sandbox: .*{why}"):
        get_environment(sandboxed(labels={"job": label}, **wrong))
    assert not sandboxes(job=label)


def test_faults_of_the_platform_end_the_run_under_their_name_and_submit_nothing():
    with pytest.raises(skerry.Unavailable):
        get_environment(sandboxed(url="unix:///run/no-such-node.sock"))
    made = get_environment(sandboxed())
    made.get_template_vars()
    made.sandbox.destroy()
    acting = agent(made, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    with pytest.raises(skerry.SkerryError):
        acting.run("go")
    info = acting.serialize()["info"]
    assert info["exit_status"] in ("NotFound", "SandboxFailed")
    assert info["submission"] == ""
    made.cleanup()
    made.cleanup()


def test_long_output_is_cut_in_the_middle_and_says_so():
    made = get_environment(sandboxed(output_limit=1000))
    try:
        said = made.execute({"command": "seq 1 100000"})["output"]
    finally:
        made.cleanup()
    assert said.startswith("1\n2\n")
    assert said.endswith("100000\n")
    assert "bytes were cut out here" in said


def test_a_command_that_eats_the_memory_is_told_so():
    made = get_environment(sandboxed(memory="200MiB"))
    try:
        said = made.execute({"command": "python3 -c 'x = b\"x\" * 10**9'"})
    finally:
        made.cleanup()
    assert said["returncode"] == 137
    assert "out of memory" in said["output"]


def test_an_environment_that_nobody_holds_any_more_is_gone():
    label = secrets.token_hex(8)
    made = get_environment(sandboxed(labels={"job": label}))
    assert isinstance(made, SkerryEnvironment)
    assert sandboxes(job=label)
    del made
    until(lambda: not sandboxes(job=label), "the sandbox is gone")


@pytest.mark.parametrize("how", ["interrupt", "exit"])
def test_nothing_is_left_when_the_program_ends(how):
    label = secrets.token_hex(8)
    script = Path(__file__).with_name("left_behind.py")
    mark = Path(f"/var/tmp/skerry-interop-{label}")
    if how == "interrupt":
        assert interrupted(script, label, how, ready=mark.exists) != 0
        mark.unlink()
    else:
        started = time.monotonic()
        subprocess.run([sys.executable, str(script), label, how], check=True, timeout=60)
        assert time.monotonic() - started < 60
    until(lambda: not sandboxes(job=label), "the sandbox is gone")
