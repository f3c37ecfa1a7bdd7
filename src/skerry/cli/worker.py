"""`skerry worker`: the process that owns rollouts. A node starts it; nobody else needs to."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from pathlib import Path

import click

from skerry.cli.app import App
from skerry.cli.group import SkerryCommand
from skerry.cli.rollout import downloads

ALREADY_RUNNING = 75  # EX_TEMPFAIL: another worker has the state directory
LOOK_S = 5.0


@click.command(cls=SkerryCommand)
@click.option("--socket", metavar="PATH", required=True, help="Where it answers its node.")
@click.option("--state", metavar="DIR", required=True, help="Its book; kept over restarts.")
@click.option("--node", metavar="URL", required=True, help="The node whose sandboxes it uses.")
@click.option("--number", type=click.IntRange(0),
              help="Which of the node's workers it is [the socket's name, N.sock].")  # fmt: skip
@click.option("--orphan-after", type=click.FloatRange(min=0.1), metavar="SECONDS",
              help="End when the node was away for so long [never].")  # fmt: skip
@click.pass_obj
def worker(
    app: App,
    /,
    *,
    socket: str,
    state: str,
    node: str,
    number: int | None,
    orphan_after: float | None,
) -> int:
    """Own rollouts, until SIGTERM; they stay where they are for the next start.

    It is killed and started again as it comes: what it must know is in its state directory, the rest
    on the node. Exit status 75: another worker has the state directory.
    """
    import uvloop

    from skerry import aio
    from skerry.cli.log import start_logging
    from skerry.errors import Conflict
    from skerry.worker.service.main import serve

    if number is None:
        stem = Path(socket).stem
        number = int(stem) if stem.isascii() and stem.isdecimal() and len(stem) < 4 else 0
    start_logging(quiet=app.quiet, log_format="text", log_file=None)

    async def work() -> None:
        # An embedded node ends with its last client: a worker is part of it, and no such client.
        async with aio.Client(node, app.settings.token, owns=False) as client:
            watching = asyncio.create_task(_end_alone(node.removeprefix("unix://"), orphan_after))
            try:
                await serve(Path(state), Path(socket), client, downloads(), worker=number)
            finally:
                watching.cancel()

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work())
    except Conflict as error:
        app.warn(error.message)
        return ALREADY_RUNNING
    return 0


async def _end_alone(node_socket: str, orphan_after: float | None) -> None:
    """Ends this process in order when nobody has listened at the node's socket for so long.

    What a killed node left behind is taken over by its next start, if there is one.
    """
    if orphan_after is None:
        return
    seen = time.monotonic()
    while time.monotonic() - seen < orphan_after:
        await asyncio.sleep(min(LOOK_S, orphan_after / 4))
        try:
            _, writer = await asyncio.open_unix_connection(node_socket)
        except OSError:
            continue
        seen = time.monotonic()
        writer.close()
    logging.getLogger("skerry.worker").warning("the node was away for %g s: ending", orphan_after)
    os.kill(os.getpid(), signal.SIGTERM)
