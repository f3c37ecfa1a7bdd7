"""Connections out: the name's own addresses, checked, and no others."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Protocol

from skerry.network.addresses import Address, never_reachable, not_public
from skerry.network.resolve import LookupFailed, Resolver

CONNECT_S = 10.0  # for one address
READ_BYTES = 65_536


class Refused(Exception):
    """The name leads where a sandbox may not go; the text says where."""


class Failed(Exception):
    """The other side could not be reached, or broke off; the text says how."""


class Stream(Protocol):
    """Bytes both ways; `skerry.guest.forward.Connection` is one."""

    async def read(self) -> bytes:
        """Returns the next bytes, b"" at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """Sends all of it; waits while the other side does not take it."""
        ...

    async def write_eof(self) -> None:
        """Ends this half."""
        ...

    def reset(self) -> None:
        """Aborts what is not over."""
        ...


class Upstream:
    """A connection to a server outside, as a Stream; its errors are Failed."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: Address
    ) -> None:
        self.address = address
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        """Returns the next bytes, b"" at the end."""
        try:
            return await self._reader.read(READ_BYTES)
        except OSError as error:
            raise Failed(f"the server broke off: {error.strerror or error}") from error

    async def write(self, data: bytes) -> None:
        """Sends it; waits while the server does not take it."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise Failed(f"the server broke off: {error.strerror or error}") from error

    async def write_eof(self) -> None:
        """Ends this half."""
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    def reset(self) -> None:
        """Closes it at once."""
        self._writer.transport.abort()


class Dialer:
    """Connects to names. `may_be_private` and `own_ports` are what the operator's side knows."""

    def __init__(
        self,
        resolver: Resolver,
        may_be_private: Callable[[str], bool],
        own_ports: Callable[[], frozenset[int]],
    ) -> None:
        self._resolver = resolver
        self._may_be_private = may_be_private
        self._own_ports = own_ports

    async def dial(
        self, host: str, port: int, lookups: asyncio.Semaphore, *, named: bool = True
    ) -> Upstream:
        """Returns a connection to one of the name's allowed addresses, the first that answers.

        `lookups` bounds how many names one sandbox has looked up at once: others want to, too. A name
        that no entry names (`*` fits it alone) may not be private, whatever the operator says of it.

        The name is looked up once and the addresses that were checked are the ones connected to:
        a second answer of its name server changes nothing. Raises Refused or Failed.
        """
        try:
            async with lookups:
                addresses = await self._resolver.addresses(host)
        except LookupFailed as error:
            raise Failed(f"{host} cannot be looked up: {error}") from None
        reasons = {address: self._refusal(host, address, port, named) for address in addresses}
        allowed = [address for address, reason in reasons.items() if reason is None]
        if not allowed:
            address, reason = next(iter(reasons.items()))
            raise Refused(f"{host} leads to {address}, {reason}")
        why = ""
        for address in allowed:
            try:
                async with asyncio.timeout(CONNECT_S):
                    reader, writer = await asyncio.open_connection(
                        str(address), port, limit=2 * READ_BYTES
                    )
            except TimeoutError:
                why = f"{address} does not answer within {CONNECT_S:g} s"
            except OSError as failed:
                why = f"{address}: {failed.strerror or failed}"
            else:
                return Upstream(reader, writer, address)
        raise Failed(f"{host} port {port} cannot be reached: {why}")

    def _refusal(self, host: str, address: Address, port: int, named: bool) -> str | None:
        if reason := never_reachable(address):
            return reason
        local = _is_local(address)
        if local and port in self._own_ports():
            return "the node's own service"
        if named and (self._resolver.is_pinned(host) or self._may_be_private(host)):
            return None
        return "an address of the node's machine" if local else not_public(address)


def _is_local(address: Address) -> bool:
    """Returns whether the address is one of this machine: only those can be bound to."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True
