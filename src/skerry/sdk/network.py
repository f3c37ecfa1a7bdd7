"""The network of a sandbox, as a client sees it: its policy, and its ports from outside and inside."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

from skerry.sdk.connect import AsyncConnection, Forwarded, connected, forwarding
from skerry.sdk.forward import ReverseForward
from skerry.sdk.transport import Transport
from skerry.sdk.typed import listed
from skerry.wire.network import NetworkBody, NetworkView


class SandboxNetwork:
    """The part of a sandbox that is about its network."""

    _transport: Transport
    _root: str

    async def network(self) -> NetworkView:
        """Returns its network policy and the last decisions of its proxy."""
        path = f"{self._root}/network"
        return await self._transport.call("GET", path, NetworkView, repeatable=True)

    async def set_network(self, entries: Sequence[str]) -> NetworkView:
        """Gives it another policy, in force when this returns; () is loopback only.

        Open connections that are no longer allowed are cut. Variables for a service that is newly
        allowed are set for commands that start from then on.
        """
        body = NetworkBody(network=listed("network", entries))
        path = f"{self._root}/network"
        return await self._transport.call("PUT", path, NetworkView, body=body, repeatable=True)

    @contextlib.asynccontextmanager
    async def connect(self, port: int) -> AsyncIterator[AsyncConnection]:
        """A connection to a port of the sandbox's loopback, for a block.

        Tries 127.0.0.1, then ::1; raises PortRefused if nothing answers there. It keeps the sandbox
        active, and ends with the node that carries it.
        """
        async with connected(self._transport, self._root, port) as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def forward(
        self, port: int, local_port: int = 0, *, host: str = "127.0.0.1"
    ) -> AsyncIterator[Forwarded]:
        """Listens on `host`:`local_port` here (0: a free port) for a block, and yields where.

        Each connection is carried to the port inside; one that is refused there is reset.
        """
        forwarded = forwarding(self._transport, self._root, port, host, local_port)
        async with forwarded as where:
            yield where

    def reverse_forward(self, port: int, host: str, target_port: int) -> ReverseForward:
        """Connects 127.0.0.1:`port` inside to `host`:`target_port` as seen from here, for a block."""
        return ReverseForward(self._transport, f"{self._root}/forward", port, host, target_port)
