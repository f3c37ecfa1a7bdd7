"""Asks for a sandbox until there is room for it."""

from __future__ import annotations

from skerry.errors import Overloaded
from skerry.sdk.patience import SERVER_WAIT_S, Patience
from skerry.sdk.transport import Transport
from skerry.spec.sandbox import SandboxInfo, SandboxSpec


async def create_as(transport: Transport, spec: SandboxSpec, patience: Patience) -> SandboxInfo:
    """Returns the sandbox once it runs; the spec must have a key. Raises Overloaded, and why not."""
    while True:
        seconds = min(patience.left(), SERVER_WAIT_S)
        try:
            return await transport.call(
                "POST",
                "/v1/sandboxes",
                SandboxInfo,
                body=spec,
                repeatable=True,
                params={"wait": f"{seconds:.3f}"} if seconds else None,
            )
        except Overloaded as error:
            await patience.again(error)
