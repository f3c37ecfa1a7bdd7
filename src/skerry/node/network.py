"""Sandboxes and the network: who gets a gateway, what is set inside, and changes while they live.

A sandbox without entries has no gateway and nothing listens for it: however it was made, there is
no way out.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Callable

from skerry.errors import FileRefused, InvalidRequest, NotFound
from skerry.guest.client import GuestClient
from skerry.guest.files import GuestFiles
from skerry.network import inside
from skerry.network.decision import Decisions
from skerry.network.dial import Dialer
from skerry.network.discover import discover
from skerry.network.gateway import Bounds, Gateway, Places
from skerry.network.policy import Policy
from skerry.network.resolve import Lookup, Resolver, SystemLookup
from skerry.network.services import NetworkConfig, Service, Services
from skerry.node.clock import Clock
from skerry.node.life.link import Link
from skerry.node.life.sandbox import Sandbox
from skerry.wire.network import NetworkView

log = logging.getLogger("skerry.node")

SOURCES_BYTES_MAX = 65_536


class Networks:
    """The node's part of the network. `own_ports` are ports of this node's API, never reachable."""

    def __init__(
        self,
        config: NetworkConfig,
        clock: Clock,
        lookup: Lookup | None = None,
        discovered: Callable[[str], Service] = discover,
    ) -> None:
        self.own_ports: frozenset[int] = frozenset()
        self._config = config
        self._places = Places(config.connections_node_max)
        self._clock = clock
        self._services = Services(config, discovered)
        self._system = SystemLookup()
        self._resolver = Resolver(lookup or self._system, config.addresses, clock.monotonic)
        self._dialer = Dialer(self._resolver, self._services.may_be_private, lambda: self.own_ports)

    async def close(self) -> None:
        """Gives up what is being looked up; idempotent."""
        await self._resolver.close()
        self._system.close()

    async def check(self, entries: tuple[str, ...]) -> None:
        """Returns if this node knows every entry; raises InvalidRequest, or Unavailable."""
        if entries:
            await self._services.learn(entries)

    def attach(self, sandbox: Sandbox, link: Link) -> None:
        """Gives a sandbox that may reach something its gateway, before its agent is connected to.

        The link then listens with every connection that it makes.
        """
        if not sandbox.spec.network:
            return
        try:
            policy = self._services.policy(sandbox.spec.network)
        except InvalidRequest as error:
            # The operator has taken a service away since; closed is the safe side.
            log.warning("%s reaches nothing any more: %s", sandbox.id, error.message)
            policy = Policy()
        sandbox.gateway = gateway = self._gateway(sandbox)
        gateway.change(sandbox.spec.network, policy)
        sandbox.network_env = self._environment(sandbox.spec.network)
        sandbox.proxy_port = link.add(self._config.port, gateway.serve)

    async def prepare(self, sandbox: Sandbox, link: Link, client: GuestClient) -> None:
        """Writes what apt needs, if it may reach something and is there."""
        values = inside.apt_values(self._chosen(sandbox.spec.network))
        if not values:
            return
        files = GuestFiles(client, lambda: (link.new_handle(), secrets.token_bytes(16)))
        try:
            pieces = [piece async for piece in files.read(inside.SOURCES, 0, SOURCES_BYTES_MAX)]
            sources = b"".join(pieces).decode("utf-8", "replace")
        except (NotFound, FileRefused):
            sources = ""
        made = inside.apt_files(self._config.port, values, sources)
        for path, text in made.items():
            try:
                await files.write(path, _once(text), mode=0o644, parents=True)
            except FileRefused as error:
                log.warning("%s: apt is not set up: %s", sandbox.id, error.message)

    async def change(self, sandbox: Sandbox, link: Link, entries: tuple[str, ...]) -> None:
        """The policy from now on, in force when this returns. Its entries were checked."""
        policy = self._services.policy(entries)
        gateway = sandbox.gateway
        if not entries:
            if gateway is not None:
                gateway.change((), policy)
            if sandbox.proxy_port is not None:
                link.unlisten(sandbox.proxy_port)
            sandbox.proxy_port, sandbox.network_env = None, {}
            return
        if gateway is None:
            sandbox.gateway = gateway = self._gateway(sandbox)
        gateway.change(entries, policy)
        sandbox.network_env = self._environment(entries)
        if sandbox.proxy_port is None:
            sandbox.proxy_port = await link.listen(self._config.port, gateway.serve)
        await self.prepare(sandbox, link, await link.ready())

    def gauges(self) -> dict[str, float]:
        """Returns what the proxy of all sandboxes does, for the page of metrics."""
        verdicts = ("allowed", "refused", "failed")
        counts = {f"network_{word}_total": float(self._places.counts[word]) for word in verdicts}
        return {"network_connections": float(self._places.taken), **counts}

    def view(self, sandbox: Sandbox) -> NetworkView:
        """Returns the sandbox's policy and the last decisions."""
        if sandbox.gateway is None:
            return NetworkView(network=sandbox.spec.network)
        return sandbox.gateway.view()

    def _gateway(self, sandbox: Sandbox) -> Gateway:
        config = self._config
        return Gateway(
            self._dialer,
            Decisions(sandbox.id, config.decisions_max, self._clock.wall, self._places.counts),
            Bounds(config.connections_max, config.header_bytes_max, config.idle_s),
            self._places,
            lambda: sandbox.touch(self._clock.wall(), self._clock.monotonic()),
        )

    def _environment(self, entries: tuple[str, ...]) -> dict[str, str]:
        return inside.environment(self._config.port, self._chosen(entries))

    def _chosen(self, entries: tuple[str, ...]) -> list[Service]:
        try:
            return list(self._services.chosen(entries))
        except InvalidRequest:
            return []


async def _once(text: str) -> AsyncIterator[bytes]:
    yield text.encode()
