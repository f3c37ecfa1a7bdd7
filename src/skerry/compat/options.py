"""What a user of an adapter may set, in one mapping: where the node is, and what a sandbox gets.

The names are those of `skerry.connect` and `skerry.SandboxOptions`, one to one. Nothing is ignored: an
option that there is not is refused with the list of those that there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from skerry.errors import InvalidRequest
from skerry.sdk.options import SandboxOptions
from skerry.sdk.patience import WAIT_S

CONNECTION = frozenset({"url", "token"})
SANDBOX = frozenset(SandboxOptions.__annotations__)
CREATION = SANDBOX | {"backend", "wait"}
# What a harness leaves behind when it is killed ends by itself.
IDLE_TIMEOUT_S = 3600.0


class Asked(NamedTuple):
    """`connection` is for `connect`, `creation` for `sandboxes.create`."""

    connection: dict[str, Any]
    creation: dict[str, Any]


def asked(options: Mapping[str, Any], *, harness: str, labels: Mapping[str, str]) -> Asked:
    """Returns the options apart, with the labels by which `skerry ls` shows whose a sandbox is.

    Labels of the user's own stand beside them. Without an `idle_timeout` it is an hour. Raises
    InvalidRequest for a name that is no option.
    """
    refuse_unknown(options, CONNECTION | CREATION)
    creation = {"image": "debian:12", "idle_timeout": IDLE_TIMEOUT_S, "wait": WAIT_S}
    creation |= {name: value for name, value in options.items() if name in CREATION}
    creation["labels"] = {
        "harness": harness,
        **{name: value[:256] for name, value in labels.items() if value},
        **(options.get("labels") or {}),
    }
    return Asked(
        {name: value for name, value in options.items() if name in CONNECTION and value}, creation
    )


def refuse_unknown(options: Mapping[str, Any], known: frozenset[str]) -> None:
    """Raises InvalidRequest if one of the names is not known, with those that are."""
    unknown = sorted(options.keys() - known)
    if unknown:
        raise InvalidRequest(
            f"there is no option {unknown[0]!r}; there are {', '.join(sorted(known))}"
        )
