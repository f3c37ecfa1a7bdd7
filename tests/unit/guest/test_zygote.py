"""How a zygote is started, and what is made of its words."""

from __future__ import annotations

import ast
import json
import struct
from importlib import resources

import pytest

from skerry.errors import InvalidRequest
from skerry.guest import zygote

INSIDE = resources.files("skerry.guest.zygote") / "inside"


@pytest.mark.parametrize("name", ["call", "start"])
def test_program_for_inside_is_python_3_7(name: str) -> None:
    ast.parse((INSIDE / f"{name}.py").read_text(), feature_version=(3, 7))
    with pytest.raises(SyntaxError):  # that such a check can fail
        ast.parse("if (x := 1): pass", feature_version=(3, 7))


def test_start_puts_everything_into_one_file_that_begins_with_the_extension() -> None:
    begun = zygote.start(
        "/usr/bin/python3", ["json", "a.b"], library=b"\x7fELF...", allow=["threads"]
    )
    assert begun.args[:-1] == ("/usr/bin/python3", "-s", "-B", "-c")
    sizes = struct.unpack("<4Q", begun.script[-32:])
    assert sum(sizes) + 32 == len(begun.script)
    assert begun.script.startswith(b"\x7fELF...")
    config = begun.script[sum(sizes[:3]) : sum(sizes)]
    assert json.loads(config) == {"modules": ["json", "a.b"], "allow": ["threads"]}
    assert begun.script[sizes[0] :].startswith((INSIDE / "call.py").read_bytes())


def test_start_refuses_an_allowance_that_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="only"):
        zygote.start("python3", [], library=b"", allow=["mounts"])


def test_payload_that_is_longer_than_a_start_may_be_is_the_callers_fault() -> None:
    """Else each try would fail as if the platform had, and be made again."""
    text = "\u00e9" * (zygote.PAYLOAD_BYTES_MAX // 2 - 200)  # two bytes each, not six
    assert len(zygote.payload("", "main", [text])) <= zygote.PAYLOAD_BYTES_MAX
    for code, args in (("\n" * (zygote.PAYLOAD_BYTES_MAX // 2), []), ("", [text, "x" * 400])):
        with pytest.raises(InvalidRequest, match="pass data as files"):
            zygote.payload(code, "main", args)


def test_payload_keeps_half_of_a_surrogate_pair() -> None:
    """JSON holds it, so arguments may."""
    assert json.loads(zygote.payload("", "main", ["\ud800"]))["args"] == ["\ud800"]


def test_payload_refuses_arguments_that_json_cannot_hold() -> None:
    with pytest.raises(ValueError, match="JSON"):
        zygote.payload("", "main", [float("nan")])
    with pytest.raises(TypeError):
        zygote.payload("", "main", [b"x"])


def test_answer_with_a_value_is_kept_as_it_is() -> None:
    for value in (None, 1 << 200, -1.5, "\u00e4", [1, {"a": []}], {"error": 1}):
        answer = zygote.read_answer(json.dumps({"value": value}).encode())
        assert answer == zygote.Answer(returned=True, value=value)
    assert zygote.read_answer(b"") == zygote.Answer()


def test_answer_with_an_error_is_cut_to_a_bound() -> None:
    told = {"kind": "exception", "type": "E" * 200_000, "message": "m", "traceback": "t"}
    answer = zygote.read_answer(json.dumps({"error": told}).encode())
    assert answer.error is not None
    assert (len(answer.error.type), answer.error.message) == (1 << 17, "m")


@pytest.mark.parametrize(
    "data",
    [
        b"x", b"[]", b"{}", b"1", b'{"value":NaN}', b'{"value":1}{"value":2}', b"\xff", b'{"value":1',
        b'{"error":{"kind":"exception"}}', b'{"error":{"kind":"?","type":"","message":""}}',
        b'{"error":{"kind":"exit","type":1,"message":""}}', b'{"value":1,"error":1}',
        b'{"value":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"value":' + b"9" * 100_000 + b"}",
        b'{"value":"\\ud800"}', b'{"value":{"\\udfff":1}}', b'{"value":1e999}',
        b'{"error":{"kind":"exception","type":"\\ud800","message":""}}',
        '{"value":1}'.encode("utf-16"), b'\xef\xbb\xbf{"value":1}',
    ],
)  # fmt: skip
def test_answer_that_is_none_of_ours_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="answer"):
        zygote.read_answer(data)


def test_report_says_what_is_ready_or_what_is_to_blame() -> None:
    ready = {"python": "3.11.2", "seconds": {"json": 0.1}, "threads": 2, "held": ["9 /x"]}
    assert zygote.read_report(json.dumps({"ready": ready}).encode()) == zygote.Report(
        "3.11.2", {"json": 0.1}, 2, ["9 /x"]
    )
    error = {
        "kind": "import",
        "module": "no",
        "type": "ImportError",
        "message": "m",
        "traceback": "t",
    }
    report = zygote.read_report(json.dumps({"error": error}).encode())
    assert report.error == zygote.Failure("import", "ImportError", "m", "t", "no")


@pytest.mark.parametrize("data", [b"", b"{}", b'{"ready":1}', b"\xff\xff", b'{"error":{"kind":1}}'])
def test_report_that_is_none_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="report"):
        zygote.read_report(data)
