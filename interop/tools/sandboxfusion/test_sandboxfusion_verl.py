"""verl's own reward functions against our address, unmodified; torch and ray are not imported."""

from __future__ import annotations

import importlib
import json
import sys
import threading
import types
from importlib.metadata import distribution

import pytest

TRIPLE = "n = int(input())\nprint(n * 3)\n"


@pytest.fixture(scope="module")
def verl():
    """`verl.utils.reward_score.sandbox_fusion`, below parents that import nothing."""
    place = distribution("verl").locate_file("verl")
    name = "verl"
    for part in ("", "utils", "reward_score"):
        name, place = (f"{name}.{part}", place / part) if part else (name, place)
        stub = types.ModuleType(name)
        stub.__path__ = [str(place)]
        sys.modules[name] = stub
    return importlib.import_module("verl.utils.reward_score.sandbox_fusion")


def check(verl, url, code, cases, **more):
    results, told = verl.check_correctness(
        f"{url}/run_code", {"inputs": [one for one, _ in cases], "outputs": [two for _, two in cases]},
        code, **{"timeout": 5, **more},
    )  # fmt: skip
    return results, [one["status"] for one in told]


def test_right_and_wrong_answers(verl, url):
    cases = [("2", "6"), ("5", "15"), ("7", "20")]
    assert check(verl, url, TRIPLE, cases)[0] == [True, True, False]


@pytest.mark.parametrize(
    ("code", "result", "status"),
    [
        ("while True: pass", -3, "timeout"),
        ("import sys; sys.exit(3)", -2, "runtime_error"),
        ("raise ValueError", -2, "runtime_error"),
        ("import os; os.kill(os.getpid(), 11)", -2, "runtime_error"),
        ("x = [b'x' * 1000000 for _ in range(10**6)]", -2, "runtime_error"),
        ("print('wrong')", False, "wrong_answer"),
    ],
)
def test_what_else_a_program_can_be(verl, url, code, result, status):
    seen = check(verl, url, code, [("2", "6")], timeout=2, memory_limit_mb=256)
    assert seen == ([result], [status])


def test_what_does_not_compile(verl, url):
    good = '#include <cstdio>\nint main() { int n; scanf("%d", &n); printf("%d\\n", 3 * n); }'
    assert check(verl, url, good, [("2", "6")], language="cpp", timeout=20)[0] == [True]
    seen = check(verl, url, "int main() {", [("2", "6"), ("3", "9")], language="cpp", timeout=20)
    assert seen[0] == [-4, -4]


def test_functions_are_called_by_name(verl, url):
    code = "class Solution:\n    def both(self, a, b):\n        return [a + b]\n"
    cases = {"inputs": ["1\n2", "3\n4"], "outputs": ["[3]", "[7]"], "fn_name": "both"}
    results, told = verl.check_correctness(f"{url}/run_code", cases, code, timeout=5)
    assert results == [True, True], told


def test_a_score_of_many_cases_at_once(verl, url):
    cases = {"inputs": [str(n) for n in range(64)], "outputs": [str(3 * n) for n in range(64)]}
    answer = f"Here it is:\n```python\n{TRIPLE}```\n"
    score, told = verl.compute_score(
        f"{url}/run_code", threading.Semaphore(16), 1024, answer, json.dumps(cases), timeout=10
    )
    assert score == 1.0, told
    half = f"```python\n{TRIPLE.replace('3', '3 if n < 32 else 4')}```"
    score, _ = verl.compute_score(
        f"{url}/run_code", threading.Semaphore(16), 1024, half, json.dumps(cases), timeout=10
    )
    assert score == 0.5
