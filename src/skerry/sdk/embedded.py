"""The embedded node: found, or started as a daemon of its own, and held by an owner connection.

The daemon is never in the user's process (decision 21), so a killed script takes down nothing that
belongs to others; its own undetached sandboxes end when its connection's lease runs out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import subprocess
import sys
import threading
from pathlib import Path

import aiohttp

from skerry.errors import SkerryError, Unavailable
from skerry.sdk.transport import Transport
from skerry.wire.http import Health

STATE_DIR = "/var/lib/skerry"
RUN_DIR = "/run/skerry"
START_WITHIN_S = 60.0
RENEW_PAUSE_S = 0.5


async def find_or_start(state_dir: str, run_dir: str) -> Transport:
    """Returns a transport to a node that answers; raises Unavailable saying what its log says."""
    transport = Transport("http://node", socket_path=f"{run_dir}/node.sock")
    if await _answers(transport):
        return transport
    if os.geteuid() != 0:
        await transport.close()
        raise Unavailable(
            "an embedded node needs root. Run as root, or name a node of somebody who is: "
            "SKERRY_URL=http://HOST:PORT SKERRY_TOKEN=..., or skerry.connect(url, token)"
        )
    log = Path(state_dir) / "node.log"
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    process = _start(state_dir, run_dir, log)
    try:
        async with asyncio.timeout(START_WITHIN_S):
            while not await _answers(transport):
                # Another process may have won the race to start it: then ours has left already and
                # the other's node will answer.
                if process.poll() not in (None, 0, 75):
                    break
                await asyncio.sleep(0.03)
            else:
                # The daemon outlives this call: somebody must collect it, or it stays a zombie of
                # the user's process.
                threading.Thread(
                    target=process.wait, name="skerry-node-reaper", daemon=True
                ).start()
                return transport
    except TimeoutError:
        pass
    await transport.close()
    raise Unavailable(f"the embedded node did not start; its log {log} ends with:\n{_tail(log)}")


def _start(state_dir: str, run_dir: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "skerry.cli.main",
                "node",
                "--embedded",
                "--state",
                state_dir,
                "--run",
                run_dir,
                "--log",
                str(log),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
        )


async def _answers(transport: Transport) -> bool:
    try:
        await transport.call("GET", "/v1/health", Health)
    except SkerryError:
        return False
    return True


def _tail(log: Path) -> str:
    with contextlib.suppress(OSError):
        return "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    return "(no log)"


class OwnerConnection:
    """Keeps this client's claim on its undetached sandboxes: open while the client is.

    A broken connection is renewed within the lease; closing it gives the sandboxes up at once.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._owner = secrets.token_hex(16)
        self._task: asyncio.Task[None] | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def open(self) -> None:
        """Registers with the node; from here requests carry the owner's name."""
        self._socket = await self._connect()
        self._transport.owner = self._owner
        self._task = asyncio.create_task(self._hold())

    async def close(self) -> None:
        """Gives the claim up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._socket is not None:
            await self._socket.close()
        self._transport.owner = None

    async def _connect(self) -> aiohttp.ClientWebSocketResponse:
        return await self._transport.socket("/v1/connection", {"owner": self._owner})

    async def _hold(self) -> None:
        while True:
            if self._socket is not None:
                async for _ in self._socket:
                    pass
            await asyncio.sleep(RENEW_PAUSE_S)
            with contextlib.suppress(Unavailable):
                self._socket = await self._connect()
