"""The daemon: starts the parts in order, serves, and ends in order."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from skerry.errors import Conflict, SkerryError, Unavailable
from skerry.node import registry
from skerry.node.build import build_node
from skerry.node.config import NodeConfig
from skerry.node.functions.making import MADE_FOR
from skerry.node.gauges.readings import raise_descriptors_max
from skerry.node.life.creation import outlives
from skerry.node.life.owners import Exit
from skerry.node.life.sandbox import Sandbox
from skerry.node.node import Node
from skerry.node.recovery import recover
from skerry.node.server.app import build_app
from skerry.node.server.listen import Listener
from skerry.node.swap import close_swap, open_swap

log = logging.getLogger("skerry.node")

DESTROYS_AT_ONCE = 64
CANCEL_S = 1.0  # what is cut short may take that long to notice


async def serve(config: NodeConfig, *, ready: asyncio.Event | None = None) -> None:
    """Runs a node until SIGTERM, SIGINT, SIGHUP, or (embedded) its last owner has gone.

    The end takes `end_within_s` at most for each of its two parts; a second signal cuts it short.
    What is not destroyed by then is left to the next start.

    With `keep_on_exit`, instances stay to be adopted by the next start, but for undetached ones of
    an embedded node. Raises Conflict if another node has the state or run directory, Unavailable if a
    backend cannot start or an address cannot be had.
    """
    raise_descriptors_max()
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def told() -> None:
        (hurry if stop.is_set() else stop).set()

    numbers = [
        number
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        # Under nohup a terminal's end is none of ours.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
    ]
    for number in numbers:
        loop.add_signal_handler(number, told)
    try:
        node = build_node(config)
        async with running(node, leave=stop.set, hurry=hurry) as listener:
            log.info("node listens on %s", config.socket_path)
            if listener.tcp is not None:
                log.info("node listens on %s port %d", *listener.tcp)
            if ready is not None:
                ready.set()
            await stop.wait()
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@asynccontextmanager
async def running(
    node: Node, *, leave: Callable[[], None] | None = None, hurry: asyncio.Event | None = None
) -> AsyncIterator[Listener]:
    """A node that serves within the block; everything of it is ended afterwards."""
    listener = Listener(build_app(node), node.config)
    hurry = hurry or asyncio.Event()
    async with alive(node, hurry):
        if node.config.embedded and leave is not None:
            node.owners.idle = _exit(node, leave).consider
        try:
            await listener.open()
            if listener.tcp is not None:
                node.networks.own_ports = frozenset((listener.tcp[1],))
            node.workers.start()
            yield listener
        finally:
            await node.workers.close()  # first: they speak to this node
            await node.calls.end()
            if not await _within(_destroy_doomed(node), node.config.end_within_s, hurry):
                log.warning("%d sandboxes are left to the next start", node.admission.sandboxes)
            if not await _within(node.commits.settled(), node.config.end_within_s, hurry):
                log.warning("%d commits are left to the next start", node.commits.pending)
            await listener.close()


@asynccontextmanager
async def alive(node: Node, hurry: asyncio.Event | None = None) -> AsyncIterator[None]:
    """A node whose parts work within the block; what earlier processes left is taken over first."""
    started: list[str] = []
    async with node.loop_watch.watching():
        try:
            await open_swap(node.identity.name, node.config.zram)
            for name, backend in node.backends.items():
                try:
                    await backend.start()
                except Conflict:
                    raise
                except SkerryError as error:
                    raise Unavailable(f"backend {name}: {error.message}") from error
                started.append(name)
            if node.blobs is not None:
                await node.blobs.start()
            await node.keeper.recall()
            await recover(node)
            node.drain.recall()
            async with (
                node.idle.working(),
                node.calls.working(),
                node.keeper.working(),
                node.scrubber.working(),
                node.shipping.working(),
            ):
                yield
        finally:
            if not await _within(
                node.keeper.end(), node.config.end_within_s, hurry or asyncio.Event()
            ):
                log.warning("the layer store does not answer: the lease on it is left to run out")
            await _end_parts(node, started, hurry)


async def _within(work: Coroutine[Any, Any, None], seconds: float, hurry: asyncio.Event) -> bool:
    """Returns whether the work was done before the time was over, or there was a hurry."""
    task, cut = asyncio.ensure_future(work), asyncio.ensure_future(hurry.wait())
    try:
        await asyncio.wait((task, cut), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        return False
    finally:
        cut.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,), timeout=CANCEL_S)


def _exit(node: Node, leave: Callable[[], None]) -> Exit:
    return Exit(
        node.timers,
        busy=lambda: (
            len(node.owners) > 0
            # Containers of function calls live for those who call: they keep no daemon.
            or node.admission.sandboxes > node.admission.holders.of(MADE_FOR)
            or node.commits.pending > 0
            or len(node.chains) > 0
        ),
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
        if not config.keep_on_exit or (config.embedded and not outlives(sandbox.spec))
    ]
    places = asyncio.Semaphore(DESTROYS_AT_ONCE)

    async def destroy(sandbox: Sandbox) -> None:
        async with places:
            node.lives.withdrawn(sandbox, "its node has ended")
            await node.lives.delete_quietly(sandbox)

    await asyncio.gather(*map(destroy, doomed))


async def _end_parts(node: Node, started: list[str], hurry: asyncio.Event | None = None) -> None:
    """Ends the parts in order. Commands under way are left as they are, for the next start."""
    within, hurry = node.config.end_within_s, hurry or asyncio.Event()
    node.timers.close()
    await _within(node.tasks.close(), within, hurry)
    await node.networks.close()
    node.trajectories.close()
    for sandbox in node.sandboxes:
        if sandbox.link is not None:
            await sandbox.link.end(Unavailable("the node is ending"))
        for op in sandbox.under_way():
            op.sink.detach()
    # What instances share (launcher, mounts, pools) stays only for instances that stay.
    keep = node.lives.any_live() or node.commits.pending > 0
    for name in started:
        try:
            if not await _within(node.backends[name].close(keep_instances=keep), within, hurry):
                log.warning("backend %s did not end in time", name)
        except SkerryError:
            log.exception("backend %s did not end well", name)
    if node.blobs is not None:  # until here: what unmounts may wait for bytes
        await node.blobs.close(gone=not keep)
    if not keep:  # what a paused sandbox has in it would not fit into memory
        await close_swap(node.identity.name)
    if not await _within(node.shipping.flush(), within, hurry):
        log.warning("the last of the trajectories waits for the next start")
    node.shipping.close()
    node.trail.levels.close()
    node.ledger.close()
    if not keep:
        registry.leave(node.config.registry_dir, node.identity.name)
    node.identity.release()
