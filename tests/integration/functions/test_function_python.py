"""Python calls on a real node: values, errors, modules imported before, an interpreter that dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest

from live_node import LiveNode
from skerry.errors import InvalidRequest, OutcomeUnknown
from skerry.spec.function import CallSpec, Environment, PythonCall
from skerry.spec.function_limits import CallLimits, Limit
from waiting import until

pytestmark = pytest.mark.root

OPTIONS = "[functions]\ncontainers_per_pool_max = 2\npool_idle_s = 600\n"
SLOW = "import time\ndef main(s):\n    time.sleep(s)\n    return s\n"


@pytest.fixture(scope="module")
def node(layer_store):
    """A node of its own: its census tells what these tests left."""
    with LiveNode(layer_store, options=OPTIONS).running() as live:
        yield live


@pytest.fixture
async def client(node):
    async with node.client() as made:
        yield made


def python(code: str, *args, **more) -> CallSpec:
    return CallSpec(kind=PythonCall(code=code, args=args), **more)


async def square(client, number: int) -> int:
    result = await client.functions.call(python("def main(x): return x * x", number))
    assert result.ok, result
    return result.value


def zygotes(node: LiveNode) -> list[int]:
    """Returns the interpreters of its containers that calls are forked from."""
    parents, lines = {}, {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(place.name)] = int(
                (place / "stat").read_text().rpartition(")")[2].split()[1]
            )
            lines[int(place.name)] = (place / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
    agents = {pid for pid, parent in parents.items() if parent == node.launcher()}
    return sorted(
        pid for pid, parent in parents.items() if parent in agents and b"\0-B\0-c\0" in lines[pid]
    )


async def running(client, count: int) -> None:
    async def there() -> bool:
        return sum(pool.running for pool in await client.functions.pools()) == count

    await until(there, 60)


async def test_call_gives_its_value_and_what_it_used(client) -> None:
    assert await square(client, 7) == 49
    spec = python("def main():\n    x = bytearray(40 << 20)\n    return len(x)")
    result = await client.functions.call(spec)
    assert result.value == 40 << 20
    assert result.usage.peak_memory_bytes > 40 << 20
    assert 0 < result.usage.cpu_s < 30


async def test_exception_and_exit_are_told_apart(client) -> None:
    result = await client.functions.call(python("def main(): return {}['k']"))
    assert (result.returned, result.exit_code) == (False, 1)
    assert result.error.type == "KeyError"
    assert "main" in result.error.traceback
    result = await client.functions.call(python("import sys\ndef main(): sys.exit(3)"))
    assert (result.returned, result.exit_code, result.error) == (False, 3, None)


async def test_two_hundred_callers_at_once_get_their_own_answers(client) -> None:
    answers = await asyncio.gather(*(square(client, number) for number in range(200)))
    assert answers == [number * number for number in range(200)]


async def test_call_finds_nothing_of_the_one_before_it(client) -> None:
    code = (
        "import builtins, os, json\n"
        "def main():\n"
        "    seen = [hasattr(builtins, 'mark'), 'MARK' in os.environ, hasattr(json, 'mark')]\n"
        "    seen += [os.path.exists(f'{d}/mark') for d in ('/tmp', '/call', '/dev/shm', '/run')]\n"
        "    builtins.mark = json.mark = os.environ['MARK'] = '1'\n"
        "    for d in ('/tmp', '/call', '/dev/shm', '/run'): open(f'{d}/mark', 'w').close()\n"
        "    return seen\n"
    )
    for _ in range(24):  # more than there are cells
        assert (await client.functions.call(python(code))).value == [False] * 7


async def test_patterns_find_what_a_call_wrote_and_not_its_own_code(client) -> None:
    code = "def main(): open('out.py', 'w').write('x')"
    result = await client.functions.call(python(code, fetch=("**/*",)))
    assert result.files == {"out.py": b"x"}
    named = await client.functions.call(python(code, fetch=("main.py",)))
    assert named.files == {"main.py": code.encode()}


async def test_what_a_call_forges_is_its_own_fault(client) -> None:
    answer = (
        "import os\n"
        "def main(said):\n"
        "    for fd in sorted(map(int, os.listdir('/proc/self/fd')), reverse=True):\n"
        "        try:\n"
        "            os.write(fd, said.encode())\n"
        "            os._exit(0)\n"
        "        except OSError:\n"
        "            pass\n"
    )
    error = '{"error":{"kind":"exception","type":"\\udfff","message":""}}'
    for said in ('{"value":"\\ud800"}', '{"value":{"\\udc00":1}}', error, "[" * 50_000):
        result = await client.functions.call(python(answer, said))
        assert (result.ok, result.returned, result.error.type) == (False, False, "ValueError"), said


async def test_file_names_that_are_not_utf8_are_left_out(client) -> None:
    code = "def main():\n    for name in (b'ok.x', b'\\xff.x'): open(name, 'wb').write(name)"
    result = await client.functions.call(python(code, fetch=("*.x",)))
    assert result.ok
    assert result.files == {"ok.x": b"ok.x"}
    assert result.left_out == {"\\xff.x": "its name is not UTF-8: stream it"}


async def test_random_numbers_differ_between_calls(client) -> None:
    code = "import random\ndef main(): return random.random()"
    results = [await client.functions.call(python(code)) for _ in range(6)]
    assert len({result.value for result in results}) == 6


async def test_limits_of_time_and_memory_are_named(client) -> None:
    loop = python("def main():\n    while True: pass", limits=CallLimits(wall_s=30, cpu_s=0.3))
    assert (await client.functions.call(loop)).limit is Limit.CPU
    sleep = python(SLOW, 60, limits=CallLimits(wall_s=0.3))
    assert (await client.functions.call(sleep)).limit is Limit.WALL
    hoard = "def main():\n    x = []\n    while True: x.append(bytearray(1 << 20))"
    limits = CallLimits(memory_bytes=64 << 20)
    assert (await client.functions.call(python(hoard, limits=limits))).limit is Limit.MEMORY
    assert await square(client, 3) == 9


async def test_modules_are_imported_before_the_call(client) -> None:
    env = Environment(modules=("json", "decimal"))
    code = "import sys\nseen = 'decimal' in sys.modules\ndef main(): return seen"
    assert (await client.functions.call(python(code, environment=env))).value is True
    assert (await client.functions.call(python(code))).value is False


async def test_what_the_image_has_not_is_named_as_the_callers_fault(client) -> None:
    for env, named in (
        (Environment(modules=("no_such_module",)), "no_such_module"),
        (Environment(python="python9"), "python9"),
    ):
        with pytest.raises(InvalidRequest, match=named) as refused:
            await client.functions.call(python("def main(): pass", environment=env))
        assert refused.value.fields["lacks"] == named


async def test_zygote_that_is_killed_costs_only_its_own_calls(node, client) -> None:
    await square(client, 1)
    assert zygotes(node)
    lost = asyncio.ensure_future(client.functions.call(python(SLOW, 60)))
    again = asyncio.ensure_future(client.functions.call(python(SLOW, 1, idempotent=True)))
    await running(client, 2)
    for pid in zygotes(node):
        with contextlib.suppress(ProcessLookupError):  # one of an idle environment ended just now
            os.kill(pid, signal.SIGKILL)
    with pytest.raises(OutcomeUnknown):
        await lost
    assert (await again).value == 1
    assert await square(client, 5) == 25
