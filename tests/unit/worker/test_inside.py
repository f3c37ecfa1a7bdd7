"""The programs inside the verifying sandbox, part by part (whole in `tests/security`)."""

from __future__ import annotations

import errno
import gc
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from skerry.worker.inside import collect, verifier


def order(top: Path, **more: Any) -> dict[str, Any]:
    (top / "tests").mkdir(exist_ok=True)
    return {
        "workdir": str(top),
        "fail_to_pass": ["tests/test_a.py::test_x"],
        "sentinels": True,
    } | more


def test_sentinels_are_different_each_time_and_lie_beside_the_tests(tmp_path: Path) -> None:
    first, second = verifier.Sentinels(order(tmp_path)), verifier.Sentinels(order(tmp_path))
    assert not set(first.expected) & set(second.expected)
    assert sorted(set(first.expected.values())) == ["failed", "passed"]
    for path in first.files:
        assert Path(path).parent == tmp_path / "tests"
        compile(Path(path).read_text(), path, "exec")


def test_sentinels_do_what_they_are_expected_to(tmp_path: Path) -> None:
    sentinels = verifier.Sentinels(order(tmp_path))
    spaces = {}
    for path in sentinels.files:
        spaces[Path(path).name] = space = {}
        exec(compile(Path(path).read_text(), path, "exec"), space)  # our own text
    for name, expected in sentinels.expected.items():
        parts = name.split("::")
        space = spaces[Path(parts[0]).name]
        run = getattr(space[parts[1]](), parts[2]) if len(parts) == 3 else space[parts[1]]
        try:
            run()
            seen = "passed"
        except (AssertionError, ValueError):
            seen = "failed"
        assert seen == expected


def test_a_sentinel_that_lies_is_named_and_removed(tmp_path: Path) -> None:
    sentinels = verifier.Sentinels(order(tmp_path))
    honest = dict(sentinels.expected)
    outcomes = honest | {"tests/test_a.py::test_x": "passed"}
    assert sentinels.judge(outcomes, 1) == []
    assert list(outcomes) == ["tests/test_a.py::test_x"]
    assert sentinels.judge(dict.fromkeys(honest, "passed"), 0) == [
        "a test that must have failed is reported as passed"
    ]
    assert sentinels.judge(dict.fromkeys(honest, "failed"), 1) == [
        "a test that must have passed is reported as failed"
    ]


def test_sentinels_that_did_not_run_lie_unless_nothing_ran(tmp_path: Path) -> None:
    sentinels = verifier.Sentinels(order(tmp_path))
    assert len(sentinels.judge({}, 0)) == 2
    assert sentinels.judge({}, 2) == []


@pytest.mark.parametrize(
    ("raw", "forged"),
    [
        (b"", False),
        (b'token {"status": 0}\n', False),
        (b'{"status": 0}\n', True),
        (b'token {"status": 0}\ntoken {"status": 0}\n', True),
        (b'x\ntoken {"status": 0}\n', True),
    ],
)
def test_only_the_test_process_may_write_to_the_result_channel(raw: bytes, forged: bool) -> None:
    message, lines = verifier.read_result(raw, "token")
    assert bool(lines) is forged
    assert (message is None) == (forged or not raw)


def test_making_room_never_leaves_the_workdir(tmp_path: Path) -> None:
    workdir = tmp_path / "w"
    (workdir / "d").mkdir(parents=True)
    (workdir / "d" / "x").write_text("x")
    (workdir / "f").write_text("x")
    (tmp_path / "out").write_text("x")
    (workdir / "l").symlink_to(tmp_path / "out")
    (workdir / "dir").symlink_to("d")
    names = [str(workdir / name) for name in ("d", "f", "l", "none")]
    verifier.clear(
        {"workdir": str(workdir), "remove": names, "directories": [str(workdir / "dir")]}
    )
    assert list(workdir.iterdir()) == []
    assert (tmp_path / "out").read_text() == "x"
    for path in (str(tmp_path / "out"), f"{workdir}/../out"):
        with pytest.raises(ValueError, match="not beneath"):
            verifier.clear({"workdir": str(workdir), "remove": [path], "directories": []})


