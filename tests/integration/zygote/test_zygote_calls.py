"""What a call is to its code: an interpreter like any other, whose value or error comes back."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from zygote_stand import Warden, Zygote, pythons

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.getuid() != 0, reason="needs root")]

# As an interpreter is expected to be, whatever its version.
WORLD = """
import asyncio, atexit, inspect, multiprocessing, os, pickle, subprocess, sys, threading, dataclasses

@dataclasses.dataclass
class Point:
    x: int

def double(x):
    return 2 * x

async def later(x):
    await asyncio.sleep(0)
    return x

def main(x):
    seen = {"input": input(), "line": sys.stdin.readline(), "argv": len(sys.argv)}
    with multiprocessing.Pool(2) as pool:
        seen["pool"] = pool.map(double, [x, 2])
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        seen["spawn"] = pool.map(double, [x])
    seen["child"] = subprocess.check_output(["/bin/echo", "hi"]).decode()
    seen["async"] = asyncio.run(later(x))
    box = []
    thread = threading.Thread(target=box.append, args=(x,))
    thread.start()
    thread.join()
    seen["thread"] = box
    seen["pickle"] = pickle.loads(pickle.dumps(Point(x))) == Point(x)
    seen["source"] = inspect.getsource(double).splitlines()[0]
    seen["name"] = __name__, sys.modules["__main__"].double is double
    seen["home"] = os.getcwd() == sys.path[0]
    seen["dev"] = os.path.exists("/dev/stdout") and os.access("/proc/self/fd", os.R_OK)
    atexit.register(print, "at exit", flush=False)
    threading.Thread(target=lambda: (threading.Event().wait(0.05), print("late thread"))).start()
    print("printed", end="")
    sys.stderr.write("told\\n")
    return seen
