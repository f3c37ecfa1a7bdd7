"""`skerry network`: what a sandbox may reach, what it tried, and another policy while it lives."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import click

from skerry.cli.app import App
from skerry.cli.group import SkerryCommand
from skerry.cli.options import complete_sandbox, entries
from skerry.errors import InvalidRequest

if TYPE_CHECKING:
    from skerry.wire.network import NetworkView

Lists = tuple[tuple[str, ...], ...]


@click.command(cls=SkerryCommand)
@click.argument("sandbox_id", metavar="ID", shell_complete=complete_sandbox)
@click.option("--allow", type=entries, multiple=True, metavar="ENTRY,...", help="Add entries.")
@click.option("--forbid", type=entries, multiple=True, metavar="ENTRY,...", help="Remove entries.")
@click.option("--none", "nothing", is_flag=True, help="Loopback only from now on.")
@click.option("-n", "last", type=int, default=20, show_default=True, help="Decisions to show.")
@click.pass_obj
def network(
    app: App, /, *, sandbox_id: str, allow: Lists, forbid: Lists, nothing: bool, last: int
) -> None:
    """Show what a sandbox may reach and what it tried; change it while the sandbox lives.

    What is open and no longer allowed is cut.
    """
    if nothing and (allow or forbid):
        raise InvalidRequest("--none goes without --allow and --forbid")
    added, removed = sum(allow, ()), set(sum(forbid, ()))

    async def work() -> NetworkView:
        async with app.client() as client:
            sandbox = await client.sandboxes.get(sandbox_id)
            view = await sandbox.network()
            if not (nothing or added or removed):
                return view
            kept = () if nothing else tuple(item for item in view.network if item not in removed)
            return await sandbox.set_network(tuple(dict.fromkeys((*kept, *added))))

    view = app.wait_for(work)
    if app.as_json:
        app.emit(view)
    else:
        _show(app, view, last)


def _show(app: App, view: NetworkView, last: int) -> None:
    app.line(f"may reach  {', '.join(view.network) or 'nothing'}")
    if view.hosts and view.hosts != tuple(sorted(view.network)):
        app.line(f"that is    {', '.join(view.hosts)}")
    totals = view.totals
    app.line(
        f"so far     {totals.allowed} allowed, {totals.refused} refused, {totals.failed} failed; "
        f"{view.open_connections} open"
    )
    shown = view.decisions[-last:] if last > 0 else ()
    if shown:
        app.table(
            ("time", "verdict", "method", "host", "why"),
            [
                (
                    dt.datetime.fromtimestamp(item.at).strftime("%H:%M:%S"),  # noqa: DTZ006
                    item.verdict,
                    item.method,
                    f"{item.host}:{item.port}" if item.host else "-",
                    item.why,
                )
                for item in shown
            ],
        )
