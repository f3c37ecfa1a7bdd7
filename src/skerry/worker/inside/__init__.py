"""Programs that the worker runs elsewhere, never imports: in sandboxes, or as a throw-away user."""

from __future__ import annotations

from pathlib import Path


def program(name: str) -> str:
    """Returns the source text of a program here: "verifier", "collect", "agent" or "fetch"."""
    return (Path(__file__).parent / f"{name}.py").read_text()
