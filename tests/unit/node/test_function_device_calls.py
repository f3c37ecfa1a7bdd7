"""Calls with a device, end to end on fakes: who has it when, and what carries over between steps.

The devices are nodes of this machine (`full` and `zero`) in the node's list. That who has none cannot
open it is shown on real containers: tests/integration/test_container_devices.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from function_world import FunctionWorld, program, python, world
from node_stand import settle

from skerry.backends.api import Exit
from skerry.backends.devices.listed import DevicesConfig, ListedDevice
from skerry.errors import InvalidRequest, OutcomeUnknown, Overloaded, Unavailable
from skerry.node.functions.devices import Desk
from skerry.spec.device import DeviceClaim, DeviceMode, DeviceNode
from skerry.spec.function import CallSpec, CompileRunCall, Environment, Isolation, Language
from skerry.spec.function_result import Prewarm
from skerry.testing import fake_commands
from skerry.testing.fake import FakeBackend
from skerry.testing.fake_commands import Call, Ended
from tests.waiting import until

GPU = DeviceClaim()
ONE = DevicesConfig(
    providers=(),
    listed=(
        ListedDevice(id="card0", nodes=("/dev/full:fakegpu0",), memory="8GiB", env={"A": "b"}),
    ),
)
TWO = DevicesConfig(
    providers=(), listed=(*ONE.listed, ListedDevice(id="card1", nodes=("/dev/zero:fakegpu1",)))
)


def shared(share: float) -> DeviceClaim:
    return DeviceClaim(mode=DeviceMode.SHARED, share=share)


class Toolchain:
    """Fake `gcc` and the program that it makes, which says what it finds and waits for `go`."""

    def __init__(self) -> None:
        self.compiled = 0
        self.running = self.most = 0
        self.go = asyncio.Event()
        self.failing = False
        self.seen: list[dict[str, str]] = []

    async def gcc(self, call: Call, _words: list[str]) -> Ended:
        if self.failing:
            await call.write(3, b"main.c:1: error\n")
            return Ended(exit_code=1)
        self.compiled += 1
        source = call.files.find("/call/main.c")[1].content
        call.files.write(f"{call.cwd}/a.out", 0o755, "-", b"made of " + source)
        return Ended(exit_code=0)

    async def run(self, call: Call, _words: list[str]) -> Ended:
        self.seen.append(call.env)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.go.wait()
        finally:
            self.running -= 1
        await call.write(2, call.files.find("/call/a.out")[1].content)
        call.files.write("/call/out.txt", 0o644, "-", b"result")
        return Ended(exit_code=0)


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Toolchain:
    made = Toolchain()
    monkeypatch.setitem(fake_commands.PROGRAMS, "gcc", made.gcc)
    monkeypatch.setitem(fake_commands.PROGRAMS, "a.out", made.run)
    return made


@pytest.fixture
async def there(stand, monkeypatch, tmp_path, tools) -> AsyncIterator[FunctionWorld]:
    async with world(stand, monkeypatch, tmp_path, devices=ONE) as made:
        yield made
        tools.go.set()
    desk(made).check_invariants()


@pytest.fixture
async def two(stand, monkeypatch, tmp_path, tools) -> AsyncIterator[FunctionWorld]:
    async with world(stand, monkeypatch, tmp_path, devices=TWO) as made:
        yield made
        tools.go.set()


def desk(there: FunctionWorld) -> Desk:
    return there.node.calls.devices.desk


def compile_run(source: str = "x", **changes: Any) -> CallSpec:
    kind = CompileRunCall(language=Language.C, sources={"main.c": source})
    return CallSpec(kind=kind, device=changes.pop("device", GPU), **changes)


async def freed(there: FunctionWorld) -> None:
    await until(lambda: not desk(there).ledger.held)
    desk(there).check_invariants()


async def test_call_runs_in_a_container_of_its_device_with_its_variables(
    there: FunctionWorld,
) -> None:
    result = await there.call("return 1", device=GPU, env={"MINE": "1"})
    assert result.device is not None
    assert (result.device.id, result.device.share, result.value) == ("card0", 1.0, 1)
    container = there.stand.world.instances[result.worker]
    assert container.request.devices == (DeviceNode("fakegpu0", 1, 7),)
    assert there.python.payloads[0]["env"] == {
        "A": "b", "MINE": "1", "SKERRY_DEVICE": "card0",
        "SKERRY_DEVICE_MEMORY_BYTES": str(8 << 30),
    }  # fmt: skip
    await freed(there)


async def test_call_without_a_device_never_gets_a_container_that_has_one(
    there: FunctionWorld,
) -> None:
    first = await there.call("return 1", device=GPU)
    second = await there.call("return 2")
    assert second.device is None
    assert first.worker != second.worker
    assert there.stand.world.instances[second.worker].request.devices == ()


async def test_compiled_without_the_device_and_run_with_it(
    there: FunctionWorld, tools: Toolchain
) -> None:
    tools.go.set()
    result = await there.call(compile_run("int main;", fetch=("out.txt",)))
    assert result.ok
    assert result.stdout == b"made of int main;"
    assert result.files == {"out.txt": b"result"}
    assert result.compile is not None
    assert result.compile.ok
    assert there.stand.world.instances[result.worker].request.devices
    others = [one for one in there.instances if not one.request.devices]
    assert len(others) == 1  # where it was compiled
    assert there.node.calls.devices.artifacts.bytes == 0
    await freed(there)


async def test_any_number_compile_while_another_holds_the_device(
    there: FunctionWorld, tools: Toolchain
) -> None:
    holding = there.begin("wait", device=GPU)
    await there.running(1)
    calls = [there.begin(compile_run(f"{number}")) for number in range(5)]
    await until(lambda: tools.compiled == 5)
    await until(lambda: desk(there).waiting == 5)
    assert (tools.running, len(desk(there).ledger.held)) == (0, 1)  # and only then they want it
    there.python.go.set()
    tools.go.set()
    results = await asyncio.gather(*calls)
    assert [result.stdout for result in results] == [f"made of {n}".encode() for n in range(5)]
    assert tools.most == 1  # exclusive: one after the other
    for result in results:
        assert result.device is not None
        assert result.device.queued_s >= 0
    await holding
    await freed(there)


async def test_what_does_not_compile_asks_for_no_device(
    there: FunctionWorld, tools: Toolchain
) -> None:
    tools.failing = True
    result = await there.call(compile_run())
    assert result.compile is not None
    assert (result.compile.exit_code, result.device, result.ok) == (1, None, False)
    assert desk(there).ledger.granted == 0
    assert there.node.calls.devices.artifacts.taken == 0


async def test_shared_calls_run_side_by_side_and_the_environment_says_their_part(
    there: FunctionWorld, tools: Toolchain
) -> None:
    calls = [there.begin(compile_run(device=shared(0.4))) for _ in range(3)]
    await until(lambda: tools.running == 2)
    await until(lambda: desk(there).waiting == 1)
    assert tools.seen[0]["SKERRY_DEVICE_SHARE"] == "0.4"
    tools.go.set()
    results = await asyncio.gather(*calls)
    assert tools.most == 2
    assert {result.device.share for result in results if result.device} == {0.4}
    await freed(there)


async def test_two_devices_serve_two_exclusive_calls_at_once(two: FunctionWorld) -> None:
    calls = [two.begin("wait", device=GPU) for _ in range(3)]
    await two.running(2)
    assert desk(two).waiting == 1
    two.python.go.set()
    results = await asyncio.gather(*calls)
    assert {result.device.id for result in results if result.device} == {"card0", "card1"}
    for result in results:
        assert result.device is not None
        (node,) = two.stand.world.instances[result.worker].request.devices
        assert node.name == ("fakegpu0" if result.device.id == "card0" else "fakegpu1")
    await freed(two)


async def test_device_is_lent_on_only_when_the_cell_of_its_call_is_empty(
    there: FunctionWorld,
) -> None:
    await there.call("return 1", device=GPU)
    await freed(there)
    container = next(one for one in there.instances if one.request.devices)
    container.agent.cells.silent = True  # the cell is not made anew, for all that anybody knows
    first = await there.call("return 1", device=GPU)
    assert len(desk(there).ledger.held) == 1
    waiting = there.begin("return 2", device=GPU)
    await until(lambda: desk(there).waiting == 1)
    await settle()
    assert not waiting.done()
    container.die(Exit(signal=9))
    second = await waiting
    assert second.worker != first.worker
    assert first.worker not in there.stand.world.instances
    await freed(there)


async def test_container_that_dies_costs_its_call_and_frees_the_device(
    there: FunctionWorld,
) -> None:
    calling = there.begin("wait", device=GPU)
    await there.running(1)
    waiting = there.begin("return 2", device=GPU)
    await until(lambda: desk(there).waiting == 1)
    container = next(one for one in there.instances if one.request.devices)
    container.die(Exit(signal=9))
    with pytest.raises(OutcomeUnknown):
        await calling
    assert (await waiting).value == 2
    await freed(there)


async def test_call_that_is_cancelled_frees_the_device_whether_it_ran_or_waited(
    there: FunctionWorld, tools: Toolchain
) -> None:
    running = there.begin("wait", device=GPU)
    await there.running(1)
    waiting = there.begin(compile_run())
    await until(lambda: desk(there).waiting == 1)
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert (desk(there).waiting, there.node.calls.devices.artifacts.bytes) == (0, 0)
    running.cancel()
    await asyncio.wait((running,))
    await freed(there)
    assert (await there.call("return 3", device=GPU)).value == 3
    assert tools.running == 0
    await freed(there)


async def test_container_of_its_own_is_gone_before_its_device_is_lent_on(
    there: FunctionWorld,
) -> None:
    result = await there.call("return 1", device=GPU, isolation=Isolation.CONTAINER)
    await freed(there)
    assert result.worker not in there.stand.world.instances
    assert (await there.call("return 2", device=GPU)).value == 2
    await freed(there)


async def test_device_of_a_container_that_cannot_be_destroyed_is_not_lent_again(
    there: FunctionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry.node.functions.making.DESTROY_AGAIN_S", ())
    calling = there.begin("wait", device=GPU)
    await there.running(1)
    container = next(one for one in there.instances if one.request.devices)
    destroy = container.destroy

    async def fail() -> None:
        raise Unavailable("the launcher is away")

    container.destroy = fail
    container.die(Exit(signal=9))
    with pytest.raises(OutcomeUnknown):
        await calling
    pools = there.node.calls._pools.by_key.values()
    await until(lambda: any(pool.stuck for pool in pools))
    with pytest.raises(Overloaded, match="no device was free"):
        await there.call("return 1", device=GPU, wait_s=0.3)
    container.destroy = destroy
    await destroy()  # as the sweep of the next start does


async def test_containers_of_an_earlier_node_that_cannot_be_removed_withhold_the_devices(
    stand, monkeypatch, tmp_path, tools
) -> None:
    async def fail(_backend: FakeBackend) -> list[str]:
        raise Unavailable("the launcher is away")

    monkeypatch.setattr(FakeBackend, "sweep", fail, raising=False)
    async with world(stand, monkeypatch, tmp_path, devices=ONE) as there:
        with pytest.raises(Unavailable, match="could not be removed"):
            await there.call("return 1", device=GPU)
        assert (await there.call("return 1")).value == 1


async def test_node_that_ends_tells_those_who_wait_for_a_device(
    stand, monkeypatch, tmp_path, tools
) -> None:
    async with world(stand, monkeypatch, tmp_path, devices=ONE) as there:
        holding = there.begin("wait", device=GPU)
        await there.running(1)
        waiting = there.begin("return 1", device=GPU, wait_s=600.0)
        await until(lambda: desk(there).waiting == 1)
        ending = asyncio.ensure_future(there.node.calls.end())
        with pytest.raises(Unavailable, match="ending"):
            await waiting
        there.python.go.set()
        assert (await holding).value == "waited"
        await ending


async def test_no_device_within_the_wait_names_it_and_its_holder(there: FunctionWorld) -> None:
    holding = there.begin("wait", device=GPU, job="trainer")
    await there.running(1)
    with pytest.raises(Overloaded) as caught:
        await there.call("return 1", device=GPU, wait_s=0.0)
    assert caught.value.fields["limit"] == "gpu"
    assert caught.value.fields["holders"][0] == {"who": "job trainer", "calls": 1}
    there.python.go.set()
    await holding
    await freed(there)


async def test_device_that_the_node_has_not_is_refused_before_anything_is_compiled(
    there: FunctionWorld, tools: Toolchain
) -> None:
    with pytest.raises(InvalidRequest, match="no h100; it has: gpu"):
        await there.call(compile_run(device=DeviceClaim(name="h100")))
    assert (tools.compiled, there.instances) == (0, [])


async def test_containers_of_all_devices_are_ready_before_anyone_calls(two: FunctionWorld) -> None:
    body = Prewarm(environment=Environment(modules=("json",)), device="gpu").check()
    info = await two.node.calls.prewarm(body)
    assert (info.device, info.containers) == ("card0", 1)
    nodes = sorted(node.name for one in two.instances for node in one.request.devices)
    assert nodes == ["fakegpu0", "fakegpu1"]
    assert desk(two).ledger.granted == 0  # none is held for that
    result = await two.call("return 1", environment=body.environment, device=GPU)
    assert len(two.instances) == 2
    assert result.device is not None
    with pytest.raises(InvalidRequest, match="no tpu"):
        await two.node.calls.prewarm(Prewarm(device="tpu"))
    await freed(two)


async def test_readings_count_devices_and_what_waits_for_one(there: FunctionWorld) -> None:
    holding = there.begin("wait", device=shared(0.25))
    await there.running(1)
    gauges = there.node.gauges()
    assert (gauges["devices"], gauges["devices_in_use"], gauges["devices_held"]) == (1, 1, 0.25)
    there.python.go.set()
    await holding
    await freed(there)
    assert there.node.gauges()["devices_granted_total"] == 1


async def test_program_of_any_kind_may_hold_one(there: FunctionWorld) -> None:
    result = await there.call(program("env", device=GPU))
    assert b"SKERRY_DEVICE=card0" in result.stdout
    assert python("x", device=GPU).check().device == GPU
    await freed(there)
