"""What an uplink is: a port inside a sandbox at which a worker of its node answers.

It needs no network: the node listens on the sandbox's loopback and relays what comes to the worker,
over the guest channel. Only processes of that sandbox reach it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from skerry.errors import InvalidRequest

UPLINKS_MAX: Final = 4
WORKERS_MAX: Final = 64  # of a node


class Uplink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`port` on 127.0.0.1 and ::1 inside; `worker` is the number of a worker of the node, from 0."""

    port: int
    worker: int = 0


def check_uplinks(uplinks: tuple[Uplink, ...]) -> None:
    """Raises InvalidRequest unless they are few, in bounds and at different ports."""
    if len(uplinks) > UPLINKS_MAX:
        raise InvalidRequest(f"uplinks: at most {UPLINKS_MAX}")
    for uplink in uplinks:
        if not 1 <= uplink.port <= 65_535:
            raise InvalidRequest(f"uplinks: port {uplink.port} is not between 1 and 65535")
        if not 0 <= uplink.worker < WORKERS_MAX:
            raise InvalidRequest(f"uplinks: there is no worker {uplink.worker}")
    if len({uplink.port for uplink in uplinks}) < len(uplinks):
        raise InvalidRequest("uplinks: two of them are at the same port")
