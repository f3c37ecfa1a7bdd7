"""Options of function calls: what they make, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from skerry.errors import InvalidRequest
from skerry.sdk.function_options import call_of, files_of
from skerry.spec.device import DeviceClaim
from skerry.spec.function import (
    CallSpec,
    CompileRunCall,
    Environment,
    InputFile,
    Isolation,
    Language,
    ProgramCall,
    PythonCall,
    ScriptCall,
)
from skerry.spec.function_limits import COMPILE_LIMITS, CallLimits


def test_options_make_the_spec_that_they_name() -> None:
    spec = call_of(
        "python",
        code="def f(x): return x",
        entry="f",
        args=[1],
        kwargs={"a": 2},
        image="mine",
        layers=["toolkit/a"],
        modules=["json"],
        wall=2,
        cpu=1,
        memory="64MiB",
        output="2MiB",
        disk="8MiB",
        processes=9,
        open_files=99,
        env={"A": "b"},
        fetch="out/*",
        isolation="container",
        idempotent=True,
        wait=5,
        job="j",
        priority=3,
        device="gpu",
    ).check()
    assert spec == CallSpec(
        kind=PythonCall(code="def f(x): return x", entry="f", args=(1,), kwargs={"a": 2}),
        environment=Environment(image="mine", layers=("toolkit/a",), modules=("json",)),
        limits=CallLimits(
            wall_s=2,
            cpu_s=1,
            memory_bytes=64 << 20,
            output_bytes=2 << 20,
            disk_bytes=8 << 20,
            processes=9,
            open_files=99,
        ),
        env={"A": "b"},
        fetch=("out/*",),
        isolation=Isolation.CONTAINER,
        idempotent=True,
        wait_s=5,
        job="j",
        priority=3,
        device=DeviceClaim(),
    )


def test_each_kind_has_its_own() -> None:
    assert call_of("script", source="x", interpreter=["bash", "-e"]).kind == ScriptCall(
        source="x", interpreter=("bash", "-e")
    )
    assert call_of("script", source="x", interpreter="perl").kind == ScriptCall(
        source="x", interpreter=("perl",)
    )
    assert call_of("program", argv=["ls", "-l"]).kind == ProgramCall(argv=("ls", "-l"))
    made = call_of(
        "compile_run", language="c", sources="int main;", compile_limits={"memory": "1GiB"}
    ).kind
    assert made == CompileRunCall(
        language=Language.C,
        sources={"main.c": "int main;"},
        compile_limits=CallLimits(
            wall_s=COMPILE_LIMITS.wall_s,
            memory_bytes=1 << 30,
            processes=COMPILE_LIMITS.processes,
        ),
    )
    java = call_of("compile_run", language="java", sources="class Main {}").kind
    assert isinstance(java, CompileRunCall)
    assert list(java.sources) == ["Main.java"]


@pytest.mark.parametrize(
    ("what", "kind", "options"),
    [
        ("none of python, script", "lisp", {}),
        ("code: a call of kind 'python' needs it", "python", {}),
        ("argv: a call of kind 'python' has none", "python", {"code": "", "argv": ["a"]}),
        ("args is a list", "python", {"code": "", "args": "ab"}),
        ("modules is a list", "python", {"code": "", "modules": "numpy"}),
        ("argv is a list", "program", {"argv": "ls -l"}),
        ("language must be one of", "compile_run", {"sources": "", "language": "cobol"}),
        ("isolation must be one of", "python", {"code": "", "isolation": "vm"}),
        ("memory", "python", {"code": "", "memory": "much"}),
        ("wall: expected", "python", {"code": "", "wall": "3"}),
        ("code: expected", "python", {"code": 3}),
        (
            "limits: 'files' is none",
            "compile_run",
            {"sources": "", "language": "c", "compile_limits": {"files": 3}},
        ),
    ],
)
def test_what_is_wrong_is_refused_by_name(what: str, kind: str, options: Any) -> None:
    with pytest.raises(InvalidRequest, match=what):
        call_of(kind, **options)


def test_an_option_that_there_is_not_is_told_as_any_call_tells_it() -> None:
    with pytest.raises(TypeError, match="'memroy'"):
        call_of("python", code="", memroy=1)  # type: ignore[call-arg]


def test_files_are_contents_or_paths(tmp_path) -> None:
    contents, paths = files_of({"a": b"1", "b": "2", "c": tmp_path})
    assert contents == {"a": InputFile(data=b"1"), "b": InputFile(text="2")}
    assert paths == {"c": tmp_path}
    assert files_of(str(tmp_path)) == ({}, {"": tmp_path})
    with pytest.raises(InvalidRequest, match="'a' is neither"):
        files_of({"a": 3})  # type: ignore[dict-item]
