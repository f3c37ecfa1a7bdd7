"""Function calls through the client: contents and streams, many at once, refusals, lost answers."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from echo_functions import EchoFunctions

import skerry
from skerry.aio import connect
from skerry.errors import InvalidRequest, OutcomeUnknown, Overloaded, Unavailable
from skerry.spec.function import CallSpec, ProgramCall
from waiting import until

CODE = "def main(*args): return args"
LONG = os.urandom(6 << 20)


@asynccontextmanager
async def calling(stand):
    async with stand.serving() as (node, _):
        node.functions = EchoFunctions()
        async with connect(f"unix://{node.config.socket_path}") as client:
            yield node.functions, client.functions


def _add(told: dict[str, bytearray], name: str, data: bytes) -> None:
    told[name] += data


async def test_a_call_and_its_answer(stand) -> None:
    async with calling(stand) as (functions, calls):
        result = await calls.call("python", code=CODE, args=[1, "a"], stdin="in", wall=3)
        assert (result.value, result.text, result.check().ok) == ([1, "a"], "in", True)
        assert functions.specs[0].limits.wall_s == 3


async def test_a_spec_is_taken_as_it_is(stand) -> None:
    async with calling(stand) as (functions, calls):
        spec = CallSpec(kind=ProgramCall(argv=("a",)), stdin=b"x", wait_s=5)
        assert (await calls.call(spec)).stdout == b"x"
        assert functions.specs[0].kind == spec.kind
        with pytest.raises(InvalidRequest, match="wall"):
            await calls.call(spec, wall=3)


async def test_small_files_go_with_the_call(stand, tmp_path) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    async with calling(stand) as (functions, calls):
        result = await calls.call(
            "program",
            argv=["./run.sh"],
            files={"a.txt": "é", "b/c": b"\0", "run.sh": tmp_path / "run.sh"},
            fetch=["a.txt", "b/*"],
        )
        assert result.files == {"a.txt": "é".encode(), "b/c": b"\0"}
        assert functions.specs[0].files["run.sh"].executable


async def test_long_files_and_directories_are_streamed(stand, tmp_path) -> None:
    (tmp_path / "in/d").mkdir(parents=True)
    (tmp_path / "in/d/long").write_bytes(LONG)
    (tmp_path / "in/short").write_text("s")
    async with calling(stand) as (functions, calls):
        result = await calls.call("program", argv=["x"], files=tmp_path / "in", fetch="*")
        assert result.files == {"d/long": LONG, "short": b"s"}
        files = {"z": LONG, "y/d": tmp_path / "in/d", "link": tmp_path / "in/short"}
        result = await calls.call(
            "program", argv=["x"], files=files, fetch="*", fetch_to=tmp_path / "out"
        )
        assert result.files == {}
        assert (tmp_path / "out/z").read_bytes() == LONG
        assert (tmp_path / "out/y/d/long").read_bytes() == LONG
        assert (tmp_path / "out/link").read_text() == "s"
        assert all(spec.files == {} for spec in functions.specs)


async def test_long_input_is_streamed_and_output_comes_as_it_is_written(stand, tmp_path) -> None:
    (tmp_path / "in").write_bytes(LONG)

    async def pieces():
        for at in range(0, len(LONG), 100_000):
            yield LONG[at : at + 100_000]

    async with calling(stand) as (_, calls):
        for stdin in (LONG, tmp_path / "in", pieces()):
            told = {"stdout": bytearray(), "stderr": bytearray()}
            result = await calls.call(
                "program", argv=["x"], stdin=stdin, on_output=partial(_add, told)
            )
            assert (result.stdout, result.stdout_total) == (b"", len(LONG))
            assert told == {"stdout": LONG, "stderr": b""}
        result = await calls.call("program", argv=["x"], stdin=LONG, output="8MiB")
        assert result.stdout == LONG


async def test_what_the_input_raises_is_raised_and_ends_the_call(stand) -> None:
    async def pieces():
        yield b"x"
        raise ZeroDivisionError

    async with calling(stand) as (functions, calls):
        with pytest.raises(ZeroDivisionError):
            await calls.call("program", argv=["x"], stdin=pieces())
        await until(lambda: functions.running == 0)
        with pytest.raises(InvalidRequest, match="stdin"):
            await calls.call("program", argv=["x"], stdin=3)
        with pytest.raises(FileNotFoundError):
            await calls.call("program", argv=["x"], files={"a": Path("/nowhere/a")})


@pytest.mark.parametrize("streamed", [False, True])
async def test_who_stops_waiting_ends_the_call(stand, streamed: bool) -> None:
    async with calling(stand) as (functions, calls):
        functions.go.clear()
        more = {"on_output": lambda *_: None} if streamed else {}
        task = asyncio.create_task(calls.call("python", code=CODE, **more))
        await until(lambda: functions.running == 1)
        task.cancel()
        await until(lambda: functions.ended_early == 1)
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_call_that_never_started_is_tried_again(stand, streamed: bool) -> None:
    more = {"on_output": lambda *_: None} if streamed else {}
    async with calling(stand) as (functions, calls):
        functions.errors = [
            Unavailable("the container was lost before it began", retry_after_s=0.05),
            Overloaded("full", limit="function calls", retry_after_s=0.01),
        ]
        assert (await calls.call("python", code=CODE, args=[1], **more)).value == [1]
        assert len(functions.specs) == 3
        functions.errors = [Overloaded("full", limit="function calls", retry_after_s=0.01)]
        with pytest.raises(Overloaded, match="full"):
            await calls.call("python", code=CODE, wait=0, **more)


async def test_input_that_can_be_read_once_is_not_read_before_the_call_has_a_place(stand) -> None:
    async def pieces():
        for n in range(3):
            yield b"%d" % n

    async with calling(stand) as (functions, calls):
        functions.errors = [
            Overloaded("full", limit="function calls", retry_after_s=0.01),
            Unavailable("the container was lost before it began", retry_after_s=0.05),
        ]
        result = await calls.call("program", argv=["x"], stdin=pieces())
        assert (result.stdout, len(functions.specs)) == (b"012", 3)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_call_that_may_have_run_is_not_run_again(stand, streamed: bool) -> None:
    more = {"on_output": lambda *_: None} if streamed else {}
    async with calling(stand) as (functions, calls):
        functions.errors = [OutcomeUnknown("the container was lost")]
        with pytest.raises(OutcomeUnknown):
            await calls.call("python", code=CODE, **more)
        assert len(functions.specs) == 1


async def test_many_calls_in_order_with_progress(stand) -> None:
    async with calling(stand) as (functions, calls):
        told: list[tuple[int, int]] = []
        functions.go.clear()
        calling_all = asyncio.create_task(
            calls.call_many(
                "python",
                ({"args": [n]} for n in range(50)),
                code=CODE,
                at_once=7,
                progress=lambda *one: told.append(one),
            )
        )
        await until(lambda: functions.running == 7)
        functions.go.set()
        outcomes = await calling_all
        assert [one.result.value for one in outcomes] == [[n] for n in range(50)]
        assert told == [(n + 1, 50) for n in range(50)]
        assert functions.most == 7


async def test_one_of_many_that_fails_is_an_outcome(stand) -> None:
    async with calling(stand) as (functions, calls):
        functions.errors = [OutcomeUnknown("lost")]
        first, second = await calls.call_many("python", [{}, {}], code=CODE, at_once=1)
        with pytest.raises(OutcomeUnknown):
            _ = first.result
        assert second.result.ok
        (wrong,) = await calls.call_many("python", [{"wall": -1}], code=CODE)
        assert isinstance(wrong.error, InvalidRequest)
        (wrong,) = await calls.call_many("python", [[7]], code=CODE)  # type: ignore[list-item]
        assert "number 0 is a list, not a dict of options" in str(wrong.error)


async def test_leaving_many_early_ends_those_under_way(stand) -> None:
    def endless():
        while True:
            yield {}

    async with calling(stand) as (functions, calls):
        outcomes = calls.call_each("python", endless(), code=CODE, at_once=4)
        assert (await anext(outcomes)).result.ok
        functions.go.clear()
        following = asyncio.create_task(anext(outcomes))
        while functions.running < 4:
            if following.done():
                following = asyncio.create_task(anext(outcomes))
            await asyncio.sleep(0)
        following.cancel()
        await asyncio.wait({following})
        await outcomes.aclose()
        await until(lambda: functions.running == 0)
        assert functions.ended_early == 4


async def test_pools_are_warmed_and_listed(stand) -> None:
    async with calling(stand) as (functions, calls):
        pool = await calls.prewarm(modules=["json"], minimum=2, keep=60)
        assert (await calls.pools())[0] == pool
        assert functions.warmed[0].keep_s == 60
        with pytest.raises(InvalidRequest, match="minimum"):
            await calls.prewarm(minimum=-1)
        with pytest.raises(InvalidRequest, match="isolation"):
            await calls.prewarm(isolation="vm")


async def test_the_sync_face_does_the_same(stand, tmp_path) -> None:
    def work(url: str) -> None:
        with skerry.connect(url) as client:
            calls = client.functions
            assert calls.call("python", code=CODE, args=[7]).value == [7]
            assert calls.call("program", argv=["x"], stdin=iter([b"a", b"b"])).text == "ab"
            many = calls.call_many("python", [{"args": [n]} for n in range(9)], code=CODE)
            assert [one.result.value for one in many] == [[n] for n in range(9)]
            each = calls.call_each("python", [{"args": [n]} for n in range(9)], code=CODE)
            assert sorted(one.index for one in each) == list(range(9))
            assert calls.pools() == []

    async with stand.serving() as (node, _):
        node.functions = EchoFunctions()
        await asyncio.to_thread(work, f"unix://{node.config.socket_path}")
