"""SandboxFusion's own client, unmodified, as its documentation uses it."""

from __future__ import annotations

import base64
import signal
import time

import aiohttp
import pytest
import sandbox_fusion
from sandbox_fusion import (
    CommandRunStatus,
    RunCodeRequest,
    RunJupyterRequest,
    RunStatus,
    SummaryMapping,
    run_code,
    run_code_async,
    run_concurrent,
    summary_run_code_result,
)

from conftest import server
from interop.looking import examples

MAPPING = SummaryMapping(
    Success="ok", Failed="failed", CompileFailed="no compile", CompileTimeout="slow compile",
    RunFailed="wrong", RunTimeout="slow",
)  # fmt: skip


@pytest.fixture(autouse=True)
def endpoint(url):
    sandbox_fusion.set_endpoint(url)


def run(code, language="python", **more):
    return run_code(RunCodeRequest(code=code, language=language, **more), max_attempts=1)


def test_the_example_of_the_guide_runs_as_written(url, capsys):
    for text in examples("sandbox-fusion.md"):
        exec(text, {"url": url})
    assert "49" in capsys.readouterr().out


def test_a_program_has_its_input_and_its_output():
    seen = run(
        "import sys; print(sys.stdin.read()[::-1]); print('e', file=sys.stderr)", stdin="abc"
    )
    assert seen.status == RunStatus.Success
    assert seen.run_result.status == CommandRunStatus.Finished
    assert (seen.run_result.return_code, seen.run_result.stdout) == (0, "cba\n")
    assert seen.run_result.stderr == "e\n"
    assert seen.run_result.execution_time > 0
    assert seen.compile_result is None
    assert seen.executor_pod_name


def test_a_program_is_a_main_program_with_its_files_beside_it():
    helper = base64.b64encode(b"def answer(): return 42\n").decode()
    seen = run(
        "import dataclasses, helper, pickle\n"
        "@dataclasses.dataclass\n"
        "class Point: x: int\n"
        "assert pickle.loads(pickle.dumps(Point(1))) == Point(1)\n"
        "open('out/result.bin', 'wb').write(bytes(range(256)))\n"
        "if __name__ == '__main__': print(helper.answer())\n",
        files={"helper.py": helper, "out/given.txt": base64.b64encode(b"x").decode(), "no": None},
        fetch_files=["out/result.bin", "./out/given.txt", "out/missing", "/etc/passwd"],
    )
    assert seen.run_result.stdout == "42\n", seen
    assert {name: base64.b64decode(data) for name, data in seen.files.items()} == {
        "out/result.bin": bytes(range(256)),
        "./out/given.txt": b"x",
    }


@pytest.mark.parametrize(
    ("code", "summary", "code_seen"),
    [
        ("raise SystemExit(3)", "wrong", 3),
        ("1/0", "wrong", 1),
        ("import os; os.abort()", "wrong", -6),
        ("import os; os._exit(7)", "wrong", 7),
        ("def f(:", "wrong", 1),
        ("while True: pass", "slow", None),
        ("import time; time.sleep(60)", "slow", None),
        ("pass", "ok", 0),
    ],
)
def test_how_a_program_ends(code, summary, code_seen):
    seen = run(code, run_timeout=1)
    assert summary_run_code_result(seen, MAPPING) == summary
    assert seen.run_result.return_code == code_seen


def test_what_was_printed_before_the_time_was_over_is_there():
    seen = run("print('before', flush=True)\nwhile True: pass", run_timeout=1)
    assert seen.run_result.status == CommandRunStatus.TimeLimitExceeded
    assert seen.run_result.stdout == "before\n"


def test_more_memory_than_allowed_ends_the_program(url):
    import requests

    body = {"code": "x = b'x' * (200 << 20); print('had it')", "language": "python"}
    for limit, verdict in ((100, "Failed"), (400, "Success")):
        told = requests.post(f"{url}/run_code", json={**body, "memory_limit_MB": limit}).json()
        assert told["status"] == verdict, told
    told = requests.post(f"{url}/run_code", json={**body, "memory_limit_MB": 100}).json()
    assert told["message"] == "over its limit: memory"
    assert told["run_result"]["return_code"]


