"""Function calls from the outside in: the SDK, the command line and plain HTTP on a real node."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import signal
import subprocess
import sys

import aiohttp
import pytest

from skerry.spec.function_limits import Limit
from waiting import until

pytestmark = pytest.mark.root
MIB = 1 << 20
FORKS = """
import os, time
print('first', flush=True)
for _ in range(99):
    if not os.fork():
        time.sleep(60)
"""


@pytest.fixture
async def calls(node_client):
    return node_client.functions


def skerry(node, *words: str, **more):
    argv = [sys.executable, "-m", "skerry.cli.main", "--url", node.url, "call", *words]
    more.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run(argv, check=False, capture_output=True, timeout=120, **more)


async def idle(calls) -> None:
    """Returns once no call runs or waits."""

    async def quiet() -> bool:
        return not any(pool.running or pool.waiting for pool in await calls.pools())

    await until(quiet, 30, 0.02)


async def test_a_function_of_python_code(calls) -> None:
    result = await calls.call(
        "python", code="def main(x, *, y): return {'a': [x, y]}", args=[7], kwargs={"y": "é"}
    )
    assert (result.value, result.returned, result.exit_code, result.ok) == (
        {"a": [7, "é"]},
        True,
        0,
        True,
    )
    assert result.usage.wall_s > 0
    assert result.usage.peak_memory_bytes > 0
    result = await calls.call("python", code="def main():\n  print('out')\n  raise KeyError('k')")
    assert (result.error.type, result.returned, result.ok, result.text) == (
        "KeyError",
        False,
        False,
        "out\n",
    )
    assert "line 3" in result.error.traceback
    result = await calls.call("python", code="def main(): return {1, 2}")
    assert (result.returned, result.value, result.error is not None) == (False, None, True)


async def test_a_main_program_of_python_code(calls) -> None:
    code = "import sys\nprint(sys.argv[1:], sys.stdin.read())\nsys.exit(3)"
    result = await calls.call("python", code=code, entry=None, args=["a", "-b"], stdin="in")
    assert (result.exit_code, result.text) == (3, "['a', '-b'] in\n")
    assert (result.returned, result.value, result.ok) == (None, None, False)


async def test_scripts_and_programs(calls) -> None:
    result = await calls.call(
        "script", interpreter=["bash", "-e"], source="echo $0 $1; false; echo no", args=["x"]
    )
    assert (result.exit_code, result.text.split()[-1]) == (1, "x")
    result = await calls.call("program", argv=["sh", "-c", "id -u; pwd; echo $HOME; kill -11 $$"])
    assert (result.signal, result.text) == (11, "1000\n/call\n/call\n")
    result = await calls.call("program", argv=["frobnicate"])
    assert "No such file" in result.start_error
    own = {"run": b"#!/bin/sh\necho mine\n"}
    result = await calls.call("script", source="chmod +x run && ./run", files=own)
    assert result.text == "mine\n"


async def test_small_files_in_and_out(calls) -> None:
    result = await calls.call(
        "script",
        source="mkdir -p out/d; cat a.txt > out/b.txt; cp b/c out/d/e; ln -s /etc/passwd out/link",
        files={"a.txt": "é", "b/c": b"\0\1"},
        fetch=["out/**", "missing"],
    )
    assert result.ok, result.error_text
    assert result.files == {"out/b.txt": "é".encode(), "out/d/e": b"\0\1"}
    assert set(result.left_out) == {"missing"}


async def test_trees_in_and_out_of_directories(calls, tmp_path) -> None:
    long = os.urandom(20 * MIB)
    (tmp_path / "in/d").mkdir(parents=True)
    (tmp_path / "in/d/long").write_bytes(long)
    (tmp_path / "in/run.sh").write_text("#!/bin/sh\ncp -r d out\necho done >&2\n")
    (tmp_path / "in/run.sh").chmod(0o755)
    result = await calls.call(
        "program",
        argv=["./run.sh"],
        files=tmp_path / "in",
        fetch="out/**",
        fetch_to=tmp_path / "back",
    )
    assert (result.exit_code, result.error_text, result.files) == (0, "done\n", {})
    assert (tmp_path / "back/out/long").read_bytes() == long


async def test_input_and_output_longer_than_any_buffer(calls) -> None:
    block, count = os.urandom(MIB), 96
    given, seen, most = hashlib.sha256(), hashlib.sha256(), 0

    async def pieces():
        for _ in range(count):
            given.update(block)
            yield block

    async def show(stream: str, data: bytes) -> None:
        nonlocal most
        assert stream == "stdout"
        most = max(most, len(data))
        seen.update(data)

    result = await calls.call(
        "program", argv=["cat"], stdin=pieces(), on_output=show, output="1GiB", wall=120
    )
    assert (result.exit_code, result.stdout_total, result.stdout) == (0, count * MIB, b"")
    assert seen.digest() == given.digest()
    assert most <= MIB


async def test_a_program_that_reads_nothing_ends_a_stream_of_input(calls) -> None:
    async def endless():
        while True:
            yield bytes(MIB)

    result = await calls.call("program", argv=["sh", "-c", "exec 0<&-; echo done"], stdin=endless())
    assert (result.exit_code, result.text) == (0, "done\n")


@pytest.mark.parametrize("kind", ["python", "script"])
@pytest.mark.parametrize(
    ("limit", "code", "options"),
    [
        (Limit.WALL, "import time\nprint('first', flush=True)\ntime.sleep(60)", {"wall": 0.5}),
        (Limit.CPU, "print('first', flush=True)\nwhile True: pass", {"cpu": 0.3}),
        (Limit.OUTPUT, "print('first')\nwhile True: print('x' * 100)", {"output": 10_000}),
        (
            Limit.MEMORY,
            "print('first', flush=True)\nx = bytearray(512 << 20)",
            {"memory": "64MiB"},
        ),
        (
            Limit.DISK,
            "print('first', flush=True)\nopen('f', 'wb').write(bytes(64 << 20))",
            {"disk": "8MiB"},
        ),
        (
            Limit.PROCESSES,
            FORKS,
            {"processes": 20, "wall": 5},
        ),
    ],
)
async def test_the_limit_that_ended_it_is_named(calls, kind, limit, code, options) -> None:
    if kind == "python":
        result = await calls.call("python", code=code, entry=None, **options)
    else:
        result = await calls.call("script", interpreter="python3", source=code, **options)
    assert (result.limit, result.ok) == (limit, False), result
    assert result.stdout.startswith(b"first\n")
    assert (await calls.call("program", argv=["true"])).ok


async def test_who_stops_waiting_ends_it(calls) -> None:
    async def left(**more) -> None:
        task = asyncio.create_task(calls.call("program", argv=["sleep", "60"], wall=90, **more))

        async def runs() -> bool:
            return any(pool.running for pool in await calls.pools())

        await until(runs, 30, 0.02)
        task.cancel()
        await asyncio.wait({task})
        await idle(calls)

    await left()
    await left(on_output=lambda *_: None)


async def test_many_calls(calls) -> None:
    outcomes = await calls.call_many(
        "python", ({"args": [n]} for n in range(200)), code="def main(n): return n * n", at_once=16
    )
    assert [one.result.value for one in outcomes] == [n * n for n in range(200)]


async def test_a_pool_is_warmed_with_its_modules(calls) -> None:
    pool = await calls.prewarm(modules=["decimal", "json"], minimum=1, keep=30)
    assert pool.containers >= 1
    code = "import sys\nhad = 'decimal' in sys.modules\ndef main(): return had"
    result = await calls.call("python", modules=["decimal", "json"], code=code)
    assert result.value is True
    assert pool.key in {one.key for one in await calls.pools()}


async def test_a_module_that_is_not_there_is_told(calls) -> None:
    with pytest.raises(Exception, match="nothing_like_this"):
        await calls.call(
            "python", modules=["nothing_like_this"], code="def main(): return 1", wait=20
        )


async def test_a_call_in_plain_json(live_node) -> None:
    connector = aiohttp.UnixConnector(live_node.url.removeprefix("unix://"))
    body = {
        "kind": {
            "type": "python",
            "code": "print(open('n.txt').read())\ndef main(x): return x",
            "args": [7],
        },
        "files": {"n.txt": {"text": "hello"}},
    }
    url = "http://node/v1/functions/call"
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(url, json=body) as answer,
    ):
        assert answer.status == 200, await answer.text()
        result = await answer.json()
    assert (result["value"], base64.b64decode(result["stdout"])) == (7, b"hello\n")


def test_the_command_line(live_node, tmp_path) -> None:
    done = skerry(live_node, "-c", "import sys; print(sys.argv[1]); sys.exit(5)", "a")
    assert (done.returncode, done.stdout, done.stderr) == (5, b"a\n", b"")
    (tmp_path / "square.py").write_text("def main(x): return x * x\n")
    done = skerry(live_node, "--entry", "main", str(tmp_path / "square.py"), "7")
    assert (done.returncode, done.stdout) == (0, b"49\n")
    done = skerry(live_node, "--stdin", "-", "-p", "--", "sort", input=b"b\na\n", stdin=None)
    assert (done.returncode, done.stdout) == (0, b"a\nb\n")
    done = skerry(live_node, "--limit", "cpu=0.3", "-c", "while True: pass")
    assert done.returncode == 124
    assert b"limit of cpu" in done.stderr
    (tmp_path / "note").write_text("x")
    done = skerry(
        live_node, "--file", f"in/a={tmp_path}/note", "--fetch", "b", "--to", str(tmp_path / "to"),
        "-p", "cp", "in/a", "b",
    )  # fmt: skip
    assert (done.returncode, (tmp_path / "to/b").read_text()) == (0, "x"), done.stderr
    done = skerry(live_node, "--json", "-c", "print(1)")
    assert json.loads(done.stdout)["stdout"] == "1\n"
    done = skerry(live_node, "--pools")
    assert b"debian:12" in done.stdout


async def test_ctrl_c_ends_the_call(live_node, calls) -> None:
    argv = [sys.executable, "-m", "skerry.cli.main", "--url", live_node.url, "call"]
    argv += ["-l", "wall=90", "-p", "--", "sh", "-c", "echo on; sleep 60"]
    process = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE)
    assert await process.stdout.readline() == b"on\n"
    process.send_signal(signal.SIGINT)
    assert await process.wait() == 130
    await idle(calls)
