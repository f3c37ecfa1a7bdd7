"""Bounds of function calls: what a hostile client may ask for, and what makes two calls share a pool."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from skerry.errors import InvalidRequest
from skerry.spec import function
from skerry.spec.device import DeviceClaim, DeviceMode
from skerry.spec.function import (
    CallKind,
    CallSpec,
    CompileRunCall,
    Environment,
    InputFile,
    Language,
    ProgramCall,
    PythonCall,
    ScriptCall,
)
from skerry.spec.function_limits import COMPILE_LIMITS, CallLimits

SQUARE = PythonCall(code="def main(x): return x*x", args=(7,))

GOOD: list[CallSpec] = [
    CallSpec(kind=SQUARE),
    CallSpec(kind=PythonCall(code="print(1)", entry=None, args=("a", "b"))),
    CallSpec(kind=PythonCall(code="", args=({"a": [None, True, 1.5, "x", -1]},))),
    CallSpec(kind=ScriptCall(source="echo hi", interpreter=("bash", "-e"), args=("a",))),
    CallSpec(kind=ProgramCall(argv=("./a.sh",)), files={"a.sh": InputFile(text="é")}),
    CallSpec(kind=CompileRunCall(language=Language.C, sources={"a/b.c": "int main(){}"})),
    CallSpec(kind=SQUARE, fetch=("out/*.txt", "**/a[0-9]?"), job="a", priority=-10, wait_s=0),
    CallSpec(kind=SQUARE, device=DeviceClaim(name="h100.mig")),
    CallSpec(kind=SQUARE, device=DeviceClaim(mode=DeviceMode.SHARED, share=0.25)),
    CallSpec(
        kind=SQUARE,
        environment=Environment(image="a", layers=("toolkit/b:1",), modules=("numpy", "os.path")),
    ),
]

BAD_KINDS: list[tuple[str, CallKind]] = [
    ("code", PythonCall(code="x" * (function.PYTHON_BYTES_MAX + 1))),
    ("code: holds a lone surrogate", PythonCall(code="\ud800")),
    ("entry", PythonCall(code="", entry="a.b")),
    ("entry", PythonCall(code="", entry="")),
    ("a main program", PythonCall(code="", entry=None, args=(1,))),
    ("a main program", PythonCall(code="", entry=None, kwargs={"a": "b"})),
    ("args has a bytes", PythonCall(code="", args=(b"x",))),
    ("kwargs has a key", PythonCall(code="", kwargs={"a": {1: 2}})),
    ("not finite", PythonCall(code="", args=([math.nan],))),
    ("64 bits", PythonCall(code="", args=(1 << 64,))),
    ("code and args", PythonCall(code="", args=("x" * function.PYTHON_BYTES_MAX,))),
    ("interpreter", ScriptCall(source="", interpreter=())),
    ("NUL", ScriptCall(source="", args=("a\0",))),
    ("argv", ProgramCall(argv=())),
    ("argv", ProgramCall(argv=("",))),
    ("words", ProgramCall(argv=("a",) * (function.WORDS_MAX + 1))),
    ("argv: ", ProgramCall(argv=("a", "x" * (1 << 20)))),
    ("sources", CompileRunCall(language=Language.C, sources={})),
    ("sources", CompileRunCall(language=Language.C, sources={"../a.c": ""})),
    ("NUL", CompileRunCall(language=Language.C, sources={"a.c": ""}, flags=("\0",))),
    (
        "wall",
        CompileRunCall(
            language=Language.C, sources={"a.c": ""}, compile_limits=CallLimits(wall_s=0)
        ),
    ),
]

BAD_FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("files", {"files": {"/etc/passwd": InputFile()}}),
    ("files", {"files": {"a/../b": InputFile()}}),
    ("files", {"files": {"a//b": InputFile()}}),
    ("files", {"files": {"a\0": InputFile()}}),
    ("files", {"files": {"": InputFile()}}),
    ("files", {"files": {"x" * 1001: InputFile()}}),
    ("both", {"files": {"a": InputFile(text="a", data=b"b")}}),
    ("beneath", {"files": {"a": InputFile(), "a/b/c": InputFile()}}),
    ("files", {"files": {str(n): InputFile() for n in range(function.FILES_MAX + 1)}}),
    ("stream them", {"stdin": bytes(function.INLINE_BYTES_MAX + 1)}),
    ("stream them", {"files": {"a": InputFile(data=bytes(function.INLINE_BYTES_MAX + 1))}}),
    ("env", {"env": {"a=b": ""}}),
    ("fetch", {"fetch": ("/etc/*",)}),
    ("fetch", {"fetch": ("a",) * (function.FETCH_MAX + 1)}),
    ("wait", {"wait_s": math.nan}),
    ("wait", {"wait_s": -1.0}),
    ("job", {"job": "A B"}),
    ("priority", {"priority": 11}),
    ("device", {"device": DeviceClaim(name="/dev/nvidia0")}),
    ("exclusive", {"device": DeviceClaim(share=0.5)}),
    ("shared", {"device": DeviceClaim(mode=DeviceMode.SHARED)}),
    ("shared", {"device": DeviceClaim(mode=DeviceMode.SHARED, share=0.0)}),
    ("shared", {"device": DeviceClaim(mode=DeviceMode.SHARED, share=math.nan)}),
    ("layer name", {"environment": Environment(layers=("b",))}),
    ("layers", {"environment": Environment(layers=("toolkit/b",) * 33)}),
    ("layer name", {"environment": Environment(image="../a")}),
    ("modules", {"environment": Environment(modules=("os; import sys",))}),
    ("modules", {"environment": Environment(modules=("a",) * 65)}),
    ("python", {"environment": Environment(python="bin/python -c")}),
]

BAD_LIMITS: list[tuple[str, CallLimits]] = [
    ("wall", CallLimits(wall_s=math.inf)),
    ("wall", CallLimits(wall_s=3601)),
    ("cpu", CallLimits(cpu_s=0)),
    ("memory", CallLimits(memory_bytes=1)),
    ("output", CallLimits(output_bytes=-1)),
    ("output", CallLimits(output_bytes=1 << 30)),
    ("processes", CallLimits(processes=0)),
    ("disk", CallLimits(disk_bytes=0)),
    ("open_files", CallLimits(open_files=3)),
]


@pytest.mark.parametrize("spec", GOOD, ids=range(len(GOOD)))
def test_what_is_in_bounds_passes_and_survives_both_encodings(spec: CallSpec) -> None:
    assert spec.check() is spec
    assert msgspec.json.decode(msgspec.json.encode(spec), type=CallSpec) == spec
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=CallSpec) == spec


@pytest.mark.parametrize(("what", "kind"), BAD_KINDS, ids=range(len(BAD_KINDS)))
def test_a_kind_out_of_bounds_is_refused(what: str, kind: CallKind) -> None:
    with pytest.raises(InvalidRequest, match=what):
        CallSpec(kind=kind).check()


@pytest.mark.parametrize(("what", "fields"), BAD_FIELDS, ids=range(len(BAD_FIELDS)))
def test_a_field_out_of_bounds_is_refused(what: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=what):
        CallSpec(kind=SQUARE, **fields).check()


@pytest.mark.parametrize(("what", "limits"), BAD_LIMITS, ids=range(len(BAD_LIMITS)))
def test_a_limit_out_of_bounds_is_refused(what: str, limits: CallLimits) -> None:
    with pytest.raises(InvalidRequest, match=what):
        CallSpec(kind=SQUARE, limits=limits).check()


def test_streamed_output_may_be_long() -> None:
    CallSpec(kind=SQUARE, limits=CallLimits(output_bytes=1 << 40)).check(streamed=True)


def test_processor_time_is_limited_by_wall_time_unless_said_otherwise() -> None:
    assert CallLimits(wall_s=3).cpu_limit_s == 3
    assert CallLimits(wall_s=3, cpu_s=1).cpu_limit_s == 1
    assert COMPILE_LIMITS.check().memory_bytes > CallLimits().memory_bytes


def test_environments_of_one_meaning_share_a_key() -> None:
    assert Environment().key() == Environment(image="base/debian:12").key()
    others = {
        Environment(),
        Environment(image="a"),
        Environment(layers=("toolkit/b",)),
        Environment(modules=("numpy",)),
        Environment(modules=("numpy", "os")),
        Environment(modules=("os", "numpy")),
        Environment(python="/usr/bin/python3"),
    }
    assert len({one.key() for one in others}) == len(others)
    assert (
        Environment(layers=("toolkit/b",)).key() == Environment(layers=("toolkit/b:latest",)).key()
    )
