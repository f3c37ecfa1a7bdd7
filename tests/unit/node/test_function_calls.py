"""Function calls end to end on fakes: what comes back, who is to blame, what is left."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
import threading
from dataclasses import replace
from typing import Any

import pytest
from function_world import SMALL, FunctionWorld, program, python, world

from skerry.backends.api import CellUsage
from skerry.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    Unavailable,
)
from skerry.node.functions import calls
from skerry.node.functions.api import CallStreams
from skerry.spec.function import (
    CallSpec,
    CompileRunCall,
    Environment,
    InputFile,
    Isolation,
    Language,
    ScriptCall,
)
from skerry.spec.function_limits import CallLimits, Limit
from skerry.spec.function_result import Prewarm
from skerry.spec.job import JobSpec
from tests.waiting import until


@pytest.fixture
async def there(stand, monkeypatch, tmp_path):
    async with world(stand, monkeypatch, tmp_path) as made:
        yield made


async def test_python_call_returns_its_value_and_what_it_used(there: FunctionWorld) -> None:
    result = await there.call("return [49, null]", args=(7,), kwargs={"a": 1}, env={"K": "V"})
    assert result.value == [49, None]
    assert (result.returned, result.exit_code, result.limit, result.ok) == (True, 0, None, True)
    assert result.usage.peak_memory_bytes == 1 << 20
    assert result.worker in there.stand.world.instances
    asked = there.python.payloads[0]
    assert (asked["entry"], asked["args"], asked["kwargs"]) == ("main", [7], {"a": 1})
    assert asked["env"] == {"K": "V"}


async def test_others_are_served_while_a_large_value_is_read(
    there: FunctionWorld, monkeypatch
) -> None:
    begun, answered = threading.Event(), threading.Event()
    check = calls.check_json_like

    def slow(value: Any, what: str) -> None:
        if len(value[0]) > 1000:
            begun.set()
            assert answered.wait(60), "nobody else was served"
        check(value, what)

    monkeypatch.setattr(calls, "check_json_like", slow)
    text = "x" * (calls.READ_AT_ONCE_BYTES + 1)
    large = asyncio.ensure_future(there.call(f"return {json.dumps([text] + [0] * 1000)}"))
    await until(begun.is_set)
    assert (await there.call("return [1]")).value == [1]
    answered.set()
    assert (await large).value == [text] + [0] * 1000


async def test_exception_of_a_call_is_its_error_and_not_ours(there: FunctionWorld) -> None:
    result = await there.call("raise ZeroDivisionError")
    assert (result.returned, result.exit_code, result.ok) == (False, 1, False)
    assert result.error is not None
    assert (result.error.type, result.error.traceback) == ("ZeroDivisionError", "T")


async def test_exit_of_a_call_is_a_status(there: FunctionWorld) -> None:
    result = await there.call("exit 3")
    assert (result.returned, result.exit_code, result.error) == (False, 3, None)
    main = await there.call("exit 0", entry=None)
    assert (main.returned, main.exit_code, main.ok) == (None, 0, True)


@pytest.mark.parametrize("said", ["{", "[]", '{"value": 1, "error": 2}', '{"error": {"kind": 7}}'])
async def test_answer_that_is_none_is_the_calls_own_fault(there: FunctionWorld, said: str) -> None:
    result = await there.call(f"junk {said}")
    assert (result.returned, result.value) == (False, None)
    assert result.error is not None
    assert (await there.call("return 1")).value == 1


async def test_value_longer_than_allowed_names_the_output_limit(there: FunctionWorld) -> None:
    result = await there.call(f"long {9 << 20}")
    assert (result.limit, result.returned, result.value) == (Limit.OUTPUT, False, None)
    assert (await there.call("long 1000000")).returned
    told = await there.call("size")
    assert (told.limit, told.returned, told.error) == (Limit.OUTPUT, False, None)


async def test_program_gives_output_status_and_environment(there: FunctionWorld) -> None:
    result = await there.call(program("echo", "a", "b"))
    assert (result.stdout, result.exit_code, result.returned) == (b"a b\n", 0, None)
    env = await there.call(program("env", env={"K": "V"}))
    assert b"K=V\n" in env.stdout
    assert (await there.call(program("exit", "3"))).exit_code == 3
    assert (await there.call(program("pwd"))).stdout == b"/call\n"


async def test_program_that_is_missing_is_a_result(there: FunctionWorld) -> None:
    result = await there.call(program("frobnicate"))
    assert result.start_error == "exec: No such file or directory: frobnicate"
    assert (result.exit_code, result.signal, result.limit) == (None, None, None)


async def test_standard_input_and_files_are_there_and_asked_files_come_back(
    there: FunctionWorld,
) -> None:
    result = await there.call(program("cat", stdin=b"in"))
    assert result.stdout == b"in"
    files = {"data/x.txt": InputFile(text="hello"), "tool": InputFile(data=b"\0", executable=True)}
    spec = program("show", "/call/data/x.txt", files=files, fetch=("data/*.txt", "none", "*.bin"))
    result = await there.call(spec)
    assert result.stdout == b"hello"
    assert result.files == {"data/x.txt": b"hello"}
    assert result.left_out == {"none": "no such file", "*.bin": "no such file"}


async def test_next_call_in_the_same_cell_finds_nothing_of_the_last(there: FunctionWorld) -> None:
    for _ in range(40):  # more than there are cells
        result = await there.call(program("write", "/call/mark", "x", fetch=("mark",)))
        assert result.files == {"mark": b"x"}
        seen = await there.call(program("show", "/call/mark"))
        assert seen.exit_code == 1
    assert len(there.instances) == 1


async def test_script_is_read_by_its_interpreter_from_a_file(there: FunctionWorld) -> None:
    spec = CallSpec(kind=ScriptCall(source="echo hi", interpreter=("show",)))
    assert (await there.call(spec)).stdout == b"echo hi"
    spec = CallSpec(
        kind=ScriptCall(source="x", interpreter=("show",)),
        files={"data": InputFile(text="d")},
        fetch=("*", ".*"),
    )
    result = await there.call(spec)
    assert (result.files, result.left_out) == ({"data": b"d"}, {".*": "no such file"})


async def test_language_without_a_compiler_in_the_image_names_what_is_missing(
    there: FunctionWorld,
) -> None:
    kind = CompileRunCall(language=Language.RUST, sources={"main.rs": "fn main() {}"})
    with pytest.raises(InvalidRequest, match="the image has no rustc"):
        await there.call(CallSpec(kind=kind))
    kind = CompileRunCall(language=Language.C, sources={"main.c": "int main;"})
    with pytest.raises(InvalidRequest, match="neither gcc nor cc nor clang") as refused:
        await there.call(CallSpec(kind=kind))
    assert "--package gcc --package libc6-dev makes one" in str(refused.value)
    assert refused.value.fields["lacks"] == "gcc"


async def test_wall_cpu_and_output_limits_are_named(there: FunctionWorld) -> None:
    wall = await there.call(program("sleep", "60", limits=CallLimits(wall_s=0.05)))
    assert wall.limit is Limit.WALL
    cpu = await there.call(program("spin", limits=CallLimits(wall_s=30.0, cpu_s=0.05)))
    assert cpu.limit is Limit.CPU
    flood = await there.call(program("flood", "5000000", limits=CallLimits(output_bytes=1000)))
    assert flood.limit is Limit.OUTPUT
    assert len(flood.stdout) == 1000
    assert flood.truncated
    assert flood.stdout_total > 1000
    assert not flood.ok


async def test_memory_and_process_limits_end_the_call_at_once(there: FunctionWorld) -> None:
    for usage, limit in (
        (CellUsage(oom_kills=1), Limit.MEMORY),
        (CellUsage(pids_refused=3), Limit.PROCESSES),
    ):
        calling = there.begin(program("sleep", "3600"))
        await until(lambda: any(one.cell_limits for one in there.instances))
        instance = there.instances[0]
        await until(lambda: there.node.calls.turns.running == 1)
        instance.cell_used.update(dict.fromkeys(instance.cell_limits, usage))
        result = await calling
        assert result.limit is limit
        assert result.signal == 9
        instance.cell_used.clear()


async def test_limits_of_a_call_are_set_before_it_starts(there: FunctionWorld) -> None:
    limits = CallLimits(memory_bytes=64 << 20, processes=7)
    await there.call(program("true", limits=limits))
    (opened,) = {
        (one.memory_bytes, one.pids)
        for instance in there.instances
        for one in instance.cell_limits.values()
    }
    assert opened == (64 << 20, 8)  # with the process that begins it


async def test_caller_that_goes_away_ends_its_call_and_frees_its_cell(there: FunctionWorld) -> None:
    calling = there.begin("wait")
    await there.running(1)
    calling.cancel()
    await asyncio.wait({calling})
    await there.running(0)
    assert there.node.calls.turns.running == 0
    assert (await there.call("return 1")).value == 1


async def test_image_that_is_not_there_is_the_callers_fault(there: FunctionWorld) -> None:
    spec = python("return 1", environment=Environment(image="nothing:1"))
    for _ in range(2):
        with pytest.raises(NotFound):
            await there.call(spec)
    assert (await there.call("return 1")).value == 1


async def test_modules_that_cannot_be_imported_are_the_callers_fault(
    there: FunctionWorld, monkeypatch
) -> None:
    create = there.stand.backend.create

    async def failing(request: Any) -> Any:
        instance = await create(request)
        instance.agent.cells.zygote_fails = ("exec", 2)
        return instance

    monkeypatch.setattr(there.stand.backend, "create", failing)
    with pytest.raises(InvalidRequest, match="ended while it imported them, with exit code 1"):
        await there.call(python("return 1", environment=Environment(modules=("nope",))))
    await until(lambda: not there.instances)


async def test_zygote_that_dies_costs_only_its_own_calls(there: FunctionWorld) -> None:
    lost = there.begin("wait")
    await there.running(1)
    there.instances[0].agent.cells.lose_zygote()
    with pytest.raises(OutcomeUnknown):
        await lost
    there.python.go.set()
    assert (await there.call("return 2")).value == 2
    await until(lambda: len(there.instances) == 1)


async def test_idempotent_call_is_run_again_when_its_container_dies(there: FunctionWorld) -> None:
    calling = there.begin(python("wait", idempotent=True))
    await there.running(1)
    there.instances[0].agent.cells.lose_zygote()
    await until(lambda: len(there.python.payloads) == 2)
    there.python.go.set()
    assert (await calling).value == "waited"


async def test_agent_that_answers_nothing_is_given_up(there: FunctionWorld, monkeypatch) -> None:
    monkeypatch.setattr("skerry.node.functions.container.PING_EVERY_S", 0.05)
    monkeypatch.setattr("skerry.node.functions.container.PING_WITHIN_S", 0.2)
    first = await there.call("return 1")
    lost = there.begin("wait")
    instance = there.stand.world.instances[first.worker]
    instance.agent.send = lambda *_: None  # it says nothing any more
    with pytest.raises(OutcomeUnknown):
        await lost
    second = await there.call("return 2")
    assert second.worker != first.worker


async def test_container_that_dies_costs_only_its_own_calls(there: FunctionWorld) -> None:
    lost = there.begin("wait")
    await there.running(1)
    await there.instances[0].destroy()
    with pytest.raises(OutcomeUnknown):
        await lost
    assert (await there.call("return 2")).value == 2


async def test_call_whose_cell_is_full_gets_another_one(there: FunctionWorld) -> None:
    await there.call("return 1")
    there.instances[0].full_cells.update(range(2, 4))
    values = [(await there.call(f"return {number}")).value for number in range(20)]
    assert values == list(range(20))


async def test_container_isolation_uses_each_container_once(there: FunctionWorld) -> None:
    workers = [
        (await there.call(python("return 1", isolation=Isolation.CONTAINER))).worker
        for _ in range(3)
    ]
    assert len(set(workers)) == 3
    await until(lambda: not set(workers) & set(there.stand.world.instances))


async def test_prewarmed_pool_is_ready_before_anyone_calls(there: FunctionWorld) -> None:
    info = await there.node.calls.prewarm(Prewarm(minimum=2).check())
    assert (info.containers, info.minimum) == (2, 2)
    assert len(there.instances) == 2
    assert there.node.calls.pools()[0].containers == 2
    with pytest.raises(NotFound):
        await there.node.calls.prewarm(Prewarm(environment=Environment(image="nothing:1")))


async def test_moved_tag_is_seen_by_the_next_call(there: FunctionWorld) -> None:
    first = await there.call("return 1")
    there.stand.library.add("base/debian:12")
    there.node.images.forget_plans()
    second = await there.call("return 1")
    assert second.worker != first.worker
    await until(lambda: first.worker not in there.stand.world.instances)


async def test_layers_of_a_pool_must_stay(there: FunctionWorld) -> None:
    result = await there.call("return 1")
    layer = there.stand.library.layers["base/debian:12"]
    assert layer.digest in there.node.sandboxes.digests()
    assert result.worker in there.node.sandboxes.held


async def test_full_queue_is_answered_and_late_ones_are_refused(
    stand, monkeypatch, tmp_path
) -> None:
    few = replace(SMALL, calls_running_max=1, calls_waiting_max=1)
    async with world(stand, monkeypatch, tmp_path, functions=few) as there:
        first = there.begin("wait")
        await there.running(1)
        late = there.begin(python("return 2", wait_s=0.05))
        await until(lambda: len(there.node.calls.line) == 1)
        with pytest.raises(Overloaded) as caught:
            await there.call("return 3")
        assert caught.value.fields["limit"] == "function calls"
        assert caught.value.fields["retry_after_s"] > 0
        with pytest.raises(Overloaded, match="no place within"):
            await late
        there.python.go.set()
        assert (await first).value == "waited"


async def test_call_of_an_ended_job_is_refused(there: FunctionWorld) -> None:
    job = there.node.jobs.make(JobSpec(id="j1"), owner="")
    assert (await there.call(python("return 1", job="j1"))).value == 1
    there.node.jobs.end(job, "over", delete=False)
    with pytest.raises(Conflict):
        await there.call(python("return 1", job="j1"))
    assert (await there.call(python("return 1", job="never-made"))).value == 1


async def test_drained_node_takes_no_calls_and_ends_its_pools(there: FunctionWorld) -> None:
    await there.call("return 1")
    there.node.admission.draining = True
    with pytest.raises(Unavailable):
        await there.call("return 1")
    await until(lambda: not there.instances)
    there.node.admission.draining = False
    assert (await there.call("return 1")).value == 1


async def test_calls_that_run_when_the_node_ends_are_cut_off_and_say_so(
    stand, monkeypatch, tmp_path
) -> None:
    async with world(stand, monkeypatch, tmp_path) as there:
        running = there.begin("wait")
        await there.running(1)
        await there.node.calls.end()
        with pytest.raises(OutcomeUnknown):
            await running
        with pytest.raises(Unavailable):
            await there.call("return 1")


async def test_two_hundred_callers_at_once_are_all_answered(there: FunctionWorld) -> None:
    results = await asyncio.gather(*(there.call(f"return {number}") for number in range(200)))
    assert [result.value for result in results] == list(range(200))
    assert len(there.instances) <= 2
    there.node.check_invariants()


async def test_streamed_call_gives_output_and_files_as_they_come(there: FunctionWorld) -> None:
    said: list[tuple[str, bytes]] = []
    tars: list[bytes] = []

    async def output(stream: str, data: bytes) -> None:
        said.append((stream, data))

    async def fetched(pieces: Any) -> None:
        tars.append(b"".join([piece async for piece in pieces]))

    async def stdin() -> Any:
        yield b"one "
        yield b"two"

    streams = CallStreams(output=output, fetched=fetched, stdin=stdin())
    result = await there.node.calls.call(program("cat"), streams=streams)
    assert b"".join(data for _, data in said) == b"one two"
    assert (result.stdout, result.stdout_total) == (b"", 7)
    streams = CallStreams(output=output, fetched=fetched)
    spec = program("write", "/call/out.txt", "made", fetch=("*.txt", "gone"))
    result = await there.node.calls.call(spec, streams=streams)
    with tarfile.open(fileobj=io.BytesIO(tars[0])) as archive:
        assert archive.getnames() == ["out.txt"]
        assert archive.extractfile("out.txt").read() == b"made"  # type: ignore[union-attr]
    assert (result.files, result.left_out) == ({}, {"gone": "no such file"})


async def test_client_of_a_stream_that_takes_nothing_ends_the_call(there: FunctionWorld) -> None:
    async def output(stream: str, data: bytes) -> None:
        raise InvalidRequest("the client took nothing")

    async def fetched(pieces: Any) -> None:
        raise AssertionError

    streams = CallStreams(output=output, fetched=fetched)
    with pytest.raises(InvalidRequest):
        await there.node.calls.call(program("flood", "500000"), streams=streams)
    assert there.node.calls.turns.running == 0


async def test_gauges_and_counts_tell_of_calls(there: FunctionWorld) -> None:
    await there.call("return 1")
    await there.call(program("exit", "3"))
    gauges = there.node.gauges()
    assert gauges["function_containers"] == 1
    assert gauges["function_calls_running"] == 0
    assert there.node.calls.calls == {("python", "ok"): 1, ("program", "failed"): 1}
