"""The judge of other people's harnesses: what it must object to, with real reports of pytest."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import interop.__main__ as command
from interop import environments, tools
from interop.environments import NoEnvironment, interpreter
from interop.run import end, version_of

PASSES = "def test_one():\n    pass\n"
FAILS = "def test_one():\n    assert False\ndef test_two():\n    pass\n"
EXPLAINED = '[[explained]]\ntest = "test_one"\nreason = "theirs"\n'
SCENARIO = '[[scenario]]\nname = "{0}"\ntests = "test_{0}.py"\n'


@pytest.fixture
def interop(tmp_path, monkeypatch, capsys):
    """Runs `python -m interop` on a tool that is made here: its exit status, and what it said."""
    place = tmp_path / "toy"
    place.mkdir()
    (place / "lock.txt").write_text(f"pytest=={pytest.__version__}\n")
    monkeypatch.setattr(tools, "TOOLS", tmp_path)
    monkeypatch.setattr(command, "environment", lambda _tool: Path(sys.executable))
    monkeypatch.setattr(command, "node", lambda **_: contextlib.nullcontext("unix:///none"))
    # pytest takes Ctrl-C, and this process its own way of ending.
    monkeypatch.setattr(command, "_be_interruptible", lambda: None)

    def run(tests: dict[str, str], more: str = "", *options: str) -> tuple[int, str]:
        text = 'title = "Toy"\npackage = "pytest"\nextra = "dev"\npage = "toy.md"\n'
        for name, code in tests.items():
            text += SCENARIO.format(name)
            (place / f"test_{name}.py").write_text(code)
        (place / "tool.toml").write_text(text + more)
        monkeypatch.setattr(sys, "argv", ["interop", *options])
        status = command.main()
        said = capsys.readouterr()
        return status, said.out + said.err

    return run


def test_all_that_passes_is_fine(interop) -> None:
    status, said = interop({"a": PASSES})
    assert status == 0
    assert f"| [Toy](toy.md) | {pytest.__version__} | a | 1 | 0 |" in said


def test_failure_with_a_reason_is_fine_and_shown(interop) -> None:
    status, said = interop({"a": FAILS}, EXPLAINED)
    assert status == 0
    assert "| 1 | 1 (below) |" in said
    assert "- Toy, `test_one`: theirs" in said


def test_failure_without_a_reason_fails(interop) -> None:
    status, said = interop({"a": FAILS})
    assert status == 1
    assert "FAILED toy, a: test_one" in said


def test_pass_that_is_explained_as_a_failure_fails(interop) -> None:
    status, said = interop({"a": PASSES}, EXPLAINED)
    assert status == 1
    assert "FAILED toy, a: test_one passes, though" in said


def test_reason_for_a_test_that_there_is_not_fails(interop) -> None:
    status, said = interop({"a": PASSES}, EXPLAINED.replace("one", "three"))
    assert status == 1
    assert "tool.toml explains test_three, which there is not" in said


def test_reason_may_be_for_a_test_of_another_scenario(interop) -> None:
    other = FAILS.replace("one", "first")
    reason = EXPLAINED.replace("one", "first")
    assert interop({"a": PASSES, "b": other}, reason)[0] == 0


def test_test_that_is_skipped_fails(interop) -> None:
    status, said = interop(
        {"a": PASSES + "def test_two():\n    import pytest\n    pytest.skip('no time')\n"}
    )
    assert status == 1
    assert "test_two was skipped: no time" in said


def test_fixture_that_fails_at_the_end_fails(interop) -> None:
    fixture = "import pytest\n@pytest.fixture\ndef it():\n    yield\n    assert False\n"
    assert interop({"a": fixture + "def test_one(it):\n    pass\n"})[0] == 1


@pytest.mark.parametrize("code", ["import no_such_module\n", "import os\nos._exit(0)\n", ""])
def test_file_of_which_nothing_runs_fails(interop, code: str) -> None:
    status, said = interop({"a": code})
    assert status == 1
    assert "nothing passed" in said


def test_scenario_that_is_not_done_in_time_fails(interop) -> None:
    code = "import time\ndef test_one():\n    time.sleep(3600)\n"
    status, said = interop({"a": code}, "timeout_s = 1\n")
    assert status == 1
    assert "no report within" in said


def test_tests_that_are_ended_early_clean_up(tmp_path) -> None:
    began, ended = tmp_path / "began", tmp_path / "ended"
    code = f"""
