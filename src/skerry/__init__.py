"""Sandboxes in which AI agents are trained and evaluated.

    with skerry.connect() as client:
        sb = client.sandboxes.create("container", image="debian:12")
        print(sb.run("echo hello").text)

The async face is `skerry.aio`. Names below load at first use, so that importing the package is cheap.
"""

from __future__ import annotations

# As checkers understand it. The command line's first line must not wait for the import of typing: until
# it has run, Ctrl-C shows a traceback.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from skerry.errors import (
        Bug,
        CallerError,
        Conflict,
        ContentDropped,
        DiskFull,
        Diverged,
        FileDenied,
        FileRefused,
        ImageBroken,
        InvalidRequest,
        LayerDamaged,
        NotFound,
        OutcomeUnknown,
        Overloaded,
        PlatformError,
        PortRefused,
        SandboxError,
        SandboxFailed,
        SkerryError,
        StorageFailed,
        Unauthorized,
        Unavailable,
    )
    from skerry.sdk.bases import ImageSources
    from skerry.sdk.function_options import CallOptions
    from skerry.sdk.options import SandboxOptions
    from skerry.sdk.sync import Client, Sandbox, connect
    from skerry.spec.command import RunResult, Terminal
    from skerry.spec.device import DeviceClaim
    from skerry.spec.function import CallSpec
    from skerry.spec.function_result import CallFailed, CallResult
    from skerry.spec.sandbox import SandboxInfo, SandboxSpec, State
    from skerry.spec.worker import AnswerUrl, ModelSettings, Scaffold

__version__ = "0.1.0"

_HOMES = {
    "AnswerUrl": "skerry.spec.worker",
    "Bug": "skerry.errors",
    "CallFailed": "skerry.spec.function_result",
    "CallOptions": "skerry.sdk.function_options",
    "CallResult": "skerry.spec.function_result",
    "CallSpec": "skerry.spec.function",
    "CallerError": "skerry.errors",
    "Client": "skerry.sdk.sync",
    "Conflict": "skerry.errors",
    "ContentDropped": "skerry.errors",
    "DeviceClaim": "skerry.spec.device",
    "DiskFull": "skerry.errors",
    "Diverged": "skerry.errors",
    "FileDenied": "skerry.errors",
    "FileRefused": "skerry.errors",
    "ImageBroken": "skerry.errors",
    "ImageSources": "skerry.sdk.bases",
    "LayerDamaged": "skerry.errors",
    "InvalidRequest": "skerry.errors",
    "ModelSettings": "skerry.spec.worker",
    "NotFound": "skerry.errors",
    "OutcomeUnknown": "skerry.errors",
    "Overloaded": "skerry.errors",
    "PlatformError": "skerry.errors",
    "PortRefused": "skerry.errors",
    "RunResult": "skerry.spec.command",
    "Sandbox": "skerry.sdk.sync",
    "SandboxError": "skerry.errors",
    "SandboxFailed": "skerry.errors",
    "SandboxInfo": "skerry.spec.sandbox",
    "SandboxOptions": "skerry.sdk.options",
    "SandboxSpec": "skerry.spec.sandbox",
    "Scaffold": "skerry.spec.worker",
    "SkerryError": "skerry.errors",
    "State": "skerry.spec.sandbox",
    "StorageFailed": "skerry.errors",
    "Terminal": "skerry.spec.command",
    "Unauthorized": "skerry.errors",
    "Unavailable": "skerry.errors",
    "connect": "skerry.sdk.sync",
}

__all__ = [
    "AnswerUrl",
    "Bug",
    "CallFailed",
    "CallOptions",
    "CallResult",
    "CallSpec",
    "CallerError",
    "Client",
    "Conflict",
    "ContentDropped",
    "DeviceClaim",
    "DiskFull",
    "Diverged",
    "FileDenied",
    "FileRefused",
    "ImageBroken",
    "ImageSources",
    "InvalidRequest",
    "LayerDamaged",
    "ModelSettings",
    "NotFound",
    "OutcomeUnknown",
    "Overloaded",
    "PlatformError",
    "PortRefused",
    "RunResult",
    "Sandbox",
    "SandboxError",
    "SandboxFailed",
    "SandboxInfo",
    "SandboxOptions",
    "SandboxSpec",
    "Scaffold",
    "SkerryError",
    "State",
    "StorageFailed",
    "Terminal",
    "Unauthorized",
    "Unavailable",
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


def __dir__() -> list[str]:
    """Names the lazy ones too, so that a prompt completes them."""
    return sorted({*globals(), *__all__})
