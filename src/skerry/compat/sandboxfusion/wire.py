"""What goes over SandboxFusion's wire: a request with a program, and how its steps ended."""

from __future__ import annotations

import base64
from typing import Any, Literal, TypeAlias

import msgspec

from skerry.spec.function_limits import Limit
from skerry.spec.function_result import CallResult, Step

# All that its clients may name. What of these is served is said in `languages`.
Language: TypeAlias = Literal[
    "python", "cpp", "nodejs", "go", "go_test", "java", "php", "csharp", "bash", "typescript", "sql",
    "rust", "cuda", "lua", "R", "perl", "D_ut", "ruby", "scala", "julia", "pytest", "junit",
    "kotlin_script", "jest", "verilog", "python_gpu", "lean", "swift", "racket",
]  # fmt: skip
KILLED = -9  # what a program ended by a limit other than time has as its return code


class RunCode(msgspec.Struct):
    """Of POST /run_code. Files are base64 by path; None is no file."""

    code: str
    language: Language
    stdin: str | None = None
    compile_timeout: float = 10.0
    run_timeout: float = 10.0
    memory_limit_mb: int = msgspec.field(default=-1, name="memory_limit_MB")  # below 1: none given
    files: dict[str, str | None] = {}
    fetch_files: list[str] = []
    args: list[str] = []  # for pytest


def answer(result: CallResult, wanted: dict[str, str]) -> dict[str, Any]:
    """Returns the answer; `wanted` has the names under which fetched files were asked for."""
    steps = []
    compiled = ran = None
    if result.compile is not None:
        compiled = step(result.compile)
        steps.append(result.compile)
    if result.compile is None or result.compile.ok:
        ran = step(result)
        steps.append(result)
    return {
        **verdict(steps),
        "compile_result": compiled,
        "run_result": ran,
        "executor_pod_name": result.worker or None,
        "files": {
            name: base64.b64encode(result.files[path]).decode()
            for name, path in wanted.items()
            if path in result.files
        },
    }


def step(ended: Step) -> dict[str, Any]:
    """Returns how one step ended, as SandboxFusion says it.

    A signal is a negative return code. A program that is not in the image is an error of the sandbox.
    """
    code: int | None = None
    if ended.start_error is not None:
        status = "Error"
    elif ended.limit in (Limit.WALL, Limit.CPU):
        status = "TimeLimitExceeded"
    else:
        status = "Finished"
        code = ended.exit_code if ended.signal is None else -ended.signal
        if ended.limit is not None and not code:
            code = KILLED
    return {
        "status": status,
        "execution_time": ended.usage.wall_s,
        "return_code": code,
        "stdout": ended.text,
        "stderr": ended.error_text if ended.start_error is None else ended.start_error,
    }


def verdict(steps: list[Step]) -> dict[str, str]:
    """Returns status and message of the whole; the message names a limit that SandboxFusion has not."""
    for one in steps:
        if one.start_error is not None:
            return {"status": "SandboxError", "message": one.start_error}
    limits = [one.limit for one in steps if one.limit is not None]
    if limits or not all(one.exit_code == 0 for one in steps):
        named = [name for name in limits if name not in (Limit.WALL, Limit.CPU)]
        return {"status": "Failed", "message": f"over its limit: {named[0]}" if named else ""}
    return {"status": "Success", "message": ""}


def failure(message: str) -> dict[str, Any]:
    """Returns the answer to a request that was good, and could not be served."""
    return {
        "status": "SandboxError",
        "message": message,
        "compile_result": None,
        "run_result": None,
        "executor_pod_name": None,
        "files": {},
    }
