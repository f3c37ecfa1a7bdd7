"""How a connection to a node is made: over a unix socket, TCP, or TLS on TCP."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, TypeVar

import aiohappyeyeballs

P = TypeVar("P", bound=asyncio.BaseProtocol)
Addresses = list[tuple[int, int, int, str, tuple[Any, ...]]]

CONNECT_TIMEOUT_S = 10.0
ADDRESSES_FOR_S = 30.0  # a name is asked for again after this
NEXT_ADDRESS_S = 0.25  # a second address is tried beside the first after this (RFC 8305)
FULL_PAUSE_S = 0.01
# Idle for 20 s, then asked every 10 s, lost after four questions without an answer.
KEEP_ALIVE = (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4))


class Dialer:
    """Makes connections from one loop to one node; at `socket_path`, or else at host and port."""

    def __init__(self, host: str, port: int, *, socket_path: str | None, tls: bool) -> None:
        self._host, self._port, self._socket_path, self._tls = host, port, socket_path, tls
        self._context: ssl.SSLContext | None = None
        self._turn = asyncio.Lock()  # of asking for addresses
        self._addresses: Addresses = []
        self._stale_at = 0.0

    async def dial(self, make: Callable[[], P]) -> P:
        """Returns the protocol of a new connection; OSError if there is none within the time."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if self._socket_path is not None:
                    return await _over_unix(make, self._socket_path)
                return await self._over_tcp(make)
        except TimeoutError:
            raise TimeoutError(f"no connection within {CONNECT_TIMEOUT_S:g} s") from None

    async def _over_tcp(self, make: Callable[[], P]) -> P:
        loop = asyncio.get_running_loop()
        async with self._turn:
            if loop.time() >= self._stale_at:
                self._addresses = await self._resolve()
                self._stale_at = loop.time() + ADDRESSES_FOR_S
            if self._tls and self._context is None:
                self._context = await asyncio.to_thread(_trusting_the_system)
        sock = await aiohappyeyeballs.start_connection(
            self._addresses,
            happy_eyeballs_delay=NEXT_ADDRESS_S,
            socket_factory=kept_alive,
        )
        host = self._host if self._tls else None
        made = await loop.create_connection(
            make, sock=sock, ssl=self._context, server_hostname=host
        )
        return made[1]

    async def _resolve(self) -> Addresses:
        numbers = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        try:
            found: Any = socket.getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM, flags=numbers
            )
        except socket.gaierror:  # a name
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise OSError(f"no host can have this name: {error}") from error
        return list(found)


async def _over_unix(make: Callable[[], P], path: str) -> P:
    """Returns the protocol of a connection, when the node has room in its queue of new ones.

    A full queue is EAGAIN for a socket that does not block (unix(7)), with nothing to wait on; loops
    take it for a failure, or even for a connection.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        while True:
            try:
                sock.connect(path)
                break
            except BlockingIOError:
                await asyncio.sleep(FULL_PAUSE_S)
        return (await asyncio.get_running_loop().create_unix_connection(make, sock=sock))[1]
    except BaseException:
        sock.close()
        raise


def kept_alive(address: tuple[Any, ...]) -> socket.socket:
    """Returns a socket that notices within about a minute that the other host is gone.

    A command may say nothing for hours; without probes (RFC 9293 section 3.8.4) its caller would
    wait for ever for a host that lost power, or behind a NAT that has forgotten the connection.
    """
    family, kind, number, _, _ = address
    sock = socket.socket(family, kind, number)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE:
        if hasattr(socket, name):  # macOS has other names for some
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return sock


def _trusting_the_system() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
