"""Inspect's tools in one sample, and what a task may ask of its sandbox."""

from __future__ import annotations

import re
from pathlib import Path

import anyio
import pytest
from inspect_ai import Task
from inspect_ai import eval as evaluate_all
from inspect_ai.dataset import Sample
from inspect_ai.solver import generate, solver, use_tools
from inspect_ai.tool import bash, bash_session, python, text_editor
from inspect_ai.util import OutputLimitExceededError, sandbox

from conftest import IMAGE, errors, says, told

pytestmark = pytest.mark.usefixtures("node")


def evaluate(place, *, solve, model=None, config=f'image = "{IMAGE}"\n', score=None, **options):
    """Runs one sample and returns its log; `config` is what stands in the file, or the path of one."""
    if not config.startswith("/"):
        (place / "skerry.toml").write_text(config)
        config = str(place / "skerry.toml")
    task = Task(
        dataset=[Sample(input="go", **options.pop("sample", {}))],
        solver=solve,
        scorer=score,
        sandbox=("skerry", config),
    )
    (log,) = evaluate_all(
        task,
        model=model or says(),
        log_dir=str(place),
        display="none",
        score=bool(score),
        **options,
    )
    return log


def test_bash_python_editor_and_a_session_that_keeps_its_state(tmp_path, agent_image) -> None:
    calls = [
        ("bash", {"command": "whoami; pwd; echo $HOME"}),
        ("python", {"code": "import os; print(os.getcwd())"}),
        ("text_editor", {"command": "create", "path": "a.py", "file_text": "print('hi')\n"}),
        ("bash_session", {"action": "type_submit", "input": "cd /usr; WORD=kept"}),
        ("bash_session", {"action": "type_submit", "input": "echo $WORD in $(pwd)"}),
        ("bash_session", {"action": "restart"}),
        ("bash_session", {"action": "type_submit", "input": "echo :$WORD:"}),
    ]
    calls[2][1]["path"] = "/home/agent/a.py"
    edit = {"command": "str_replace", "path": "/home/agent/a.py", "old_str": "hi", "new_str": "bye"}
    calls.append(("text_editor", edit))
    calls.append(("bash", {"command": "python3 /home/agent/a.py; ps -e -o comm= | sort -u"}))
    log = evaluate(
        tmp_path,
        config=str(agent_image / "Dockerfile"),
        solve=[
            use_tools(bash(timeout=120), python(timeout=120), text_editor(), bash_session()),
            generate(),
        ],
        model=says(*calls),
    )
    assert log.status == "success", log.error
    (sample,) = log.samples
    assert errors(sample) == []
    said = told(sample)
    assert said[0] == "agent\n/home/agent\n/home/agent\n"
    assert said[1] == "/home/agent\n"
    assert "kept in /usr" in said[4]
    assert "::" in said[6]
    assert said[8].startswith("bye\n")
    assert "inspect-sandbox" in said[8], "the tools' own server lives on between calls"


def test_what_an_agent_does_wrong_is_told_to_it_and_the_sample_goes_on(tmp_path) -> None:
    @solver
    def wrong():
        async def solve(state, _generate):
            return state

        return solve

    calls = [
        ("bash", {"command": "sleep 1000"}),
        ("bash", {"command": "no-such-program; exit 3"}),
        ("bash", {"command": "head -c 20000000 /dev/zero | tr '\\0' x"}),
        ("bash", {"command": "echo before\0after"}),
        ("bash", {"command": "x" * 3_000_000}),
        ("bash", {"command": "echo still here"}),
    ]
    log = evaluate(
        tmp_path, solve=[wrong(), use_tools(bash(timeout=3)), generate()], model=says(*calls)
    )
    assert log.status == "success", log.error
    assert errors(log.samples[0]) == ["timeout", "limit", "parsing", "unknown"]
    said = told(log.samples[0])
    assert "no-such-program: command not found" in said[1]
    assert said[-1] == "still here\n"


