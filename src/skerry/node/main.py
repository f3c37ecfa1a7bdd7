"""The daemon: starts the parts in order, serves, and ends in order."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from skerry.errors import SkerryError, Unavailable
from skerry.node.build import build_node
from skerry.node.config import NodeConfig
from skerry.node.node import Node
from skerry.node.owners import Exit
from skerry.node.readings import raise_descriptors_max
from skerry.node.recovery import recover
from skerry.node.sandbox import Sandbox
from skerry.node.server.app import build_app
from skerry.node.server.listen import Listener

log = logging.getLogger("skerry.node")

DESTROYS_AT_ONCE = 64


async def serve(config: NodeConfig, *, ready: asyncio.Event | None = None) -> None:
    """Runs a node until SIGTERM, SIGINT, or (embedded) its last owner has gone.

    With `keep_on_exit`, instances stay to be adopted by the next start, but for undetached ones of
    an embedded node. Raises Conflict if another daemon has the state directory, Unavailable if a
    backend cannot start or an address cannot be had.
    """
    raise_descriptors_max()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        async with running(build_node(config), leave=stop.set) as listener:
            log.info("node listens on %s", config.socket_path)
            if listener.tcp is not None:
                log.info("node listens on %s port %d", *listener.tcp)
            if ready is not None:
                ready.set()
            await stop.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


@asynccontextmanager
async def running(
    node: Node, *, leave: Callable[[], None] | None = None
) -> AsyncIterator[Listener]:
    """A node that serves within the block; everything of it is ended afterwards."""
    listener = Listener(build_app(node), node.config)
    async with alive(node):
        if node.config.embedded and leave is not None:
            node.owners.idle = _exit(node, leave).consider
        try:
            await listener.open()
            yield listener
        finally:
            await _destroy_doomed(node)
            await listener.close()


@asynccontextmanager
async def alive(node: Node) -> AsyncIterator[None]:
    """A node whose parts work within the block; what earlier processes left is taken over first."""
    started: list[str] = []
    async with node.loop_watch.watching():
        try:
            for name, backend in node.backends.items():
                try:
                    await backend.start()
                except SkerryError as error:
                    raise Unavailable(f"backend {name}: {error.message}") from error
                started.append(name)
            await recover(node)
            yield
        finally:
            await _end_parts(node, started)


def _exit(node: Node, leave: Callable[[], None]) -> Exit:
    return Exit(
        node.timers,
        busy=lambda: len(node.owners) > 0 or node.lives.any_live(),
        leave=leave,
        grace_s=node.config.exit_grace_s,
        first_owner_s=node.config.first_owner_s,
    )


async def _destroy_doomed(node: Node) -> None:
    """Destroys what must not outlive the daemon; nothing new comes in meanwhile."""
    config = node.config
    node.admission.closing = True
    doomed = [
        sandbox
        for sandbox in node.sandboxes
        if not config.keep_on_exit or (config.embedded and not sandbox.spec.detached)
    ]
    places = asyncio.Semaphore(DESTROYS_AT_ONCE)

    async def destroy(sandbox: Sandbox) -> None:
        async with places:
            await node.lives.delete_quietly(sandbox)

    await asyncio.gather(*map(destroy, doomed))


async def _end_parts(node: Node, started: list[str]) -> None:
    """Ends the parts in order. Commands under way are left as they are, for the next start."""
    node.timers.close()
    await node.tasks.close()
    for sandbox in node.sandboxes:
        if sandbox.link is not None:
            await sandbox.link.end(Unavailable("the node is ending"))
        for op in sandbox.under_way():
            op.sink.detach()
    # What instances share (launcher, mounts, pools) stays only for instances that stay.
    keep = node.config.keep_on_exit and node.lives.any_live()
    for name in started:
        try:
            await node.backends[name].close(keep_instances=keep)
        except SkerryError:
            log.exception("backend %s did not end well", name)
    node.ledger.close()
    node.identity.release()
