"""Programs that the worker uploads into sandboxes; self-contained, never imported on the host."""

from __future__ import annotations

from pathlib import Path


def program(name: str) -> str:
    """Returns the source text of one of the programs here: "verifier", "collect" or "agent"."""
    return (Path(__file__).parent / f"{name}.py").read_text()
