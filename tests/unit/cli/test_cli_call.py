"""`skerry call`: what its words ask for, what it shows, and what exit status comes back."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from fake_client import FakeClient, invoke

from skerry.errors import Overloaded, SkerryError
from skerry.spec.function import Environment
from skerry.spec.function_limits import Limit
from skerry.spec.function_result import CallError, CallResult, PoolInfo, Step


class FakeFunctions:
    """Answers with what was laid out, and keeps what it was asked for."""

    def __init__(self) -> None:
        self.result = CallResult(exit_code=0)
        self.output: list[tuple[str, bytes]] = []
        self.failure: SkerryError | None = None
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.input = b""

    async def call(self, kind: str, **options: Any) -> CallResult:
        self.asked.append((kind, options))
        if self.failure is not None:
            raise self.failure
        stdin = options.get("stdin")
        if inspect.isasyncgen(stdin):
            self.input = b"".join([piece async for piece in stdin])
        for stream, data in self.output:
            await options["on_output"](stream, data)
        return self.result

    async def pools(self) -> list[PoolInfo]:
        return [
            PoolInfo(
                key="ab" * 12,
                environment=Environment(modules=("numpy",)),
                containers=2,
                starting=1,
                running=3,
                calls=44,
            )
        ]


@pytest.fixture
def calls() -> FakeFunctions:
    return FakeFunctions()


def run(calls: FakeFunctions, *words: str, **more: Any) -> Any:
    client = FakeClient()
    client.functions = calls  # type: ignore[attr-defined]
    return invoke(client, "call", *words, **more)


def test_code_is_a_main_program_with_its_words(calls: FakeFunctions) -> None:
    calls.output = [("stdout", b"42\n"), ("stderr", b"hm\n")]
    result = run(calls, "-c", "print(6*7)", "a", "-x")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "42\n", "hm\n")
    kind, options = calls.asked[0]
    assert (kind, options["code"], options["entry"]) == ("python", "print(6*7)", None)
    assert (options["args"], options["image"]) == (("a", "-x"), "debian:12")


def test_a_function_gets_json_and_its_value_is_printed(
    calls: FakeFunctions, tmp_path: Path
) -> None:
    (tmp_path / "f.py").write_text("def main(*a): ...")
    calls.result = CallResult(exit_code=0, returned=True, value={"é": [1]})
    result = run(calls, "--entry", "main", str(tmp_path / "f.py"), "7", '{"a": 1}', "word")
    assert (result.exit_code, result.stdout) == (0, '{"é": [1]}\n')
    assert calls.asked[0][1]["args"] == (7, {"a": 1}, "word")


@pytest.mark.parametrize(
    ("name", "text", "asked"),
    [
        ("a.py", "1", ("python", {"code": "1", "entry": None, "args": ("x",)})),
        ("a.c", "1", ("compile_run", {"language": "c", "sources": {"a.c": "1"}, "args": ("x",)})),
        ("M.java", "1", ("compile_run", {"language": "java", "sources": {"M.java": "1"}})),
        ("a.sh", "#!/bin/sh -e\n", ("script", {"interpreter": ["/bin/sh", "-e"]})),
        ("a", "#!/usr/bin/env -S perl -w\n", ("script", {"interpreter": ["perl", "-w"]})),
    ],
)
def test_a_file_says_what_it_is(
    calls: FakeFunctions, tmp_path: Path, name: str, text: str, asked: tuple[str, dict[str, Any]]
) -> None:
    (tmp_path / name).write_text(text)
    assert run(calls, str(tmp_path / name), "x").exit_code == 0
    kind, options = calls.asked[0]
    assert (kind, {name: options[name] for name in asked[1]}) == asked


def test_options_reach_the_call(calls: FakeFunctions, tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int main;")
    (tmp_path / "data").mkdir()
    words = ["--limit", "wall=1.5s", "-l", "memory=64MiB", "-l", "processes=9", "--flag=-O2"]
    words += ["--compile-limit", "wall=2m", "--fetch", "out/*", "--to", str(tmp_path / "to")]
    words += ["--file", str(tmp_path / "data"), "--file", f"b={tmp_path}/a.c", "-e", "A=1=2"]
    words += ["--layer", "toolkit/x", "--isolation", "container", "--idempotent", "--wait", "0"]
    words += ["--job", "j", "--device", "gpu", "--image", "mine", "-m", "numpy"]
    assert run(calls, *words, str(tmp_path / "a.c")).exit_code == 0
    options = calls.asked[0][1]
    assert (options["wall"], options["memory"], options["processes"]) == (1.5, "64MiB", 9)
    assert (options["flags"], options["compile_limits"]) == (("-O2",), {"wall": 120.0})
    assert (options["fetch"], options["fetch_to"]) == (("out/*",), str(tmp_path / "to"))
    assert options["files"] == {"data": tmp_path / "data", "b": tmp_path / "a.c"}
    assert (options["env"], options["layers"], options["modules"]) == (
        {"A": "1=2"}, ("toolkit/x",), ("numpy",),
    )  # fmt: skip
    assert (options["isolation"], options["idempotent"], options["wait"]) == ("container", True, 0)
    assert (options["job"], options["device"], options["image"]) == ("j", "gpu", "mine")


def test_a_program_and_our_input(calls: FakeFunctions, tmp_path: Path) -> None:
    result = run(calls, "--stdin", "-", "-p", "--", "sort", "-n", input=b"2\n1\n")
    assert result.exit_code == 0
    assert calls.asked[0] == ("program", calls.asked[0][1])
    assert (calls.asked[0][1]["argv"], calls.input) == (("sort", "-n"), b"2\n1\n")
    (tmp_path / "in").write_bytes(b"x")
    run(calls, "--stdin", str(tmp_path / "in"), "-p", "cat")
    assert calls.asked[1][1]["stdin"] == tmp_path / "in"


@pytest.mark.parametrize(
    ("ended", "status", "told"),
    [
        (CallResult(exit_code=3), 3, ""),
        (CallResult(signal=11), 139, ""),
        (CallResult(signal=9, limit=Limit.WALL), 124, "limit of wall"),
        (CallResult(signal=9, limit=Limit.CPU), 124, "limit of cpu"),
        (CallResult(signal=9, limit=Limit.MEMORY), 137, "limit of memory"),
        (CallResult(start_error="exec: No such file or directory: x"), 127, "No such file"),
        (CallResult(start_error="exec: Permission denied: x"), 126, "denied"),
        (CallResult(exit_code=0, returned=False), 1, "before its function returned"),
        (
            CallResult(exit_code=1, returned=False, error=CallError(type="KeyError", message="a")),
            1,
            "KeyError: a",
        ),
        (CallResult(compile=Step(exit_code=1, stderr=b"a.c:1: no\n")), 1, "a.c:1: no"),
        (CallResult(compile=Step(signal=9, limit=Limit.MEMORY)), 137, "the compiler was ended"),
        (CallResult(exit_code=0, left_out={"out": "no such file"}), 0, "out: no such file"),
    ],
)
def test_the_status_is_the_programs_and_the_rest_is_said(
    calls: FakeFunctions, ended: CallResult, status: int, told: str
) -> None:
    calls.result = ended
    result = run(calls, "-c", "x")
    assert result.exit_code == status
    assert told in result.stderr


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ("nothing to call", []),
        ("one is enough", ["-c", "1", "-p", "ls"]),
        ("--entry is for Python", ["--entry", "f", "-p", "ls"]),
        ("there is no file", ["nothing-here.py"]),
        ("'walls' is none of", ["--limit", "walls=3", "-c", "1"]),
        ("processes: 'many' is no number", ["--limit", "processes=many", "-c", "1"]),
        ("--file: there is no", ["--file", "a=/nowhere", "-c", "1"]),
        ("--stdin: there is no", ["--stdin", "/nowhere", "-c", "1"]),
    ],
)
def test_what_is_wrong_is_said_and_is_125(
    calls: FakeFunctions, told: str, words: list[str]
) -> None:
    result = run(calls, *words)
    assert (result.exit_code, told in result.stderr) == (125, True), result.stderr
    assert calls.asked == []


def test_a_file_that_could_be_anything_is_asked_about(calls: FakeFunctions, tmp_path: Path) -> None:
    (tmp_path / "thing").write_text("hello")
    result = run(calls, str(tmp_path / "thing"))
    assert (result.exit_code, "--script INTERPRETER" in result.stderr) == (125, True)
    assert run(calls, "--script", "awk -f", str(tmp_path / "thing")).exit_code == 0
    assert calls.asked[0][1]["interpreter"] == ["awk", "-f"]
    (tmp_path / "binary.c").write_bytes(b"\xff\xfe")
    assert "no text" in run(calls, str(tmp_path / "binary.c")).stderr


def test_json_gives_one_object_and_keeps_the_status(calls: FakeFunctions) -> None:
    calls.result = CallResult(exit_code=4, stdout=b"\xff", stdout_total=1)
    result = run(calls, "--json", "-c", "x")
    assert result.exit_code == 4
    body = json.loads(result.stdout)
    assert (body["exit_code"], body["stdout_base64"]) == (4, "/w==")
    assert "on_output" not in calls.asked[0][1]


def test_an_error_of_the_platform_is_125(calls: FakeFunctions) -> None:
    calls.failure = Overloaded("no place", limit="function calls", retry_after_s=3)
    result = run(calls, "-c", "x")
    assert (result.exit_code, "no place" in result.stderr) == (125, True)


def test_pools_are_shown(calls: FakeFunctions) -> None:
    result = run(calls, "--pools")
    assert result.exit_code == 0
    assert "debian:12 numpy" in result.stdout
    assert "2 (+1)" in result.stdout
    body = json.loads(run(calls, "--pools", "--json").stdout)
    assert (body["calls"], body["environment"]["modules"]) == (44, ["numpy"])
