"""Serves the application on a unix socket, and on TCP if asked, within the running loop."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn

from skerry.errors import Conflict, Unavailable
from skerry.node.config import NodeConfig, tcp_address
from skerry.node.server.protocol import BoundedProtocol, bounds_of
from skerry.node.server.sockets import MESSAGE_BYTES_MAX

BACKLOG = 4096
KEEP_ALIVE_S = 75
DRAIN_S = 2.0  # answers under way may take that long at the end


class Listener(uvicorn.Server):
    """A uvicorn server that leaves signals to the daemon and listens where it is told.

    The unix socket has mode 0600 from the start; a stale one of a dead daemon is replaced.
    """

    def __init__(self, app: Any, config: NodeConfig) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="httptools",
                ws="websockets-sansio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=int(DRAIN_S),
                ws_max_size=MESSAGE_BYTES_MAX,
                ws_per_message_deflate=False,
            )
        )
        self.tcp: tuple[str, int] | None = None
        self.bounds = bounds_of(config.limits.connections_max)
        self._node = config
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens; Unavailable if an address cannot be had."""
        del sockets
        loop = asyncio.get_running_loop()
        state: dict[str, Any] = {}

        def protocol() -> asyncio.Protocol:
            return BoundedProtocol(
                self.bounds, config=self.config, server_state=self.server_state, app_state=state
            )

        self.servers = []
        unix = bind_unix(self._node.socket_path)
        self.servers.append(await loop.create_unix_server(protocol, sock=unix, backlog=BACKLOG))
        if self._node.tcp is not None:
            host, port = tcp_address(self._node.tcp)
            try:
                server = await loop.create_server(protocol, host, port, backlog=BACKLOG)
            except OSError as error:
                raise Unavailable(f"cannot listen on {self._node.tcp}: {error}") from error
            self.servers.append(server)
            self.tcp = server.sockets[0].getsockname()[:2]
        self.started = True

    async def open(self) -> None:
        """Returns when both addresses are listened on."""
        if not self.config.loaded:
            self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        await self.startup()
        await self.on_tick(0)
        self._task = asyncio.create_task(self._tick())

    async def close(self) -> None:
        """Accepts no more, lets answers finish for a moment, then cuts what is left."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait((self._task,))
        for connection in list(self.server_state.connections):
            connection.shutdown()
        for server in self.servers:
            server.close()
        with suppress(FileNotFoundError):
            os.unlink(self._node.socket_path)
        tasks = tuple(self.server_state.tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=DRAIN_S)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()

    async def _tick(self) -> None:
        """Keeps the Date header current."""
        while True:
            await asyncio.sleep(1.0)
            await self.on_tick(0)


def bind_unix(path: str) -> socket.socket:
    """Returns a socket bound at the path, mode 0600; Conflict if someone listens there."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_socket(path):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                try:
                    probe.connect(path)
                except OSError:
                    os.unlink(path)  # its daemon is dead
                else:
                    raise Conflict(f"another daemon listens on {path}")
        mask = os.umask(0o177)
        try:
            unix.bind(path)
        finally:
            os.umask(mask)
        unix.setblocking(False)
    except OSError as error:
        unix.close()
        raise Unavailable(f"cannot listen on {path}: {error}") from error
    except BaseException:
        unix.close()
        raise
    return unix


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False
