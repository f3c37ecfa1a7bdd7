"""SandboxFusion's requests as calls, results as its answers: nothing is lost, or passes for another."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest

from skerry.compat.sandboxfusion import Defaults, build_app, wire
from skerry.compat.sandboxfusion.languages import SERVED, NotServed, call_of
from skerry.errors import InvalidRequest, NotFound, OutcomeUnknown, Overloaded
from skerry.spec.function import CallSpec, CompileRunCall, ProgramCall, PythonCall
from skerry.spec.function_limits import Limit
from skerry.spec.function_result import CallResult, CallUsage, Step
from skerry.spec.limits import MIB


def asked(code: str = "print(1)", language: Any = "python", **more: Any) -> wire.RunCode:
    body = {"code": code, "language": language, **more}
    return msgspec.json.decode(json.dumps(body), type=wire.RunCode)


def test_a_python_program_keeps_its_limits_input_and_files() -> None:
    text = base64.b64encode(b"x").decode()
    call, wanted = call_of(
        asked(
            stdin="in",
            run_timeout=3,
            memory_limit_MB=100,
            files={"./a/b.txt": text, "gone": None},
            fetch_files=["out[1].txt", "/call/c", "/etc/passwd", "../up"],
        ),
        Defaults(wait_s=2, job="judge"),
    )
    assert call.kind == PythonCall(code="print(1)", entry=None)
    assert (call.stdin, call.limits.wall_s, call.limits.memory_bytes) == (b"in", 3, 100 * MIB)
    assert call.limits.cpu_limit_s > 3
    assert {name: file.content() for name, file in call.files.items()} == {"a/b.txt": b"x"}
    assert call.fetch == ("out[[]1].txt", "c")
    assert wanted == {"out[1].txt": "out[1].txt", "/call/c": "c"}
    assert (call.wait_s, call.job) == (2, "judge")


def test_memory_that_is_not_said_is_the_servers() -> None:
    for limit in (-1, 0):
        call, _ = call_of(asked(memory_limit_MB=limit), Defaults(memory_bytes=7 * 16 * MIB))
        assert call.limits.memory_bytes == 7 * 16 * MIB


def test_a_compiled_program_has_two_times() -> None:
    call, _ = call_of(asked("int main(){}", "cpp", compile_timeout=20, run_timeout=1), Defaults())
    assert isinstance(call.kind, CompileRunCall)
    assert (call.kind.compile_limits.wall_s, call.limits.wall_s) == (20, 1)
    assert call.kind.sources == {"main.cpp": "int main(){}"}
    assert "-std=c++17" in call.kind.flags


def test_a_script_is_a_file_beside_the_others() -> None:
    call, _ = call_of(asked("echo 1", "php"), Defaults())
    assert call.kind == ProgramCall(argv=("php", "-f", "main.php"))
    assert call.files["main.php"].content() == b"<?php\necho 1"
    call, _ = call_of(asked("def test(): pass", "pytest", args=["-q"]), Defaults())
    assert call.kind == ProgramCall(argv=("python3", "-m", "pytest", "test_main.py", "-q"))


def test_every_language_that_is_served_is_one_of_theirs_and_makes_a_call() -> None:
    for language in SERVED:
        call, _ = call_of(asked("1", language), Defaults())
        call.check()


@pytest.mark.parametrize(
    "more",
    [
        {"files": {"../a": ""}},
        {"files": {"/etc/a": ""}},
        {"files": {"": ""}},
        {"files": {"a": "no base64!"}},
        {"run_timeout": 0},
        {"run_timeout": 1e9},
    ],
)
def test_what_cannot_be_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        call_of(asked(**more), Defaults())


def test_a_language_of_theirs_that_is_not_served_says_so() -> None:
    with pytest.raises(NotServed, match="lean is not served here; there are python"):
        call_of(asked("", "lean"), Defaults())
    with pytest.raises(msgspec.ValidationError):
        asked("", "cobol")


@pytest.mark.parametrize(
    ("ended", "status", "run", "code"),
    [
        (CallResult(exit_code=0), "Success", "Finished", 0),
        (CallResult(exit_code=3), "Failed", "Finished", 3),
        (CallResult(signal=11), "Failed", "Finished", -11),
        (CallResult(signal=9, limit=Limit.WALL), "Failed", "TimeLimitExceeded", None),
        (CallResult(signal=9, limit=Limit.CPU), "Failed", "TimeLimitExceeded", None),
        (CallResult(signal=9, limit=Limit.MEMORY), "Failed", "Finished", -9),
        (CallResult(exit_code=0, limit=Limit.PROCESSES), "Failed", "Finished", -9),
        (CallResult(exit_code=1, limit=Limit.DISK), "Failed", "Finished", 1),
        (CallResult(start_error="exec: node"), "SandboxError", "Error", None),
    ],
)
def test_how_a_program_ended(ended: CallResult, status: str, run: str, code: int | None) -> None:
    told = wire.answer(ended, {})
    assert (told["status"], told["run_result"]["status"]) == (status, run)
    assert told["run_result"]["return_code"] == code
    assert told["compile_result"] is None
    limit = ended.limit if ended.limit in (Limit.MEMORY, Limit.PROCESSES, Limit.DISK) else ""
    assert told["message"].endswith(limit or ended.start_error or "")


def test_what_did_not_compile_has_not_run() -> None:
    failed = Step(exit_code=1, stderr=b"no ;", usage=CallUsage(wall_s=0.5))
    told = wire.answer(CallResult(compile=failed), {})
    assert (told["status"], told["run_result"]) == ("Failed", None)
    assert told["compile_result"] == {
        "status": "Finished", "execution_time": 0.5, "return_code": 1, "stdout": "", "stderr": "no ;"
    }  # fmt: skip
    slow = wire.answer(CallResult(compile=Step(signal=9, limit=Limit.WALL)), {})
    assert slow["compile_result"]["status"] == "TimeLimitExceeded"
    ran = wire.answer(CallResult(exit_code=0, compile=Step(exit_code=0)), {})
    assert (ran["status"], ran["run_result"]["status"]) == ("Success", "Finished")


def test_files_come_back_under_the_names_they_were_asked_by() -> None:
    told = wire.answer(CallResult(exit_code=0, files={"a": b"\xff"}), {"./a": "a", "b": "b"})
    assert told["files"] == {"./a": base64.b64encode(b"\xff").decode()}


async def answered(path: str, body: bytes, run: Any) -> tuple[int, Any, dict[str, str]]:
    """What the application says to one request."""
    app = build_app(run, Defaults(), "token")
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(),
        "query_string": b"", "headers": [], "root_path": "",
    }  # fmt: skip
    said: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        said.append(message)

    await app(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in said[0]["headers"]}
    return said[0]["status"], json.loads(said[1]["body"]), headers


BODY = json.dumps({"code": "pass", "language": "python"}).encode()


async def test_only_the_token_is_served_and_no_bad_request_runs() -> None:
    calls: list[CallSpec] = []

    async def run(call: CallSpec) -> CallResult:
        calls.append(call)
        return CallResult(exit_code=0)

    assert (await answered("/other/run_code", BODY, run))[0] == 401
    assert (await answered("/run_code", BODY, run))[0] == 404
    status, told, _ = await answered("/token/get_prompts", BODY, run)
    assert (status, "data sets are not" in told["detail"]) == (404, True)
    for body in (b"", b"{", b"[]", b'{"code": 1, "language": "python"}', b"\xff", b"[" * 10000):
        assert (await answered("/token/run_code", body, run))[0] == 422
    assert (await answered("/token/run_code", b" " * (64 * MIB + 1), run))[0] == 413
    lean = json.dumps({"code": "", "language": "lean"}).encode()
    assert (await answered("/token/run_code", lean, run))[1]["status"] == "SandboxError"
    assert not calls
    status, told, _ = await answered("/token/run_code", BODY, run)
    assert (status, told["status"], len(calls)) == (200, "Success", 1)


@pytest.mark.parametrize(
    ("error", "status", "word"),
    [
        (Overloaded("full", limit="function calls", retry_after_s=2.6), 504, "full"),
        (InvalidRequest("wrong"), 422, "wrong"),
        (InvalidRequest("no rustc", lacks="rustc"), 200, "no rustc"),
        (NotFound("no layer"), 200, "no layer"),
        (OutcomeUnknown("lost"), 200, "OutcomeUnknown: lost"),
        (RuntimeError("oops"), 200, "Bug: RuntimeError: oops"),
    ],
)
async def test_a_fault_of_the_platform_is_no_failed_program(
    error: Exception, status: int, word: str
) -> None:
    async def run(_: CallSpec) -> CallResult:
        raise error

    seen, told, headers = await answered("/token/run_code", BODY, run)
    assert seen == status
    assert told.get("message", told.get("detail")) == word
    if status == 200:
        assert (told["status"], told["run_result"]) == ("SandboxError", None)
    if isinstance(error, Overloaded):
        assert headers["retry-after"] == "3"
