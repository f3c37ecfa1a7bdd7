"""`skerry top`: a live table of what sandboxes use, from one request a round."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from skerry.cli.app import App
from skerry.cli.group import SkerryCommand
from skerry.cli.options import labels_option, seconds
from skerry.cli.words import age, plural, size

if TYPE_CHECKING:
    from skerry.aio import Client
    from skerry.wire.control import NodeUsage, SandboxUsage

FIRST_S = 0.5  # between the two readings from which the first rates come
SPARE_LINES = 5  # of the terminal, beside the rows: three of totals, the header, the prompt
COLUMNS = ("ID", "STATE", ">CPU %", ">MEMORY", ">LIMIT", ">PIDS", ">COMMANDS", ">AGE", "IMAGE")


@dataclass(frozen=True)
class Row:
    """One sandbox, with its rate: percent of a core since the reading before."""

    seen: SandboxUsage
    cpu_percent: float


KEYS: dict[str, Callable[[Row], Any]] = {
    "cpu": lambda row: row.cpu_percent,
    "memory": lambda row: row.seen.usage.memory_bytes,
    "commands": lambda row: row.seen.commands,
    "pids": lambda row: row.seen.usage.pids,
    "age": lambda row: -row.seen.created,
}


@click.command(cls=SkerryCommand)
@click.option(
    "--sort",
    type=click.Choice(tuple(KEYS)),
    default="cpu",
    show_default=True,
    help="What comes first.",
)
@click.option(
    "--interval",
    type=seconds,
    default="2",
    show_default=True,
    metavar="TIME",
    help="Between readings.",
)
@labels_option("Only with this label.")
@click.option("--once", is_flag=True, help="One table of all of them, then end.")
@click.pass_obj
def top(
    app: App, /, *, sort: str, interval: float, labels: tuple[tuple[str, str], ...], once: bool
) -> None:
    """Watch what sandboxes use: processor, memory, processes, commands.

    In a pipe, or with --json, one reading is printed. Ctrl-C ends it.
    """
    once = once or app.as_json or not sys.stdout.isatty()

    async def work() -> None:
        async with app.client() as client:
            if once:
                await _once(app, client, dict(labels), sort)
            else:
                await _watch(app, client, dict(labels), sort, interval)

    app.wait_for(work)


async def _once(app: App, client: Client, labels: dict[str, str], sort: str) -> None:
    before = await client.usage(labels)
    await asyncio.sleep(FIRST_S)
    now = await client.usage(labels)
    rows = rank(before, now, sort)
    if app.as_json:
        app.emit(as_object(now, rows))
        return
    for line in totals(now, rows):
        app.line(line)
    app.table(COLUMNS, [cells(row) for row in rows])


async def _watch(
    app: App, client: Client, labels: dict[str, str], sort: str, interval: float
) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    console = app.console()
    before = await client.usage(labels)
    pause = FIRST_S
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            await asyncio.sleep(pause)
            pause = interval
            now = await client.usage(labels)
            rows = rank(before, now, sort)
            table = Table(box=None, pad_edge=False, header_style="bold")
            shown = [cells(row) for row in rows[: max(1, console.size.height - SPARE_LINES)]]
            for at, name in enumerate(COLUMNS):
                justify: Any = "right" if name.startswith(">") else "left"
                title = name.removeprefix(">")
                # Where the terminal is narrow only the last column, the image, is cut.
                width = max(len(title), *(len(str(row[at])) for row in shown), 0)
                least = 0 if name == COLUMNS[-1] else width
                table.add_column(title, justify=justify, no_wrap=True, min_width=least)
            for row in shown:
                table.add_row(*map(str, row))
            # A long line is cut: wrapped, it would push the table out of a small terminal.
            head = (Text(line, no_wrap=True, overflow="ellipsis") for line in totals(now, rows))
            live.update(Group(*head, table), refresh=True)
            before = now


def rank(before: NodeUsage, now: NodeUsage, sort: str) -> list[Row]:
    """Returns the sandboxes of the later reading, those with the most first."""
    spent = {item.id: item.usage.cpu_seconds for item in before.items}
    passed = max(1e-6, now.at - before.at)
    rows = []
    for item in now.items:
        # One that is younger than the reading before has used all of it since.
        used = item.usage.cpu_seconds - spent.get(item.id, 0.0)
        rows.append(Row(item, max(0.0, used / passed * 100)))
    return sorted(rows, key=KEYS[sort], reverse=True)


def totals(now: NodeUsage, rows: list[Row]) -> list[str]:
    """Returns the lines above the table: the node as a whole."""
    states: dict[str, int] = {}
    for row in rows:
        states[row.seen.state] = states.get(row.seen.state, 0) + 1
    told = ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "none"
    cpu = sum(row.cpu_percent for row in rows)
    memory = sum(row.seen.usage.memory_bytes for row in rows)
    pressure = ", ".join(f"{name} {share:.1f}" for name, share in now.pressure.items())
    draining = "; draining" if now.draining else ""
    left = f"{size(now.memory_available_bytes)} of {size(now.memory_total_bytes)} available"
    waits = f"pressure (10 s, %): {pressure or 'not told by this kernel'}"
    return [
        f"sandboxes  {len(rows)}: {told}; {plural(now.commands, 'command')} run{draining}",
        f"they use   {cpu:.0f} % of {now.cores * 100} %, {size(memory)} of memory",
        f"host       {left}, load {now.load[0]:.2f}; {waits}",
    ]


def cells(row: Row) -> tuple[object, ...]:
    """Returns the cells of one row."""
    seen = row.seen
    return (
        seen.id,
        seen.state,
        f"{row.cpu_percent:.1f}",
        size(seen.usage.memory_bytes),
        size(seen.memory_limit_bytes),
        seen.usage.pids,
        seen.commands,
        age(time.time() - seen.created),
        seen.image,
    )


def as_object(now: NodeUsage, rows: list[Row]) -> dict[str, Any]:
    """Returns the reading as one object."""
    from skerry.cli.jsonable import jsonable

    whole: dict[str, Any] = jsonable(now)
    whole["items"] = [
        {**jsonable(row.seen), "cpu_percent": round(row.cpu_percent, 2)} for row in rows
    ]
    return whole
