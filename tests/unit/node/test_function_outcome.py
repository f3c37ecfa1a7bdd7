"""Which limit ended a call, whose fault an end is, and what languages come to."""

from __future__ import annotations

import re

import pytest

from skerry.backends.api import CellUsage
from skerry.errors import SkerryError
from skerry.guest.api import Outcome
from skerry.node.functions.fetching import to_regex
from skerry.node.functions.languages import RECIPES, missing
from skerry.node.functions.outcome import Ended, Lost, NotStarted, limit_of, step_of
from skerry.spec.function import CompileRunCall, Language
from skerry.spec.function_limits import CallLimits, Limit

LIMITS = CallLimits(disk_bytes=8 << 20)
KILLED = {"signal": 9}
FULL = {"disk_used": 8 << 20}


def ended(outcome: dict[str, object], cut: Limit | None = None, **usage: int) -> Ended:
    return Ended(Outcome(**outcome), CellUsage(**usage), cut, b"", b"")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("end", "limit"),
    [
        (ended({"exit_code": 0}), None),
        (ended({"exit_code": 1}), None),
        (ended(KILLED), None),  # it may have killed itself
        (ended({**KILLED, "cpu_limit": True}), Limit.CPU),
        (ended({**KILLED, "timed_out": True}), Limit.WALL),
        (ended({"exit_code": 0, "timed_out": True}), Limit.WALL),
        (ended(KILLED, oom_kills=1), Limit.MEMORY),
        (ended({**KILLED, "timed_out": True}, oom_kills=1), Limit.MEMORY),
        (ended({"exit_code": 0}, oom_kills=1), Limit.MEMORY),  # a child of its was killed
        (ended({"exit_code": 1}, pids_refused=2), Limit.PROCESSES),
        (ended({"exit_code": 0}, pids_refused=2), Limit.PROCESSES),
        (ended({"exit_code": 1, **FULL}), Limit.DISK),
        (ended({"exit_code": 0, **FULL}), None),
        (ended({"exit_code": 1, "disk_used": 1 << 20}), None),
        (ended({**KILLED, "cancelled": True}, cut=Limit.OUTPUT), Limit.OUTPUT),
        (ended({**KILLED, "cpu_limit": True}, cut=Limit.OUTPUT), Limit.OUTPUT),
    ],
)
def test_limit_is_named_by_what_was_seen_from_outside(end: Ended, limit: Limit | None) -> None:
    assert limit_of(end, LIMITS) is limit


def test_program_that_is_missing_is_a_result() -> None:
    step = step_of(ended({"error_step": "exec", "errno": 2}), LIMITS, "gcc")
    assert step.start_error == "exec: No such file or directory: gcc"
    assert (step.exit_code, step.signal) == (None, None)


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"error_step": "zygote", "pid": 7}, Lost),
        ({"error_step": "zygote"}, NotStarted),
        ({"error_step": "fork"}, NotStarted),
        ({"error_step": "cell"}, NotStarted),
    ],
)
def test_fault_of_the_platform_is_no_result(
    how: dict[str, object], error: type[SkerryError]
) -> None:
    with pytest.raises(error):
        step_of(ended({**how, "errno": 12}), LIMITS, "x")


def test_usage_is_what_agent_and_groups_tell() -> None:
    outcome = {"exit_code": 0, "start_ns": 10**9, "end_ns": 3 * 10**9, "cpu_us": 1_500_000}
    usage = step_of(ended(outcome, memory_peak_bytes=7), LIMITS, "x", queued_s=0.25).usage
    assert (usage.wall_s, usage.cpu_s, usage.peak_memory_bytes) == (2.0, 1.5, 7)
    assert usage.queued_s == 0.25


@pytest.mark.parametrize(
    ("language", "sources", "compiling", "running"),
    [
        (
            Language.C,
            {"main.c": "", "util.c": "", "util.h": ""},
            "gcc -O2 -Wall -o a.out ./main.c ./util.c -lm",
            "./a.out x",
        ),
        (Language.CPP, {"a.cc": ""}, "g++ -O2 -Wall -o a.out ./a.cc", "./a.out x"),
        (Language.FORTRAN, {"a.f90": ""}, "gfortran -O2 -Wall -o a.out ./a.f90", "./a.out x"),
        (Language.GO, {"main.go": ""}, "go build -Wall -o a.out ./main.go", "./a.out x"),
        (
            Language.RUST,
            {"main.rs": "", "other.rs": ""},
            "rustc --crate-name main -Wall -o a.out ./main.rs",
            "./a.out x",
        ),
        (
            Language.JAVA,
            {"Main.java": "package a.b;\nclass Main {}"},
            "javac -J-Xmx358m -J-XX:+UseSerialGC -d . -Wall ./Main.java",
            "java -Xmx358m -XX:+UseSerialGC -cp . a.b.Main x",
        ),
    ],
)
def test_languages_are_compiled_and_run_with_their_own_tools(
    language: Language, sources: dict[str, str], compiling: str, running: str
) -> None:
    call = CompileRunCall(language=language, sources=sources, flags=("-Wall",), args=("x",))
    recipe, limits = RECIPES[language], CallLimits()
    assert " ".join((recipe.compilers[0], *recipe.compile(call, limits))) == compiling
    assert " ".join(recipe.run(call, limits)) == running


def test_every_language_has_a_recipe_and_says_what_it_lacks() -> None:
    assert set(RECIPES) == set(Language)
    assert "no rustc" in missing(Language.RUST)
    assert "neither gcc nor cc nor clang" in missing(Language.C)


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("*.txt", "a.txt", True),
        ("*.txt", "d/a.txt", False),
        ("**/*.txt", "d/e/a.txt", True),
        ("**/*.txt", "a.txt", True),
        ("d/**", "d/e/f", True),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("[a-c]x", "bx", True),
        ("[!a-c]x", "bx", False),
        ("[!a-c]x", "/x", False),
        ("a[", "a[", True),
        ("a.b", "axb", False),
        ("[]]", "]", True),
        ("*", "line\nfeed", True),
    ],
)
def test_patterns_match_within_names_and_stars_cross_directories(
    pattern: str, name: str, matches: bool
) -> None:
    assert bool(re.fullmatch(to_regex(pattern), name, re.DOTALL)) is matches
