"""Global options, help, errors, signals, and what JSON looks like."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_client import ONE, FakeClient, info, invoke, manifest

from skerry import aio
from skerry.cli import app as app_module
from skerry.cli.app import App, Settings
from skerry.cli.at_exit import AtExit
from skerry.cli.failure import hint_for, report
from skerry.cli.jsonable import jsonable
from skerry.cli.loop import Interrupted, Lane, run_work
from skerry.cli.main import COMMANDS, cli
from skerry.cli.words import age, plural, size
from skerry.errors import InvalidRequest, NotFound, Overloaded, SkerryError, Unavailable
from skerry.spec.command import RunResult


def test_help_lists_every_command_and_imports_none() -> None:
    script = (
        "import sys\nsys.argv = ['skerry', '--help']\n"
        "from skerry.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'asyncio', 'aiohttp', 'rich', 'msgspec', 'skerry.cli.run'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for name in COMMANDS:
        assert f"  {name} " in done.stdout


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help_and_takes_json(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert "--json" in result.output


def test_the_environment_names_the_node_unless_an_option_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SKERRY_URL", "http://a:1")
    monkeypatch.setenv("SKERRY_TOKEN", "t" * 16)
    monkeypatch.setenv("OTHER", "o" * 16)

    def settings(*words: str) -> Settings:
        client = FakeClient()
        assert invoke(client, *words, "ls").exit_code == 0
        found = client.calls[0][1]
        assert isinstance(found, Settings)
        return found

    assert settings() == Settings("http://a:1", "t" * 16)
    assert settings("--url", "http://b:1", "--token-env", "OTHER").token == "o" * 16
    assert settings("--state", "/s", "--run", "/r").url is None
    assert "tttt" not in repr(settings())


def test_a_token_variable_that_is_named_must_be_set() -> None:
    result = invoke(None, "--token-env", "NOT_SET_ANYWHERE", "ls")
    assert result.exit_code == 125
    assert "NOT_SET_ANYWHERE" in result.stderr


def test_without_root_and_without_a_node_the_way_out_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(app_module.os, "geteuid", lambda: 1000)
    result = CliRunner().invoke(cli, ["--run", str(tmp_path), "ls"])
    assert result.exit_code == 125
    assert "needs root" in result.stderr
    assert "SKERRY_TOKEN" in result.stderr


def test_usage_errors_are_2_and_one_json_object_if_asked() -> None:
    assert invoke(None, "ls", "--nonsense").exit_code == 2
    result = invoke(None, "--json", "nonsense")
    assert result.exit_code == 2
    assert json.loads(result.stderr)["code"] == "usage"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotFound("no"), 125),
        (PermissionError(13, "Permission denied", "/x"), 125),
        (KeyboardInterrupt(), 130),
        (Interrupted(signal.SIGTERM), 143),
        (ExceptionGroup("g", [Unavailable("u")]), 125),
    ],
)
def test_each_kind_of_error_has_its_status(
    error: BaseException, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert report(App(), error) == status
    assert "Traceback" not in capfd.readouterr().err


def test_a_bug_of_ours_shows_where_it_is_and_asks_for_a_report(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        1 // 0  # noqa: B018
    assert report(App(), caught.value) == 125
    shown = capfd.readouterr().err
    assert "Traceback" in shown
    assert "please report it" in shown


def test_overload_says_when_to_try_again(capfd: pytest.CaptureFixture[str]) -> None:
    report(App(), Overloaded("full", limit="sandboxes_max", retry_after_s=1.5))
    assert "in 1.5 s" in capfd.readouterr().err


def test_a_signal_cancels_the_work_which_cleans_up_first() -> None:
    import asyncio

    done = []

    async def work() -> None:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0)
            done.append("cleaned up")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored
    try:
        with pytest.raises(Interrupted) as caught:
            run_work(work, AtExit())
    finally:
        signal.signal(signal.SIGINT, before)
    assert caught.value.number == signal.SIGINT
    assert done == ["cleaned up"]


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    import asyncio

    async def work() -> str:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0)
        return "went on"

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run_work(work, AtExit()) == "went on"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_signal_leaves_at_once_and_undoes_the_terminal(tmp_path: Path) -> None:
    script = (
        "import asyncio, os, signal\n"
        "from skerry.cli.at_exit import AtExit\n"
        "from skerry.cli.loop import run_work\n"
        "at_exit = AtExit()\n"
        "async def work():\n"
        "    with at_exit.undoing(lambda: print('undone', flush=True)):\n"
        "        while True:\n"
        "            print('ready', flush=True)\n"
        "            try: await asyncio.sleep(60)\n"
        "            except asyncio.CancelledError: pass\n"
        "run_work(work, at_exit)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        # A test run in the background of a script has SIGINT ignored, and its children would too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    assert process.stdout is not None
    for _ in range(2):
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert process.stdout.read() == "undone\n"
    process.stdout.close()


# The process gets SIGINT when it begins to import its WHENth module after the entry, and in what comes
# after a command's end: while an error is reported, and when all is said.
INTERRUPTED = """
import os, signal, sys
from skerry.cli.entry import main
class Finder:
    count = 0
    def find_spec(self, name, *_):
        Finder.count += 1
        if Finder.count == {when} or name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ["skerry", *{words!r}]
try:
    main()
finally:
    print("modules", Finder.count, flush=True)
