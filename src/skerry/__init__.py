"""Sandboxes in which AI agents are trained and evaluated.

    with skerry.connect() as client:
        sb = client.sandboxes.create("container", image="debian:12")
        print(sb.run("echo hello").text)

The async face is `skerry.aio`. Names below load at first use, so that importing the package is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skerry.errors import SkerryError
    from skerry.sdk.sync import Client, Sandbox, connect
    from skerry.spec.command import RunResult, Terminal
    from skerry.spec.sandbox import SandboxInfo, State

__version__ = "0.1.0"

_HOMES = {
    "Client": "skerry.sdk.sync",
    "RunResult": "skerry.spec.command",
    "Sandbox": "skerry.sdk.sync",
    "SandboxInfo": "skerry.spec.sandbox",
    "SkerryError": "skerry.errors",
    "State": "skerry.spec.sandbox",
    "Terminal": "skerry.spec.command",
    "connect": "skerry.sdk.sync",
}

__all__ = [
    "Client",
    "RunResult",
    "Sandbox",
    "SandboxInfo",
    "SkerryError",
    "State",
    "Terminal",
    "connect",
]


def __getattr__(name: str) -> object:
    """Loads a public name at first use (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'skerry' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value
