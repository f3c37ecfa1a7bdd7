"""Function calls on a real node: what they give, what ends them, what faults of the platform cost."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import tarfile
from pathlib import Path

import pytest

from live_node import LiveNode
from skerry.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    PlatformError,
)
from skerry.spec.function import (
    CallSpec,
    CompileRunCall,
    Environment,
    Isolation,
    Language,
    ProgramCall,
)
from skerry.spec.function_limits import CallLimits, Limit
from skerry.spec.function_result import CallResult
from soak.host import Disk
from waiting import until

pytestmark = pytest.mark.root

OPTIONS = "[functions]\ncontainers_per_pool_max = 2\npool_idle_s = 600\n"


@pytest.fixture(scope="module")
def node(layer_store):
    """A node of its own: its census tells what these tests left."""
    with LiveNode(layer_store, options=OPTIONS).running() as live:
        yield live


@pytest.fixture
def disk():
    made = Disk()
    yield made
    made.close()


@pytest.fixture
async def client(node):
    async with node.client() as made:
        yield made


def program(*argv: str, **more) -> CallSpec:
    return CallSpec(kind=ProgramCall(argv=argv), **more)


async def value(client, number: int) -> int:
    result = await client.functions.call(program("sh", "-c", f"echo $(({number} * {number}))"))
    assert result.ok, result
    return int(result.stdout)


def below(pid: int) -> dict[int, str]:
    """Returns the processes below one, with their command lines."""
    found: dict[int, str] = {}
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    wanted = {pid}
    while more := {one for one, parent in parents.items() if parent in wanted} - wanted:
        wanted |= more
    for one in wanted - {pid}:
        try:
            line = Path(f"/proc/{one}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        found[one] = line
    return found


def containers(node: LiveNode) -> list[int]:
    """Returns the first processes of its containers."""
    children = Path(f"/proc/{node.launcher()}/task/{node.launcher()}/children").read_text()
    return [int(pid) for pid in children.split()]


async def running(client, count: int) -> None:
    async def there() -> bool:
        return sum(pool.running for pool in await client.functions.pools()) == count

    await until(there, 60)


async def test_program_runs_in_an_empty_place_of_its_own(client) -> None:
    result = await client.functions.call(program("sh", "-c", "id -u; pwd; ls -A; echo x > mark"))
    assert result.stdout == b"1000\n/call\n"
    assert result.exit_code == 0
    again = await client.functions.call(program("sh", "-c", "ls -A /call /tmp; cat mark"))
    assert b"mark\n" not in again.stdout
    assert again.exit_code == 1


async def test_two_hundred_callers_at_once_are_all_answered(client) -> None:
    answers = await asyncio.gather(*(value(client, number) for number in range(200)))
    assert answers == [number * number for number in range(200)]


async def test_limits_are_named(client) -> None:
    loop = program("sh", "-c", "while :; do :; done", limits=CallLimits(wall_s=30, cpu_s=0.3))
    assert (await client.functions.call(loop)).limit is Limit.CPU
    sleeps = program("sleep", "60", limits=CallLimits(wall_s=0.3))
    assert (await client.functions.call(sleeps)).limit is Limit.WALL
    hoard = program("tail", "/dev/zero", limits=CallLimits(memory_bytes=64 << 20))
    assert (await client.functions.call(hoard)).limit is Limit.MEMORY
    bomb = program("sh", "-c", "b() { b | b & }; b; sleep 30", limits=CallLimits(processes=16))
    assert (await client.functions.call(bomb)).limit is Limit.PROCESSES
    flood = program("yes", limits=CallLimits(output_bytes=100_000))
    result = await client.functions.call(flood)
    assert result.limit is Limit.OUTPUT
    assert len(result.stdout) == 100_000
    fills = program("sh", "-c", "cat /dev/zero > full", limits=CallLimits(disk_bytes=4 << 20))
    assert (await client.functions.call(fills)).limit is Limit.DISK
    assert await value(client, 3) == 9


async def test_what_the_image_has_not_is_named_as_the_callers_fault(client) -> None:
    with pytest.raises(NotFound):
        await client.functions.call(program("true", environment=Environment(image="nothing:1")))
    rust = CompileRunCall(language=Language.RUST, sources={"main.rs": "fn main() {}"})
    with pytest.raises(InvalidRequest, match="the image has no rustc"):
        await client.functions.call(CallSpec(kind=rust))
    missing = await client.functions.call(program("frobnicate"))
    assert missing.start_error == "exec: No such file or directory: frobnicate"


async def test_caller_that_goes_away_ends_its_call(node, client) -> None:
    calling = asyncio.ensure_future(client.functions.call(program("sleep", "4321")))
    await running(client, 1)
    await until(lambda: any("sleep 4321" in line for line in below(node.launcher()).values()))
    calling.cancel()
    await asyncio.wait({calling})
    await until(lambda: not any("sleep 4321" in line for line in below(node.launcher()).values()))
    await running(client, 0)


async def test_background_processes_of_a_call_end_with_it(node, client) -> None:
    spec = program("sh", "-c", "setsid sleep 5432 >/dev/null 2>&1 & (sleep 5432 &) ; exit 0")
    assert (await client.functions.call(spec)).exit_code == 0
    await until(lambda: not any("sleep 5432" in line for line in below(node.launcher()).values()))


async def test_container_that_is_killed_costs_only_its_own_calls(node, client) -> None:
    await value(client, 1)
    lost = asyncio.ensure_future(client.functions.call(program("sleep", "60")))
    again = asyncio.ensure_future(client.functions.call(program("sleep", "1.5", idempotent=True)))
    await running(client, 2)
    for pid in containers(node):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(OutcomeUnknown):
        await lost
    assert (await again).exit_code == 0
    assert await value(client, 4) == 16


async def test_agent_that_stands_still_is_given_up(node, client) -> None:
    await value(client, 1)
    lost = asyncio.ensure_future(
        client.functions.call(program("sleep", "60", limits=CallLimits(wall_s=1.0)))
    )
    await running(client, 1)
    stopped = containers(node)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(OutcomeUnknown):
        await lost
    await until(lambda: not set(stopped) & set(containers(node)), 60)
    assert await value(client, 6) == 36


async def test_launcher_that_dies_costs_no_more_than_the_calls_that_run(node, client) -> None:
    await value(client, 1)
    os.kill(node.launcher(), signal.SIGKILL)

    async def serves() -> bool:
        try:
            return await value(client, 7) == 49
        except PlatformError:
            return False

    await until(serves, 60)


async def test_fresh_container_for_each_call_shares_nothing(client) -> None:
    spec = program("true", isolation=Isolation.CONTAINER)
    results: list[CallResult] = [await client.functions.call(spec) for _ in range(3)]
    assert len({result.worker for result in results}) == 3


async def test_layer_of_idle_containers_can_be_removed_and_of_running_calls_not(client) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("of-the-layer"))
    out.seek(0)
    await client.images.import_tar("workspace/short-lived", out)
    there = Environment(layers=("workspace/short-lived",))
    calling = asyncio.ensure_future(
        client.functions.call(program("sleep", "60", environment=there))
    )
    await running(client, 1)
    with pytest.raises(Conflict, match="function call"):
        await client.images.remove("workspace/short-lived")
    calling.cancel()
    await asyncio.wait((calling,))
    await running(client, 0)
    await client.images.remove("workspace/short-lived")
    with pytest.raises(NotFound):
        await client.functions.call(program("true", environment=there))


async def test_full_queue_is_refused_by_name(layer_store) -> None:
    few = "[functions]\ncalls_running_max = 1\ncalls_waiting_max = 1\ncontainers_per_pool_max = 1\n"
    with LiveNode(layer_store, options=few).running() as node:
        async with node.client() as client:
            await value(client, 1)
            first = asyncio.ensure_future(client.functions.call(program("sleep", "3")))
            await running(client, 1)
            second = asyncio.ensure_future(client.functions.call(program("sleep", "0")))

            async def waits() -> bool:
                return (await client.functions.pools())[0].waiting == 1

            await until(waits)
            with pytest.raises(Overloaded) as caught:
                await client.functions.call(program("sleep", "0", wait_s=0.1))
            assert caught.value.fields["limit"] == "function calls"
            assert (await first).exit_code == 0
            assert (await second).exit_code == 0


async def test_killed_node_leaves_no_call_and_no_container_after_its_restart(layer_store) -> None:
    with LiveNode(layer_store, options=OPTIONS).running() as node:
        async with node.client() as client:
            await value(client, 1)
            calls = [
                asyncio.ensure_future(client.functions.call(program("sleep", "9876")))
                for _ in range(4)
            ]
            await running(client, 4)
            before = set(containers(node))
            assert before
            node.kill()
            await asyncio.wait(calls)
            assert all(isinstance(call.exception(), PlatformError) for call in calls)
        node.start()
        assert not [line for line in below(node.launcher()).values() if "sleep 9876" in line]
        assert not before & set(containers(node))
        async with node.client() as client:
            assert await value(client, 8) == 64


async def test_full_disk_of_the_node_is_no_result_of_a_call(layer_store, disk) -> None:
    """Calls write to memory and nothing is journalled: a full state directory stops none of them."""
    with LiveNode(layer_store, options=OPTIONS, below=disk.root).running() as node:
        async with node.client() as client:
            await value(client, 1)
            disk.fill(0)
            written = program("sh", "-c", "head -c 1000000 /dev/zero > x && wc -c < x")
            results = [await client.functions.call(written) for _ in range(20)]
            assert {result.stdout for result in results} == {b"1000000\n"}
            assert await value(client, 2) == 4
            disk.free()
