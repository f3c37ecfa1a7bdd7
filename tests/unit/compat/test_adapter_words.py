"""What adapters share: options that are taken or refused, and how a command's end is told."""

from __future__ import annotations

from errno import EFBIG
from types import SimpleNamespace

import pytest

from skerry.compat.options import asked
from skerry.compat.outcome import exit_status, is_of_platform, remarks, shown
from skerry.compat.reading import FileTooLong, read_within
from skerry.errors import Bug, FileRefused, InvalidRequest, NotFound, SandboxFailed, Unavailable
from skerry.sdk.options import spec_of
from skerry.spec.command import RunResult


def test_options_are_those_of_skerry_one_to_one() -> None:
    options = {"url": "unix:///x", "token": "", "image": "a:1", "cpu": 2.0, "labels": {"job": "b"}}
    connection, creation = asked(options, harness="some", labels={"task": "t" * 400, "none": ""})
    assert connection == {"url": "unix:///x"}
    assert creation.pop("wait") > 0
    spec = spec_of(creation.pop("backend", "container"), **creation)
    assert (spec.image, spec.cpu, spec.idle_timeout_s) == ("a:1", 2.0, 3600.0)
    assert spec.labels == {"harness": "some", "task": "t" * 256, "job": "b"}
    # None is the user's own word: without end.
    assert asked({"idle_timeout": None}, harness="some", labels={}).creation["idle_timeout"] is None


@pytest.mark.parametrize("name", ["imgae", "disks", "key", ""])
def test_what_is_no_option_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"no option '{name}'; there are .*image, .*wait"):
        asked({name: 1}, harness="some", labels={})


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (RunResult(exit_code=0), 0),
        (RunResult(exit_code=3), 3),
        (RunResult(signal=15), 143),
        (RunResult(signal=9, timed_out=True), 124),
        (RunResult(exit_code=0, timed_out=True), 124),
        (RunResult(start_error="exec: x", start_errno=2), 127),
        (RunResult(start_error="user: x"), 126),
    ],
)
def test_an_end_has_the_status_that_a_shell_gives(result: RunResult, status: int) -> None:
    assert exit_status(result) == status


def test_output_that_was_cut_says_where_and_how_much() -> None:
    whole = RunResult(exit_code=0, stdout=b"ab\xff", stdout_total=3)
    assert shown(whole, 3) == "ab�"
    cut = RunResult(exit_code=0, stdout=b"abcxy", stdout_total=100, truncated=True)
    assert shown(cut, 5) == "abc\n[... 95 bytes were cut out here ...]\nxy"


def test_what_an_agent_must_know_is_said() -> None:
    assert remarks(RunResult(exit_code=1), 5.0) == ""
    said = remarks(RunResult(signal=9, timed_out=True, oom_killed=True), 5.0)
    assert said.splitlines()[0].startswith("The command timed out after 5 seconds")
    assert "memory" in said
    assert remarks(RunResult(start_error="cwd: gone: /x"), None) == "cwd: gone: /x"
    assert "cancelled" in remarks(RunResult(signal=9, cancelled=True), None)


def test_faults_of_the_platform_are_told_from_the_agents() -> None:
    for error in (
        Unavailable("x"),
        Bug("x"),
        SandboxFailed("x", lost=True),
        NotFound("no sandbox"),
    ):
        assert is_of_platform(error)
    for other in (
        NotFound("x", path="/a"),
        FileRefused("x"),
        SandboxFailed("x"),
        InvalidRequest(""),
    ):
        assert not is_of_platform(other)


async def test_a_file_that_is_too_long_is_refused_and_no_more_of_it_is_read() -> None:
    asked = []

    class Files:
        async def read(self, path: str, *, length: int, user: str | None) -> bytes:
            asked.append((path, length, user))
            return b"x" * min(length, 10)

    sandbox = SimpleNamespace(files=Files())
    assert await read_within(sandbox, "/a", 10, user="u") == b"x" * 10  # type: ignore[arg-type]
    with pytest.raises(FileTooLong, match="/b: more than 9 bytes") as raised:
        await read_within(sandbox, "/b", 9)  # type: ignore[arg-type]
    assert asked == [("/a", 11, "u"), ("/b", 10, None)]
    assert raised.value.fields == {"errno": EFBIG, "path": "/b"}
    assert not is_of_platform(raised.value)
