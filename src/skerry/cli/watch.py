"""`skerry watch`: what happens to files inside, one line an event."""

from __future__ import annotations

from contextlib import aclosing

import click

from skerry.cli.app import App
from skerry.cli.copy import ID_HINT, place
from skerry.cli.group import SkerryCommand
from skerry.cli.words import shown
from skerry.errors import InvalidRequest


@click.command(cls=SkerryCommand)
@click.argument("where", metavar="ID:PATH")
@click.option("-r", "--recursive", is_flag=True, help="Directories below too.")
@click.option("-u", "--user", metavar="USER", help="User inside, for the right to look.")
@click.pass_obj
def watch(app: App, /, *, where: str, recursive: bool, user: str | None) -> None:
    """Tell what happens at and below a path in a sandbox, until it is gone or Ctrl-C.

    OVERFLOW means that events were lost: look at the files themselves.
    """
    there = place(where)
    sandbox_id = there.sandbox
    if sandbox_id is None:
        raise InvalidRequest("watch: the place must be ID:PATH", hint=ID_HINT)

    async def work() -> None:
        async with app.client() as client:
            sandbox = await client.sandboxes.get(sandbox_id)
            events = sandbox.files.watch(there.path, recursive=recursive, user=user)
            async with aclosing(events):
                async for event in events:
                    if app.as_json:
                        app.emit(event)
                    elif event.kind == "ready":
                        app.note(f"watching {there.path}")
                    else:
                        source = f"  from {shown(event.source)}" if event.source else ""
                        app.line(f"{event.kind:<10} {shown(event.path)}{source}")

    app.wait_for(work)
