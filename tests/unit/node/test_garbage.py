"""What a request leaves in memory is gone when it is answered, without a search for circles.

Circles cost each command a part of a collection, in which the loop stands still.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

OURS = ("skerry.node", "skerry.guest", "skerry.wire", "uvicorn", "starlette")


@contextmanager
def circles() -> Iterator[list[str]]:
    """Names the types of what only a search for circles can free, after the block."""
    found: list[str] = []
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        for thing in gc.garbage:
            name = f"{type(thing).__module__}.{type(thing).__qualname__}"
            if name.startswith(OURS):
                found.append(name)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def run(api: Any, sid: str, **spec: Any) -> None:
    await api.call("POST", f"/v1/sandboxes/{sid}/run", spec)


async def test_commands_leave_no_circles(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        await api.call("POST", f"/v1/sandboxes/{sid}/sessions", {"id": "one"})
        await run(api, sid, argv=["true"])
        with circles() as found:
            for _ in range(3):
                await run(api, sid, argv=["echo", "1"], timeout_s=60.0)
                await run(api, sid, argv=["cat"], stdin="aGk=")
                await run(api, sid, shell="echo 1", session="one")
                await run(api, sid, argv=["nonesuch"])
        assert found == []


async def test_streams_files_and_refusals_leave_no_circles(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        headers = {"content-type": "application/json"}

        async def once() -> None:
            url = f"/v1/sandboxes/{sid}/stream"
            data = msgspec.json.encode({"argv": ["echo", "1"]})
            async with api.session.post(url, data=data, headers=headers) as answer:
                assert await answer.read()
            url = f"/v1/sandboxes/{sid}/files?path=/tmp/a"
            async with api.session.put(url, data=b"x" * 100_000) as answer:
                assert answer.status == 200
            async with api.session.get(url) as answer:
                assert len(await answer.read()) == 100_000
            await api.call("GET", f"/v1/sandboxes/{sid}")
            await api.call("GET", "/v1/sandboxes/nonsense", status=422)
            await api.call("GET", "/v1/nothing", status=404)

        await once()
        with circles() as found:
            await once()
        assert found == []
