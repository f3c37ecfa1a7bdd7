"""The product as the benchmarks use it: a node of their own, through the SDK, gone at the end."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

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
    from skerry.backends.shared import proc

    try:
        async with skerry.aio.connect(state_dir=STATE, run_dir=RUN) as client:
            await client.images.debian("debian:12", "bookworm")
            node = (await client.health()).pid
            yield client
        until = time.monotonic() + GONE_WITHIN_SECONDS
        while proc.runs(node) and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    finally:
        shutil.rmtree(STATE, ignore_errors=True)
        shutil.rmtree(RUN, ignore_errors=True)


class OwnNode:
    """A node that is no embedded one, with a configuration; sandboxes live on when it is restarted."""

    def __init__(self, program: tuple[str, ...] = ()) -> None:
        """`program` stands in for the command line's own."""
        self._program = program or (sys.executable, "-m", "skerry.cli.main")
        self._process: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._process is not None:
                async with self.client() as client:
                    left = [info.id for info in await client.sandboxes.list()]
                    await client.sandboxes.destroy_many(left)
                await self.stop()
        finally:
            shutil.rmtree(STATE, ignore_errors=True)
            shutil.rmtree(RUN, ignore_errors=True)

    def client(self) -> Any:
        """Return a client of it, to be entered."""
        import skerry.aio

        return skerry.aio.connect(f"unix://{RUN}/node.sock")

    async def start(self, config: str) -> None:
        """Start it with this configuration, ending it first if it runs; it answers afterwards."""
        await self.stop()
        os.makedirs(STATE, mode=0o700, exist_ok=True)
        Path(STATE, "node.toml").write_text(config, encoding="utf-8")
        argv = [*self._program, "node", "--config", f"{STATE}/node.toml"]
        with open(f"{STATE}/out.log", "ab") as log:  # noqa: ASYNC230 - outside of every clock
            self._process = subprocess.Popen(  # noqa: ASYNC220 - a fork, outside of every clock
                [*argv, "--state", STATE, "--run", RUN],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + GONE_WITHIN_SECONDS
        while True:
            try:
                async with self.client() as client:
                    await client.health()
                    return
            except Exception:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise
            await asyncio.sleep(0.1)

    async def stop(self) -> None:
        """End it in order; its sandboxes stay."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(self._process.wait, GONE_WITHIN_SECONDS)
            self._process = None
