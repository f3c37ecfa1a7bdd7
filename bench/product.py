"""The product as the benchmarks use it: a node of their own, through the SDK, gone at the end."""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

STATE = f"/var/tmp/skerry-bench-{os.getpid()}"
RUN = f"/run/skerry-bench-{os.getpid()}"
GONE_WITHIN_SECONDS = 60.0


@asynccontextmanager
async def own_client() -> AsyncIterator[Any]:
    """Yield a client of a fresh embedded node that has the base image; nothing is left of it.

    A node of one's own, so that what other users of this machine do with theirs changes neither
    the figures nor the census. Making the image is set-up and belongs to no clock.
    """
    import skerry.aio

    try:
        async with skerry.aio.connect(state_dir=STATE, run_dir=RUN) as client:
            await client.images.debian("debian:12", "bookworm")
            node = (await client.health()).pid
            yield client
        until = time.monotonic() + GONE_WITHIN_SECONDS
        while os.path.exists(f"/proc/{node}") and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    finally:
        shutil.rmtree(STATE, ignore_errors=True)
        shutil.rmtree(RUN, ignore_errors=True)
