"""What every command gets: the settings, a way to reach a node, and a voice.

Commands take the `App` from click's context, so a test gives them another one. Machine output goes
to stdout alone; progress, notes and errors go to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from skerry.cli.at_exit import AtExit
from skerry.cli.secrets import secret_from
from skerry.cli.words import harmless
from skerry.errors import Unavailable

if TYPE_CHECKING:
    from rich.console import Console

    from skerry.aio import Client

T = TypeVar("T")
URL_VARIABLE = "SKERRY_URL"
TOKEN_VARIABLE = "SKERRY_TOKEN"  # noqa: S105 - the variable's name
STATE_DIR = "/var/lib/skerry"
RUN_DIR = "/run/skerry"


@dataclass(frozen=True)
class Settings:
    """Global options. Without a url a local node is used: found in the run directory, or started."""

    url: str | None = None
    token: str | None = field(default=None, repr=False)
    state_dir: str | None = None
    run_dir: str | None = None

    @property
    def state(self) -> str:
        """The local node's state directory."""
        return os.path.abspath(self.state_dir or STATE_DIR)

    @property
    def run(self) -> str:
        """The local node's run directory."""
        return os.path.abspath(self.run_dir or RUN_DIR)

    @property
    def socket(self) -> str:
        """The local node's API socket."""
        return os.path.join(self.run, "node.sock")


def settings_from(
    *,
    url: str | None = None,
    token_env: str | None = None,
    state_dir: str | None = None,
    run_dir: str | None = None,
) -> Settings:
    """Returns the settings that options and environment name; options win.

    InvalidRequest if a variable for the token was named and is not set.
    """
    local = state_dir is not None or run_dir is not None
    named = token_env is not None and token_env != TOKEN_VARIABLE
    return Settings(
        url=url or (None if local else secret_from(URL_VARIABLE)),
        token=secret_from(token_env or TOKEN_VARIABLE, required=named),
        state_dir=state_dir,
        run_dir=run_dir,
    )


Connect = Callable[[Settings], "AbstractAsyncContextManager[Client]"]


def connect_to(settings: Settings) -> AbstractAsyncContextManager[Client]:
    """Returns a client to be entered; Unavailable if there can be none here."""
    import logging

    from skerry import aio

    # What a library logs has no place among our lines: stderr may be read by a program (--json).
    logging.getLogger().addHandler(logging.NullHandler())
    if settings.url is not None:
        return aio.connect(settings.url, settings.token)
    if os.geteuid() != 0 and not os.access(settings.socket, os.R_OK | os.W_OK):
        raise Unavailable(
            f"no node answers at {settings.socket}, and starting one of your own needs root",
            hint="run as root, or name a remote node: --url http://HOST:PORT with its token in "
            "SKERRY_TOKEN (`skerry up --listen HOST:PORT` on that machine prints both)",
        )
    return aio.connect(state_dir=settings.state, run_dir=settings.run)


@dataclass
class App:
    """Composition of one invocation; `as_json` and `quiet` may be given before or after a command."""

    settings: Settings = field(default_factory=Settings)
    connect: Connect = connect_to
    as_json: bool = False
    quiet: bool = False
    at_exit: AtExit = field(default_factory=AtExit)

    def client(self) -> AbstractAsyncContextManager[Client]:
        """Returns the client to be entered."""
        return self.connect(self.settings)

    def wait_for(self, work: Callable[[], Awaitable[T]]) -> T:
        """Runs `work` on a new loop; signals cancel it, a second one ends the process."""
        from skerry.cli.loop import run_work

        return run_work(work, self.at_exit)

    # ---- the voice ----

    def line(self, text: str) -> None:
        """Says a line that was asked for, on stdout."""
        click.echo(harmless(text))

    def note(self, text: str) -> None:
        """Says a line that helps a person, on stderr; silent with -q and --json."""
        if not (self.quiet or self.as_json):
            click.echo(harmless(text), err=True)

    def warn(self, text: str) -> None:
        """Says a line on stderr that is never left out."""
        click.echo(f"skerry: {harmless(text)}", err=True)

    def emit(self, value: Any) -> None:
        """Prints one JSON object on a line of stdout."""
        from skerry.cli.jsonable import jsonable

        click.echo(json.dumps(jsonable(value), ensure_ascii=False))

    def console(self, *, err: bool = False) -> Console:
        """Returns a rich console on stdout, or on stderr for progress."""
        from rich.console import Console

        file = sys.stderr if err else sys.stdout
        # A table in a pipe or a file must not be cut to 80 columns.
        width = None if file.isatty() else 200
        return Console(file=file, width=width, highlight=False, soft_wrap=False)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Draws a table on stdout; columns whose name begins with `>` are aligned right."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in columns:
            right = name.startswith(">")
            table.add_column(
                name.removeprefix(">"), justify="right" if right else "left", overflow="fold"
            )
        for row in rows:
            table.add_row(
                *(cell if isinstance(cell, Text) else Text(harmless(str(cell))) for cell in row)
            )
        self.console().print(table)

    @property
    def may_draw(self) -> bool:
        """True if progress may be drawn: a terminal, and neither -q nor --json."""
        return sys.stderr.isatty() and not self.quiet and not self.as_json
