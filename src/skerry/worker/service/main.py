"""A worker's process: its parts, from the state directory to the socket."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from skerry.worker.downloads import Downloads
from skerry.worker.ports import Client
from skerry.worker.service.http import listening
from skerry.worker.service.service import Service


async def serve(
    state: Path, socket: Path, client: Client, downloads: Downloads, *, worker: int = 0
) -> None:
    """Serves until SIGTERM or SIGINT. Rollouts stay as they are: the next start goes on with them.

    Raises Conflict if another worker has the state directory, StorageFailed.
    """
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    service = Service(state, client, downloads, worker=worker)
    async with service.running(), listening(service, socket):
        await ending.wait()
