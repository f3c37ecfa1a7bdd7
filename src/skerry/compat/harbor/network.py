"""Harbor's network policies as entries of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harbor.models.task.config import NetworkMode

from skerry.spec.network import PORTS, check_network


def entries_of(policy: Any, public: Sequence[str]) -> tuple[str, ...]:
    """Returns the entries that enforce a policy; raises InvalidRequest for what cannot be enforced.

    A name without a dot is written with its ports: alone it would be one of the node's service words.
    """
    if policy.network_mode == NetworkMode.NO_NETWORK:
        return ()
    if policy.network_mode == NetworkMode.PUBLIC:
        entries = tuple(public)
    else:
        entries = tuple(
            entry
            for host in policy.allowed_hosts
            for entry in ([host] if "." in host else [f"{host}:{port}" for port in PORTS])
        )
    check_network(entries)
    return entries
