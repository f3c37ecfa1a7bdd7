"""`skerry forward`: a port of a sandbox here, or a port of this side in a sandbox."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from skerry.cli.app import App
from skerry.cli.group import SkerryCommand
from skerry.cli.options import complete_sandbox
from skerry.errors import InvalidRequest

if TYPE_CHECKING:
    from skerry.aio import Sandbox


def port_of(text: str) -> int:
    """Returns a port number; InvalidRequest."""
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 65_535):
        raise InvalidRequest(f"{text!r} is no port: write a number between 1 and 65535")
    return int(text)


def ports_of(text: str) -> tuple[int, int]:
    """Returns the local port (0: any free one) and the port inside of [LOCAL:]PORT."""
    local, colon, inside = text.rpartition(":")
    return (0 if not colon or local == "0" else port_of(local)), port_of(inside)


def target_of(text: str) -> tuple[int, str, int]:
    """Returns the port inside, the host and its port of PORT, PORT:TARGET or PORT:HOST:TARGET."""
    inside, _, rest = text.partition(":")
    host, _, target = rest.rpartition(":")
    return port_of(inside), host.strip("[]") or "127.0.0.1", port_of(target or inside)


@click.command(cls=SkerryCommand)
@click.argument("sandbox_id", metavar="ID", shell_complete=complete_sandbox)
@click.argument("ports", metavar="PORTS")
@click.option("-R", "--reverse", is_flag=True, help="PORTS is PORT[:[HOST:]TARGET], from inside.")
@click.option(
    "--bind",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address to listen on here.",
)
@click.pass_obj
def forward(app: App, /, *, sandbox_id: str, ports: str, reverse: bool, bind: str) -> None:
    """Reach a port inside from here, until Ctrl-C. PORTS is [LOCAL:]PORT.

    With -R programs inside reach HOST:TARGET as seen from here at 127.0.0.1:PORT.

    \b
    skerry forward ID 8000              # here on a free port, which is printed
    skerry forward ID 9000:8000         # here on 9000
    skerry forward -R ID 5432           # inside on 5432: the database here
    skerry forward -R ID 80:10.0.0.7:8080
    """  # noqa: D301 - \b tells click to keep the lines
    there = target_of(ports) if reverse else None
    here = (0, 0) if reverse else ports_of(ports)

    async def work() -> None:
        async with app.client() as client:
            sandbox = await client.sandboxes.get(sandbox_id)
            if there is not None:
                await _reverse(app, sandbox, *there)
            else:
                await _forward(app, sandbox, bind, *here)

    app.wait_for(work)


async def _forward(app: App, sandbox: Sandbox, bind: str, local: int, port: int) -> None:
    async with sandbox.forward(port, local, host=bind) as where:
        _say(app, f"{where.host}:{where.port} -> {sandbox.id}:{port}", local=where.port, port=port)
        await asyncio.Event().wait()


async def _reverse(app: App, sandbox: Sandbox, port: int, host: str, target: int) -> None:
    async with sandbox.reverse_forward(port, host, target) as reverse:
        _say(app, f"{sandbox.id}:{port} -> {host}:{target}", port=port, host=host, target=target)
        await reverse.wait()


def _say(app: App, line: str, **what: object) -> None:
    if app.as_json:
        app.emit(what)
    else:
        app.line(line)
