"""Function calls through client, wire and service on a fake backend: what streams, and how it ends."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager

from skerry.aio import connect
from skerry.spec.function_limits import Limit
from waiting import until

LONG = os.urandom(6 << 20)


@asynccontextmanager
async def calling(stand):
    async with (
        stand.serving() as (node, _),
        connect(f"unix://{node.config.socket_path}") as client,
    ):
        yield node, client.functions


async def test_input_and_output_of_any_length_come_whole(stand) -> None:
    async with calling(stand) as (_, calls):
        assert (await calls.call("program", argv=["cat"], stdin="abc")).text == "abc"
        result = await calls.call("program", argv=["cat"], stdin=LONG, output="16MiB")
        assert (result.exit_code, result.stdout) == (0, LONG)
        seen = bytearray()
        result = await calls.call(
            "program",
            argv=["cat"],
            stdin=LONG,
            output="16MiB",
            on_output=lambda _, data: seen.extend(data),
        )
        assert (result.exit_code, result.stdout, seen) == (0, b"", LONG)


async def test_output_past_its_limit_ends_a_streamed_call_too(stand) -> None:
    async with calling(stand) as (_, calls):
        seen = bytearray()
        result = await calls.call(
            "program",
            argv=["cat"],
            stdin=LONG,
            output="1MiB",
            on_output=lambda _, data: seen.extend(data),
        )
        assert (result.limit, result.ok, bytes(seen)) == (Limit.OUTPUT, False, LONG[: 1 << 20])


async def test_files_come_back_with_the_result_or_beneath_a_directory(stand, tmp_path) -> None:
    async with calling(stand) as (_, calls):
        small = {"a": b"x", "d/b": b"y", "e": b""}
        result = await calls.call("program", argv=["echo"], files=small, fetch=["a", "d/*", "no"])
        assert result.files == {"a": b"x", "d/b": b"y"}
        assert result.left_out == {"no": "no such file"}
        result = await calls.call(
            "program", argv=["echo"], files={"d/long": LONG}, fetch="**", fetch_to=tmp_path
        )
        assert (result.files, result.left_out) == ({}, {})
        assert (tmp_path / "d/long").read_bytes() == LONG


async def test_who_leaves_ends_the_call_inside(stand) -> None:
    async with calling(stand) as (node, calls):
        for more in ({}, {"on_output": lambda *_: None}):
            task = asyncio.create_task(calls.call("program", argv=["sleep", "60"], wall=90, **more))
            await until(lambda: node.gauges()["function_calls_running"] == 1)
            task.cancel()
            await until(lambda: node.gauges()["function_calls_running"] == 0)
            await asyncio.wait({task})


async def test_many_share_the_places_that_there_are(stand) -> None:
    async with calling(stand) as (_, calls):
        outcomes = await calls.call_many(
            "program", ({"argv": ["echo", str(n)]} for n in range(100)), at_once=50
        )
        assert [one.result.text for one in outcomes] == [f"{n}\n" for n in range(100)]
        (pool,) = await calls.pools()
        assert (pool.running, pool.waiting, pool.calls) == (0, 0, 100)
