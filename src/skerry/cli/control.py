"""`skerry pause`, `resume`, `stop`, `extend` and `drain`: what lives stands still, goes on, or ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from skerry.cli.app import App
from skerry.cli.group import SkerryCommand
from skerry.cli.options import complete_sandbox, seconds
from skerry.cli.words import plural
from skerry.errors import InvalidRequest

if TYPE_CHECKING:
    from skerry.aio import Sandbox, SandboxInfo
    from skerry.wire.control import DrainState

AT_ONCE = 32
POLL_S = 0.5

ids_argument = click.argument(
    "ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_sandbox
)


@click.command(cls=SkerryCommand)
@ids_argument
@click.pass_obj
def pause(app: App, /, *, ids: tuple[str, ...]) -> None:
    """Let sandboxes stand still; running commands are paused with them.

    The next request that needs a paused sandbox lets it go on.
    """
    _each(app, ids, lambda sandbox: sandbox.pause())


@click.command(cls=SkerryCommand)
@ids_argument
@click.pass_obj
def resume(app: App, /, *, ids: tuple[str, ...]) -> None:
    """Let paused sandboxes go on."""
    _each(app, ids, lambda sandbox: sandbox.resume())


@click.command(cls=SkerryCommand)
@ids_argument
@click.pass_obj
def stop(app: App, /, *, ids: tuple[str, ...]) -> None:
    """End sandboxes; their names and recorded results stay until `skerry rm`."""
    _each(app, ids, lambda sandbox: sandbox.stop())


@click.command(cls=SkerryCommand)
@ids_argument
@click.option("--ttl", type=seconds, metavar="TIME", help="Live that long from now (90, 10m, 2h).")
@click.option("--idle-timeout", type=seconds, metavar="TIME", help="End after that long idle.")
@click.pass_obj
def extend(
    app: App, /, *, ids: tuple[str, ...], ttl: float | None, idle_timeout: float | None
) -> None:
    """Give live sandboxes other deadlines."""
    from msgspec import UNSET

    if ttl is None and idle_timeout is None:
        raise InvalidRequest("nothing to change", hint="give --ttl or --idle-timeout")
    _each(
        app,
        ids,
        lambda sandbox: sandbox.update(
            ttl=UNSET if ttl is None else ttl,
            idle_timeout=UNSET if idle_timeout is None else idle_timeout,
        ),
    )


def _each(app: App, ids: tuple[str, ...], ask: Callable[[Sandbox], Awaitable[SandboxInfo]]) -> None:
    async def work() -> list[SandboxInfo]:
        places = asyncio.Semaphore(AT_ONCE)
        async with app.client() as client:

            async def one(sandbox_id: str) -> SandboxInfo:
                async with places:
                    return await ask(await client.sandboxes.get(sandbox_id))

            return list(await asyncio.gather(*map(one, dict.fromkeys(ids))))

    for info in app.wait_for(work):
        if app.as_json:
            app.emit(info)
        else:
            app.line(f"{info.id} {info.state}")


@click.command(cls=SkerryCommand)
@click.option("--grace", type=seconds, metavar="TIME", help="Stop what lives after that long.")
@click.option("--now", is_flag=True, help="Stop what lives at once.")
@click.option("--wait", "waits", is_flag=True, help="Return when nothing lives any more.")
@click.option("--undo", is_flag=True, help="Take new sandboxes again.")
@click.option("--show", is_flag=True, help="Only say how far the node is.")
@click.pass_obj
def drain(
    app: App, /, *, grace: float | None, now: bool, waits: bool, undo: bool, show: bool
) -> None:
    """Empty a node: it takes no new sandboxes, and those that live finish.

    Without --grace or --now they may take as long as they want. A restart of
    the node goes on with it.
    """
    if (undo or show) and (grace is not None or now):
        raise InvalidRequest("--grace and --now belong to a drain that begins")
    if grace is not None and now:
        raise InvalidRequest("give --grace or --now")

    async def work() -> DrainState:
        async with app.client() as client:
            if undo:
                return await client.undrain()
            if show:
                state = await client.drain_state()
            else:
                state = await client.drain(grace=0.0 if now else grace)
            while waits and state.draining and state.live:
                await asyncio.sleep(POLL_S)
                state = await client.drain_state()
            return state

    state = app.wait_for(work)
    if app.as_json:
        app.emit(state)
        return
    if not state.draining:
        app.line(f"takes new sandboxes; {plural(state.live, 'sandbox')} live")
    elif state.live:
        app.line(
            f"draining: {plural(state.live, 'sandbox')} live, "
            f"{plural(state.commands, 'command')} run in them"
        )
    else:
        app.line("drained: nothing lives")