@pytest.fixture
def machinery(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("_pytest.demo")
    exec(
        "def plain(a=1): return a\n"
        "class Kind:\n"
        "    def method(self): pass\n"
        "    @classmethod\n"
        "    def made(cls): pass\n"
        "    @property\n"
        "    def value(self): pass\n",
        module.__dict__,
    )
    monkeypatch.setitem(__import__("sys").modules, "_pytest.demo", module)
    monkeypatch.setattr(collect, "GUARDED", ())
    return module


def bend_function(module: Any) -> None:
    module.plain = lambda a=1: a


def bend_code(module: Any) -> None:
    module.plain.__code__ = (lambda a=1: 2).__code__


def bend_defaults(module: Any) -> None:
    module.plain.__defaults__ = (2,)


def bend_class(module: Any) -> None:
    module.Kind = type("Kind", (module.Kind,), {})


def bend_method(module: Any) -> None:
    module.Kind.method = lambda self: None


def bend_classmethod(module: Any) -> None:
    module.Kind.made = classmethod(lambda cls: None)


def bend_property(module: Any) -> None:
    module.Kind.value = property(lambda self: None)


def remove(module: Any) -> None:
    del module.Kind.method


@pytest.mark.parametrize(
    "bend",
    [
        bend_function, bend_code, bend_defaults, bend_class, bend_method, bend_classmethod,
        bend_property, remove,
    ],
)  # fmt: skip
def test_a_bent_part_of_the_machinery_is_named(machinery: types.ModuleType, bend: Any) -> None:
    fingerprint = collect.Fingerprint()
    fingerprint._note_module("_pytest.demo", machinery)
    assert fingerprint.changed() == ""
    bend(machinery)
    assert fingerprint.changed().startswith("_pytest.demo.")


def test_import_roots_come_behind_the_standard_library(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setattr(sys, "path", ["/usr/lib/python3.11", "/usr/lib/python3/dist-packages"])
    collect.search_path("/testbed", ["src", "."])
    assert sys.path[:3] == ["/usr/lib/python3.11", "/testbed/src", "/testbed"]


def test_a_file_beneath_an_argument_is_not_named_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").mkdir()
    assert collect.uncovered(["-q", "tests"], ["tests/test_x.py"]) == []
    assert collect.uncovered(["tests/test_a.py"], ["tests/test_x.py"]) == ["tests/test_x.py"]


def test_sentinels_take_names_that_nobody_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentinels = verifier.Sentinels(order(tmp_path))
    names = iter(["taken", "dangling", "free"])
    (tmp_path / "tests/test_taken.py").write_text("kept")
    (tmp_path / "tests/test_dangling.py").symlink_to("nowhere")
    monkeypatch.setattr(sentinels, "_name", lambda: next(names))
    assert sentinels._free(str(tmp_path), "tests") == "tests/test_free.py"


@pytest.mark.parametrize(
    ("number", "step"), [(errno.EDQUOT, "ran"), (errno.ENOSPC, "setup"), (errno.EIO, "setup")]
)
def test_a_quota_that_the_submission_filled_is_no_fault_of_the_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, step: str
) -> None:
    def full(config: dict[str, Any]) -> None:
        raise OSError(number, "no room")

    monkeypatch.setattr(verifier, "Sentinels", full)
    assert verifier.verify(order(tmp_path))["step"] == step


LIARS = {
    "text": "class Liar(str):\n    def __eq__(self, other): return True\n    __hash__ = str.__hash__",
    "number": "class Liar(int):\n    __eq__ = lambda self, other: 1\n    __hash__ = int.__hash__",
    "plain": "class Liar:\n    def __eq__(self, other): return isinstance(other, (str, int))",
    "only new by its own ways": (
        "class Liar:\n    def __new__(cls, key): return object.__new__(cls)\n"
        "    def __eq__(self, other): return True\nheld = Liar(1)"
    ),
    "callable": (
        "class Yes:\n    def __call__(self, other): return True\n"
        "class Liar:\n    __eq__ = Yes()\n    __hash__ = object.__hash__"
    ),
    "from text": "exec('class Liar:\\n    def __eq__(self, other): return True', globals())",
}
HONEST = {
    "by value": (
        "class Point:\n    def __init__(self): self.x = 1\n"
        "    def __eq__(self, other): return other == self.x"
    ),
    "a data class": "import dataclasses\n@dataclasses.dataclass\nclass Point:\n    x: int = 1",
    "raises": "class Odd:\n    def __eq__(self, other): raise RuntimeError",
    "none to be had": (
        "class Odd:\n    def __new__(cls): raise TypeError\n    def __eq__(self, other): return True"
    ),
    "an ANY of the library": "from unittest.mock import ANY",
}


def imported(top: Path, text: str) -> types.ModuleType:
    (top / "source.py").write_text(text)
    module = types.ModuleType("source")
    sys.modules["source"] = module
    exec(compile(text, str(top / "source.py"), "exec"), vars(module))  # our own text
    return module


def judged(top: Path, text: str) -> list[str]:
    config = {"watched": [], "extra": [], "workdir": str(top), "test_paths": ["tests"]}
    collector = collect.Collector(config, collect.Fingerprint())
    module = imported(top, text)
    collector.check_equality()
    del module, sys.modules["source"]
    gc.collect()
    return collector.forged


@pytest.mark.parametrize("name", LIARS)
def test_an_object_that_equals_everything_is_named(tmp_path: Path, name: str) -> None:
    assert judged(tmp_path, LIARS[name]) == ["an object of Liar equals everything"]


@pytest.mark.parametrize("name", HONEST)
def test_objects_with_an_equality_of_their_own_are_not(tmp_path: Path, name: str) -> None:
    assert judged(tmp_path, HONEST[name]) == []


def test_matchers_of_the_tests_may_equal_everything(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    config = {"watched": [], "extra": [], "workdir": str(tmp_path), "test_paths": ["tests"]}
    module = imported(tmp_path / "tests", LIARS["plain"])
    collector = collect.Collector(config, collect.Fingerprint())
    collector.check_equality()
    assert collector.forged == []
    assert sys.modules.pop("source") is module


def test_what_only_says_to_be_a_class_stops_no_look_for_liars() -> None:
    class Lying:
        __slots__ = ("x",)  # so it has no __dict__, which every class has

        @property
        def __class__(self) -> Any:
            return type

    class Sentinel(type):  # as h11 has it: its classes are their own classes
        def __new__(cls, name: str, bases: Any, namespace: Any) -> Any:
            made = super().__new__(cls, name, bases, namespace)
            made.__class__ = made  # type: ignore[assignment]
            return made

    made = (Lying(), Sentinel("DONE", (Sentinel,), {}))
    assert all(isinstance(one, type) for one in made)
    assert collect.equals_everything(lambda path: False) == ""
