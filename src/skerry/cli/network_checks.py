"""What the network of sandboxes needs of a host."""

from __future__ import annotations

import importlib.util
import shutil

from skerry.cli.findings import Check

CLIENTS = {"pypi": "pip", "npm": "npm", "debian": "apt-get"}


def services_check() -> Check:
    """The words of `network=` that mean what this machine's own package clients are set to."""
    absent = [
        word
        for word, program in CLIENTS.items()
        if shutil.which(program) is None
        and not (program == "pip" and importlib.util.find_spec("pip") is not None)
    ]
    if not absent:
        return Check("network services", "ok", f"{', '.join(CLIENTS)} as this machine has them")
    words = ", ".join(absent)
    return Check(
        "network services",
        "note",
        f"no {', '.join(CLIENTS[word] for word in absent)} here to learn from",
        f"network= refuses {words}",
        f"[network.services.{absent[0]}] in the node's configuration (docs/guide/network.md)",
    )
