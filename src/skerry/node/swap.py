"""The node's compressed swap, from its start to its end."""

from __future__ import annotations

import asyncio
import logging

from skerry.density.zram import Zram
from skerry.errors import Unavailable
from skerry.spec.limits import parse_bytes

log = logging.getLogger("skerry.node")


async def open_swap(node: str, size: str | None) -> None:
    """Makes what is configured, or takes over what an earlier process of this node left.

    Without a configured size such a device is removed, if the memory for its content is there.
    Raises InvalidRequest, or Unavailable if it cannot be made.
    """
    zram = Zram(node)
    if size is not None:
        device = await asyncio.to_thread(zram.open, parse_bytes(size, "zram"))
        log.info("compressed swap of up to %s on %s", size, device)
        return
    await close_swap(node)


async def close_swap(node: str) -> None:
    """Removes this node's device, if there is one; what cannot be read back stays in it."""
    try:
        await asyncio.to_thread(Zram(node).close)
    except Unavailable as error:
        log.warning("%s; the next start tries again", error.message)