def test_example_of_the_guide_runs(tmp_path, monkeypatch) -> None:
    """Its task, and the file that is found beside it."""
    guide = (Path(__file__).parents[3] / "docs/guide/inspect.md").read_text()
    names: dict = {}
    exec(re.search(r"^```py\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)[1], names)
    (tmp_path / "skerry.toml").write_text(f'image = "{IMAGE}"\n')
    monkeypatch.chdir(tmp_path)
    model = says(("bash", {"command": "wc -l < given.txt"}))
    (log,) = evaluate_all(names["hello"](), model=model, log_dir="logs", display="none")
    assert log.status == "success", log.error
    assert told(log.samples[0]) == ["2\n"]


def solving(check):
    """A solver that has the sandboxes to itself; what it raises is the sample's error."""

    @solver
    def solving():
        async def solve(state, _generate):
            await check()
            return state

        return solve

    return solving()


def test_named_sandboxes_have_their_own_options_and_one_is_the_default(tmp_path) -> None:
    async def check() -> None:
        assert (await sandbox().exec(["hostname"])).stdout == "attacker\n"
        assert (await sandbox("victim").exec(["hostname"])).stdout == "skerry\n"
        assert await sandbox("victim").read_file("flag.txt") == "FLAG"
        assert (await sandbox().exec(["cat", "flag.txt"])).returncode == 1
        assert (await sandbox().exec(["sh", "-c", "ulimit -u; echo $WORD"])).stdout[
            -6:
        ] == "apple\n"
        assert (await sandbox("victim").exec(["sh", "-c", "echo $WORD"])).stdout == "pear\n"

    log = evaluate(
        tmp_path,
        config=f"""
image = "{IMAGE}"
env = {{ WORD = "pear" }}
[sandboxes.victim]
[sandboxes.attacker]
default = true
hostname = "attacker"
env = {{ WORD = "apple" }}
""",
        solve=solving(check),
        sample={"files": {"victim:flag.txt": "FLAG"}},
    )
    assert log.samples[0].error is None, log.samples[0].error.traceback


def test_users_directories_input_and_limits(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("INSPECT_SANDBOX_MAX_READ_FILE_SIZE", str(4 << 20))

    async def check() -> None:
        box = sandbox()
        assert (await box.exec(["id", "-u"], user="nobody")).stdout == "65534\n"
        assert (await box.exec(["id", "-u"], user="4242")).stdout == "4242\n"
        # The directory of a sample is one, whoever asks.
        assert (await box.exec(["pwd"], user="root")).stdout == (await box.exec(["pwd"])).stdout
        assert (await box.exec(["pwd"], cwd="..")).stdout == "/\n"
        missing = await box.exec(["true"], cwd="/nowhere")
        assert (missing.success, "No such file" in missing.stderr) == (False, True)
        assert (await box.exec(["wc", "-c"], input=b"\xff" * 1000)).stdout == "1000\n"
        gone = await box.exec(["no-such-program"])
        assert (gone.returncode, "no-such-program" in gone.stderr) == (127, True)
        assert (await box.exec(["sh", "-c", "kill -9 $$"])).returncode == 137
        await box.write_file("big", b"\0" * (5 << 20))
        with pytest.raises(OutputLimitExceededError, match="4 MiB"):
            await box.read_file("big", text=False)
        with pytest.raises(TimeoutError):
            await box.exec(["sleep", "100"], timeout=1)
        with pytest.raises(FileNotFoundError):
            await box.read_file("big/below")

    log = evaluate(tmp_path, solve=solving(check))
    assert log.samples[0].error is None, log.samples[0].error.traceback


def test_command_that_nobody_waits_for_any_more_ends(tmp_path) -> None:
    async def check() -> None:
        with anyio.move_on_after(1):
            await sandbox().exec(["sh", "-c", "sleep 54321; :"])
        with anyio.fail_after(60):
            while "54321" in (await sandbox().exec(["ps", "axo", "args"])).stdout:  # noqa: ASYNC110
                await anyio.sleep(0.1)

    log = evaluate(tmp_path, solve=solving(check))
    assert log.samples[0].error is None, log.samples[0].error.traceback
