"""The output of a command over lost connections: each byte once, in order, then its result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from skerry.errors import Unavailable
from skerry.sdk.loss import RECONNECT_FOR_S
from skerry.sdk.stream import events_of
from skerry.sdk.transport import RETRY_FIRST_S, RETRY_MAX_S, Transport
from skerry.wire.http import StreamEvent


async def follow(
    transport: Transport, op: str, *, stdout: int, stderr: int, pace: bool
) -> AsyncGenerator[StreamEvent]:
    """Yields output of the operation at the path `op` from these offsets on, then its result.

    A lost connection is repaired, for a minute from the last event. Raises what the command's
    stream says, NotFound, and Unavailable when the node stays away.
    """
    place = {"stdout": stdout, "stderr": stderr}
    loop = asyncio.get_running_loop()
    give_up, pause = loop.time() + RECONNECT_FOR_S, RETRY_FIRST_S
    while True:
        params = {name: str(at) for name, at in place.items()} | {"pace": str(int(pace))}
        try:
            chunks = transport.receive("GET", f"{op}/output", params=params)
            async with aclosing(chunks):
                async for event in events_of(chunks):
                    for name in place:
                        data = getattr(event, name)
                        if data is not None and event.at is not None:
                            place[name] = event.at + len(data)
                    give_up, pause = loop.time() + RECONNECT_FOR_S, RETRY_FIRST_S
                    if event.started is None:
                        yield event
                    if event.result is not None:
                        return
        except Unavailable:
            if loop.time() + pause > give_up:
                raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, RETRY_MAX_S)