def test_a_compiled_program_has_two_steps():
    good = "#include <iostream>\nint main() { int x; std::cin >> x; std::cout << x * x; }"
    seen = run(good, "cpp", stdin="7")
    assert (seen.status, seen.compile_result.return_code) == (RunStatus.Success, 0)
    assert seen.run_result.stdout == "49"
    bad = run("int main() { return x; }", "cpp")
    assert summary_run_code_result(bad, MAPPING) == "no compile"
    assert bad.run_result is None
    assert "was not declared in this scope" in bad.compile_result.stderr
    slow = run("int main() { for (;;); }", "cpp", run_timeout=1)
    assert summary_run_code_result(slow, MAPPING) == "slow"
    crash = run("int main() { volatile int *p = 0; *p = 1; }", "cpp")
    assert crash.run_result.return_code == -signal.SIGSEGV


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("bash", "echo $((6*7))"),
        ("nodejs", "console.log(6*7)"),
        ("perl", 'print 6*7, "\\n"'),
        ("pytest", "def test_it(capsys):\n    assert 6*7 == 42"),
    ],
)
def test_scripts_run_by_the_programs_of_the_image(language, code):
    seen = run(code, language)
    assert seen.status == RunStatus.Success, seen
    assert "42" in seen.run_result.stdout or "1 passed" in seen.run_result.stdout


def test_what_is_not_here_is_no_failed_program():
    for language, word in (("lean", "not served here"), ("lua", "lua")):
        with pytest.raises(Exception, match=f"Sandbox responded with error.*{word}"):
            run("", language)
    with pytest.raises(Exception, match=r"404.*run_jupyter and the data sets are not"):
        sandbox_fusion.run_jupyter(RunJupyterRequest(cells=["1"]), max_attempts=1)
    with pytest.raises(Exception, match="422"):
        run("pass", files={"../../etc/passwd": ""})


def test_two_hundred_programs_at_once_each_have_their_own_answer():
    requests = [RunCodeRequest(code=f"print({n} ** 2)", language="python") for n in range(200)]
    seen = run_concurrent(run_code, args=[[one] for one in requests], concurrency=32)
    assert [one.run_result.stdout for one in seen] == [f"{n**2}\n" for n in range(200)]


async def test_the_async_client_works_too():
    seen = await run_code_async(RunCodeRequest(code="print('a')", language="python"))
    assert seen.run_result.stdout == "a\n"


def test_one_program_leaves_nothing_for_the_next():
    run("open('/tmp/left', 'w').write('x'); import builtins; builtins.left = 1")
    seen = run("import os, builtins; print(os.listdir('/tmp'), hasattr(builtins, 'left'))")
    assert seen.run_result.stdout == "[] False\n"


async def test_only_the_token_is_served(url):
    base = url.rpartition("/")[0]
    body = {"code": "print(1)", "language": "python"}
    async with aiohttp.ClientSession() as session:
        for path in ("/run_code", "/wrong/run_code"):
            async with session.post(base + path, json=body) as answer:
                assert answer.status in (401, 404)
        async with session.get(f"{url}/v1/ping") as answer:
            assert (answer.status, await answer.json()) == (200, "pong")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_the_server_ends_in_order(judge_image, how):
    with server("--image", judge_image, "--auth-token", "mine", how=how) as told:
        assert told["url"].endswith("/mine")
        started = time.monotonic()
    assert time.monotonic() - started < 25


@pytest.mark.parametrize("wrong", [("--image", "no/such:image"), ("--auth-token", "a/b")])
def test_what_is_wrong_is_told_at_once(wrong):
    with pytest.raises(AssertionError, match="ended with 2"), server(*wrong):
        pass