"""


@pytest.fixture(scope="module", params=sorted(pythons()))
def each(request: pytest.FixtureRequest, warden: Warden) -> Iterator[Zygote]:
    made = Zygote(warden, pythons()[request.param])
    assert made.report.error is None, made.report
    yield made
    made.stop()


def test_every_interpreter_is_what_code_expects(each: Zygote) -> None:
    ended = each.call(WORLD, "main", [21], stdin=b"first\nsecond\n")
    assert ended.answer.value == {
        "input": "first", "line": "second\n", "argv": 1, "pool": [42, 4], "spawn": [42],
        "child": "hi\n", "async": 21, "thread": [21], "pickle": True, "source": "def double(x):",
        "name": ["main", True], "home": True, "dev": True,
    }, ended  # fmt: skip
    assert ended.stdout == b"printedlate thread\nat exit\n"
    assert (ended.stderr, ended.exit_code) == (b"told\n", 0)


def test_every_interpreter_answers_an_exception_with_its_traceback(each: Zygote) -> None:
    ended = each.call("import json\ndef main():\n    return json.loads('{')\n")
    error = ended.answer.error
    assert error is not None
    assert (error.kind, error.type) == ("exception", "json.decoder.JSONDecodeError")
    assert "return json.loads('{')" in error.traceback
    assert "main.py" in error.traceback.splitlines()[1]  # nothing of ours above it
    assert ended.stderr.decode() == error.traceback
    assert ended.exit_code == 1


@pytest.mark.parametrize(
    ("code", "exit_code", "stderr"),
    [
        ("import sys\nsys.exit(7)", 7, b""),
        ("raise SystemExit('a text')", 1, b"a text\n"),
        ("import sys\nsys.exit()", 0, b""),
        ("import os\nos._exit(9)", 9, b""),
        ("raise SystemExit(-1)", 255, b""),
    ],
)
def test_exit_of_an_entry_says_how_it_ended(
    zygote: Zygote, code: str, exit_code: int, stderr: bytes
) -> None:
    body = "def main():\n" + "".join(f"    {line}\n" for line in code.splitlines())
    ended = zygote.call(body)
    assert (ended.exit_code, ended.stderr) == (exit_code, stderr)
    if "os._exit" in code:
        assert ended.raw == b""
    else:
        assert ended.answer.error is not None
        assert (ended.answer.error.kind, ended.answer.error.type) == ("exit", "SystemExit")
    program = zygote.call(code, None)
    assert (program.exit_code, program.stderr, program.raw) == (exit_code, stderr, b"")


def test_program_is_main_with_its_arguments(zygote: Zygote) -> None:
    code = "import sys\nif __name__ == '__main__':\n    print(sys.argv[1:], __file__, flush=True)\n"
    ended = zygote.call(code, None, ["a", "b"])
    assert (ended.stdout, ended.raw, ended.exit_code) == (b"['a', 'b'] /tmp/call/main.py\n", b"", 0)
    guarded = zygote.call("if __name__ == '__main__':\n    1 / 0\ndef main():\n    return 1\n")
    assert guarded.answer.value == 1


def test_missing_entry_and_bad_syntax_are_told_apart(zygote: Zygote) -> None:
    missing = zygote.call("def other(): pass").answer.error
    assert missing is not None
    assert (missing.kind, missing.message) == ("entry", "the code has no function 'main'")
    syntax = zygote.call("def main(:\n    pass\n").answer.error
    assert syntax is not None
    assert (syntax.kind, syntax.type) == ("exception", "SyntaxError")
    assert "main.py" in syntax.traceback


VALUES = {
    "None": None, "True": True, "[1, 2.5, 'a\u00e4', {'k': ()}]": [1, 2.5, "a\u00e4", {"k": []}],
    "2 ** 300": 2**300, "'\\x00'": "\x00", "10 ** 4000": 10**4000, "{'': {}}": {"": {}},
    "__import__('enum').IntEnum('E', 'A').A": 1, "__import__('collections').OrderedDict(a=1)": {"a": 1},
}  # fmt: skip


@pytest.mark.parametrize("expression", list(VALUES))
def test_value_that_is_json_like_comes_back(zygote: Zygote, expression: str) -> None:
    assert zygote.value(f"def main():\n    return {expression}\n") == VALUES[expression]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("{1: 2}", "value has a key of type int"),
        ("[0, {'a': b'x'}]", "value[1]['a'] is of type bytes"),
        ("[float('nan')]", "value[0] is nan"),
        ("{'a': float('-inf')}", "value['a'] is -inf"),
        ("{1, 2}", "value is of type set"),
        ("'\\ud800'", "half of a surrogate pair"),
        ("{'\\udfff': 1}", "half of a surrogate pair"),
        ("main", "value is of type function"),
        ("[l.append(l) or l for l in [[]]][0]", "nested deeper than 200 levels"),
        ("__import__('decimal').Decimal(1)", "value is of type decimal.Decimal"),
        ("__import__('functools').reduce(lambda a, _: [a], range(50000), 1)", "nested deeper"),
    ],
)
def test_value_that_is_not_json_like_is_an_error_that_says_where(
    zygote: Zygote, expression: str, message: str
) -> None:
    ended = zygote.call(f"def main():\n    return {expression}\n")
    assert ended.answer.error is not None, ended
    assert ended.answer.error.kind == "value"
    assert message in ended.answer.error.message
    assert ended.exit_code == 1


def test_value_longer_than_the_call_may_answer_is_an_error_of_its_own(zygote: Zygote) -> None:
    ended = zygote.call("def main(): return 'x' * 5000", result_bytes=4096)
    assert ended.answer.error is not None
    assert ended.answer.error.kind == "size"
    whole = zygote.value("def main(): return 'x' * 4000000", result_bytes=4_000_100)
    assert len(whole) == 4_000_000


def test_arguments_environment_and_limits_reach_the_code(zygote: Zygote) -> None:
    code = (
        "import os, resource\ndef main(a, *, b):\n    return [a, b, os.environ['X'], "
        "os.popen('echo $X').read(), resource.getrlimit(resource.RLIMIT_NOFILE)]\n"
    )
    got = zygote.value(
        code, "main", [{"n": [1]}], kwargs={"b": None}, env={"X": "y"}, limits={"nofile": 50}
    )
    assert got == [{"n": [1]}, None, "y", "y\n", [50, 50]]


def test_output_that_nobody_flushed_is_not_lost(zygote: Zygote) -> None:
    code = (
        "import sys\nkept = open('/tmp/kept', 'w')\nkept.write('all')\nsys.foo = open('/tmp/f', 'w')\n"
        "sys.foo.write('more')\nimport atexit, os\n"
        "atexit.register(lambda: os.fork() == 0 and os._exit(0))\nprint('x' * 70000)\n"
    )
    cell = zygote.warden.cell()
    assert len(zygote.call(code, None, cell=cell).stdout) == 70001
    assert zygote.value(
        "def main(): return [open('/tmp/kept').read(), open('/tmp/f').read()]", cell=cell
    ) == ["all", "more"]
    os.close(cell)


def test_fork_of_the_codes_own_does_not_answer_for_it(zygote: Zygote) -> None:
    code = (
        "import os\ndef main():\n    pid = os.fork()\n    if not pid: return 'child'\n"
        "    os.waitpid(pid, 0)\n    return 'parent'\n"
    )
    ended = zygote.call(code)
    assert (ended.answer.value, ended.exit_code) == ("parent", 0)


def test_calls_run_side_by_side(zygote: Zygote) -> None:
    code = "def main(x):\n    input()\n    return x\n"
    first = zygote.begin(code, "main", [1], stdin=b"\n")
    others = [zygote.begin(code, "main", [n], stdin=b"\n") for n in (2, 3, 4)]
    assert [zygote.wait(c).answer.value for c in reversed([first, *others])] == [4, 3, 2, 1]
