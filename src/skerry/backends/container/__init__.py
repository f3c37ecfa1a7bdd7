"""Containers: namespaces, one user namespace a sandbox, cgroups, EROFS layers below an overlay."""

from __future__ import annotations

import logging

from skerry.backends.container.backend import ContainerBackend
from skerry.backends.container.parts import Places
from skerry.errors import InvalidRequest

SOCKET_PATH_MAX = 107
_ID_LENGTH = 21


def build_backend(
    *,
    state_dir: str,
    run_dir: str,
    node: str,
    layer_dirs: tuple[str, ...] = (),
    orphan_after_s: float | None = None,
    prefetch: bool = True,
    log: logging.Logger | None = None,
) -> ContainerBackend:
    """Returns a backend that is not started yet.

    `state_dir` (on a disk) and `run_dir` (short: agents' sockets lie in it) are the node's own;
    blobs of layers must lie below `state_dir` or one of `layer_dirs`. Without a node for
    `orphan_after_s` seconds, instances that are not detached end, and with the last one the launcher.
    Without `prefetch` a resumed instance reads its memory from swap as it comes to need it.
    """
    if len(f"{run_dir}/i/") + _ID_LENGTH > SOCKET_PATH_MAX:
        raise InvalidRequest(f"run_dir {run_dir} is too long for the path of a unix socket")
    places = Places(state_dir, run_dir, node, layer_dirs, orphan_after_s, prefetch)
    return ContainerBackend(places, log or logging.getLogger("skerry.backends.container"))