"""


def interrupted(*words: str, when: int = -1, name: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(when=when, name=name, words=words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.parametrize("words", [("--help",), ("--url", "unix:///nowhere", "ls", "--json")])
def test_interrupt_in_the_midst_of_imports_ends_with_130_and_no_traceback(
    words: tuple[str, ...],
) -> None:
    whole = interrupted(*words)
    count = int(whole.stdout.split()[-1])
    assert count > 20
    for when in sorted({1, 2, 3, *range(1, count - 10, count // 8)}):
        done = interrupted(*words, when=when)
        assert (done.returncode, done.stderr.strip()) == (130, ""), (when, done.stderr)


def test_interrupt_while_an_error_is_reported_ends_with_130_and_no_traceback() -> None:
    done = interrupted("--url", "nonsense", "ls", name="skerry.cli.jsonable")
    assert (done.returncode, done.stderr) == (130, "")


def test_interrupt_is_ignored_where_it_was_when_the_process_began() -> None:
    script = INTERRUPTED.format(when=5, name="", words=("--help",))
    done = subprocess.run(
        ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_lane_returns_values_and_raises_errors_without_blocking_the_loop() -> None:
    import asyncio

    async def work() -> tuple[int, float]:
        lane = Lane()
        started = time.monotonic()
        slow = asyncio.create_task(lane.call(time.sleep, 0.05))
        await asyncio.sleep(0)
        on_loop = time.monotonic() - started
        await slow
        with pytest.raises(ZeroDivisionError):
            await lane.call(lambda: 1 // 0)
        return await lane.call(lambda: 7), on_loop

    value, on_loop = run_work(work, AtExit())
    assert value == 7
    assert on_loop < 0.05


def test_json_has_every_field_and_bytes_that_are_no_text_in_base64() -> None:
    body = jsonable(RunResult(exit_code=0, stdout=b"\xff", stderr=b"text"))
    assert body["stdout_base64"] == "/w=="
    assert "stderr_base64" not in body
    assert body["signal"] is None
    json.dumps(jsonable({"a": ("x\udcff", b"b", None, 1.5)}))


def test_words_for_people() -> None:
    assert [size(n) for n in (0, 1023, 1024, 1536, 3 << 30)] == [
        "0 B", "1023 B", "1 KiB", "1.5 KiB", "3 GiB",
    ]  # fmt: skip
    assert [age(n) for n in (-1, 3, 720, 7200, 9 * 86_400)] == [
        "0 s",
        "3 s",
        "12 min",
        "2 h",
        "9 d",
    ]
    assert [plural(1, "task"), plural(2, "task"), plural(0, "sandbox")] == [
        "1 task", "2 tasks", "0 sandboxes",
    ]  # fmt: skip


def test_completion_prints_a_script_for_each_shell() -> None:
    for shell in ("bash", "zsh", "fish"):
        result = invoke(None, "completion", shell)
        assert "_SKERRY_COMPLETE" in result.stdout
    assert invoke(None, "completion", "tcsh").exit_code == 2


def complete(client: FakeClient, monkeypatch: pytest.MonkeyPatch, line: str) -> list[str]:
    monkeypatch.setenv("_SKERRY_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    result = CliRunner().invoke(cli, [], obj=App(connect=lambda _: client), prog_name="skerry")
    return [found.partition(",")[2] for found in result.stdout.split()]


def test_ids_and_layers_of_a_running_node_are_completed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    client = FakeClient()
    client.infos = {ONE: info(ONE)}
    client.layers = {"base/debian:12": manifest()}
    (tmp_path / "node.sock").touch()
    here = f"skerry --run {tmp_path}"
    assert complete(client, monkeypatch, f"{here} exec s") == [ONE]
    assert complete(client, monkeypatch, f"{here} image rm base") == ["base/debian:12"]
    assert complete(client, monkeypatch, f"skerry --run {tmp_path}/none exec s") == []
    assert complete(client, monkeypatch, "skerry tr") == ["trace"]


def test_skerry_errors_never_show_a_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    for cls in (NotFound, Unavailable, Overloaded, SkerryError):
        report(App(), cls("what happened"))
        shown = capfd.readouterr().err
        assert shown.startswith("skerry: what happened\n")
        assert "Traceback" not in shown


def test_a_mistyped_command_is_told_what_it_may_have_been() -> None:
    result = invoke(FakeClient(), "rnu")
    assert result.exit_code == 2
    assert "No such command 'rnu'" in result.stderr
    assert "Did you mean run?" in result.stderr


def test_no_words_at_all_show_the_help_and_nothing_else() -> None:
    result = invoke(FakeClient())
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage: ")
    assert "lists the options" not in result.stderr


def test_an_unfilled_skeleton_of_a_task_is_refused_before_anything_is_fetched(
    tmp_path: Path,
) -> None:
    folder = str(tmp_path / "mine")
    assert invoke(FakeClient(), "task", "new", folder).exit_code == 0
    result = invoke(FakeClient(), "task", "check", folder)
    assert result.exit_code == 125
    assert "replace every TODO" in result.stderr


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("there is no sandbox s1", "`skerry ls -a` lists sandboxes"),
        ("no rollout 'x' in /jobs", "`skerry trace ls --all` lists"),
        ("/root/nosuch: No such file or directory (stat)", None),
    ],
)
def test_what_is_missing_decides_where_to_look(message: str, hint: str | None) -> None:
    said = hint_for(NotFound(message), remote=False, state="/s")
    assert (said or "").startswith(hint or "")
    assert (said is None) == (hint is None)


async def test_an_address_without_a_scheme_says_how_to_write_it() -> None:
    with pytest.raises(InvalidRequest, match="http://HOST:PORT"):
        async with aio.connect("127.0.0.1:7070"):
            pass
