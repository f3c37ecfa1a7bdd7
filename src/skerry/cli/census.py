"""`skerry census`: what Skerry holds on this machine, by node; orphans, and their removal."""

from __future__ import annotations

from dataclasses import asdict

import click

from skerry.cli.app import App
from skerry.cli.group import SkerryCommand
from skerry.cli.holdings import Holdings, Thing, take
from skerry.cli.words import plural
from skerry.node import registry

SHOWN = 10


@click.command(cls=SkerryCommand)
@click.option("--node", "only", metavar="NAME", help="Only what belongs to this node.")
@click.option("--clean", "cleans", is_flag=True, help="Remove orphans; nothing else is touched.")
@click.option("-v", "--verbose", is_flag=True, help="Every thing, not only the first of a kind.")
@click.pass_obj
def census(app: App, /, *, only: str | None, cleans: bool, verbose: bool) -> int:
    """List what Skerry holds on this machine, by node, and what is left of nodes that are gone.

    Exit status 1 if there are orphans (after --clean: if some could not be removed).
    """
    found = take(state_dir=app.settings.state)
    if cleans:
        return _clean(app, found, only)
    things = [thing for thing in found.things if only in (None, thing.node)]
    if app.as_json:
        for thing in things:
            app.emit({**asdict(thing), "orphan": found.orphan(thing)})
    else:
        _show(app, found, things, verbose=verbose)
    return 1 if any(found.orphan(thing) for thing in things) else 0


def _show(app: App, found: Holdings, things: list[Thing], *, verbose: bool) -> None:
    if not things:
        app.note("nothing of Skerry is here")
    for node in sorted({thing.node for thing in things}):
        app.line(f"node {node}, which {found.state_of(node)}" if node else "of no known node")
        kinds: dict[str, list[str]] = {}
        for thing in things:
            if thing.node == node:
                kinds.setdefault(thing.kind, []).append(thing.what)
        for kind, items in kinds.items():
            app.line(f"  {len(items):>5} {kind}")
            shown = items if verbose else items[:SHOWN]
            for item in shown:
                app.line(f"        {item}")
            if len(items) > len(shown):
                app.line(f"        and {len(items) - len(shown)} more (-v shows them)")
    orphans = sum(found.orphan(thing) for thing in things)
    if orphans:
        app.warn(
            f"{plural(orphans, 'thing')} of nodes that are gone; `skerry census --clean` removes them"
        )


def _clean(app: App, found: Holdings, only: str | None) -> int:
    from skerry.cli.clean import clean

    nodes = sorted({thing.node for thing in found.orphans if only in (None, thing.node)})
    trouble = []
    for node in nodes:
        app.note(f"removing what is left of node {node}")
        trouble += clean(found, node, registry.DIRECTORY)
    for line in trouble:
        app.warn(line)
    if app.as_json:
        app.emit({"cleaned": nodes, "trouble": trouble})
    elif not nodes:
        app.note("no orphans")
    return 1 if trouble else 0
