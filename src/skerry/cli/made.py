"""What commands that make layers say while they do, and of what they made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from skerry.cli.words import size

if TYPE_CHECKING:
    from skerry.cli.app import App
    from skerry.spec.layers import LayerManifest


def log_line(app: App, line: str) -> None:
    """Says a line of progress."""
    app.note(click.style(f"  {line}", dim=True))


def show_made(app: App, made: LayerManifest) -> None:
    """Tells name, size and digest of a layer."""
    if app.as_json:
        app.emit(made)
    else:
        app.line(f"{made.name}  {size(made.total_bytes)}  {made.digest}")