import pathlib, pytest, time
@pytest.fixture
def it():
    yield
    pathlib.Path({str(ended)!r}).touch()
def test_one(it):
    pathlib.Path({str(began)!r}).touch()
    time.sleep(3600)
"""
    (tmp_path / "test_slow.py").write_text(code)
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
    )
    while not began.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    assert "KeyboardInterrupt" in end(process)
    assert ended.exists()


def test_tool_that_cannot_be_installed_fails_with_the_reason(interop, monkeypatch) -> None:
    def missing(_tool):
        raise NoEnvironment("no Python 3.99 on this machine")

    monkeypatch.setattr(command, "environment", missing)
    status, said = interop({"a": PASSES})
    assert status == 1
    assert "FAILED toy: no Python 3.99 on this machine" in said


def test_run_of_nothing_fails(interop) -> None:
    assert interop({"a": PASSES}, "", "--fast")[0] == 1


def test_of_several_pythons_the_first_that_there_is_is_taken() -> None:
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    found = interpreter(f"2.0 {ours} 9.9")
    assert f"python{ours}" in found
    assert interpreter("") == sys.executable
    with pytest.raises(NoEnvironment, match=r"no Python 2\.0 or 9\.9 on this machine"):
        interpreter("2.0 9.9")


def test_old_environments_go_and_what_others_made_beside_them_stays(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(environments, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(environments, "_install", lambda _python, place, _what: place.mkdir())
    monkeypatch.setattr(tools, "TOOLS", tmp_path)
    tool = tools.Tool("Toy", "pytest", "dev", "toy.md", [], name="toy")
    tool.place.mkdir()
    others = {"toy-by-hand", "toy_newest-0123456789abcdef", "toy-0123456789abcdef0"}
    for name in others:
        (tmp_path / "cache" / name).mkdir(parents=True)
    made = []
    for age, content in ((30, "a"), (20, "b"), (10, "c")):
        (tool.place / "lock.txt").write_text(content)
        place = environments.environment(tool).parent.parent
        os.utime(place, times=(time.time() - age,) * 2)
        made.append(place.name)
    left = {place.name for place in (tmp_path / "cache").iterdir() if place.is_dir()}
    assert left == others | set(made[1:])


@pytest.fixture
def newer(tmp_path, monkeypatch):
    """Makes a tool that needs other Pythons than there are here."""
    monkeypatch.setattr(environments, "CACHE", tmp_path / "cache")

    def nothing(_wanted: str) -> str:
        raise NoEnvironment("no Python here")

    monkeypatch.setattr(environments, "interpreter", nothing)
    monkeypatch.setattr(tools, "TOOLS", tmp_path)
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "lock.txt").write_text("some_Thing==1.2\nother==3\n")

    def make(python: str) -> tools.Tool:
        named = {"title": "Toy", "package": "some-thing", "extra": "dev", "page": "toy.md"}
        return tools.Tool(**named, scenario=[], python=python, name="toy")

    return make


def test_a_tool_whose_python_is_not_here_has_one_in_a_sandbox_if_that_will_do(newer) -> None:
    program = environments.environment(newer("3.12 3.13"))
    assert os.access(program, os.X_OK)
    # It is the program that it says: without a node it goes no further.
    environment = {name: value for name, value in os.environ.items() if name != "SKERRY_URL"}
    done = subprocess.run(
        [program, "-c", ""], capture_output=True, text=True, env=environment, check=False
    )
    assert "no such tool: toy" in done.stderr
    with pytest.raises(NoEnvironment, match="no Python here"):
        environments.environment(newer("3.12"))


def test_the_version_of_a_tool_is_that_of_its_lock(newer) -> None:
    assert version_of(newer("")) == "1.2"
