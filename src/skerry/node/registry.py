"""Which nodes there are on this host: a file a node, so that what one left can be told from an orphan.

REGISTRY/ (default /run/skerry-nodes; on a tmpfs)
  NAME    JSON: state_dir, run_dir, pid; written at the start, removed at an end that left nothing

A node whose file is missing works all the same: the registry is for people and for `skerry census`.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

import msgspec

from skerry.errors import Conflict
from skerry.node.config import NodeConfig
from skerry.node.identity import held
from skerry.spec import ids

DIRECTORY = "/run/skerry-nodes"
log = logging.getLogger("skerry.node")


class Entry(msgspec.Struct, frozen=True):
    """What a node says of itself."""

    state_dir: str
    run_dir: str
    pid: int

    def adoptable(self, name: str) -> bool:
        """Returns whether a start of that node would take over what is there."""
        with contextlib.suppress(OSError):
            return Path(self.state_dir, "name").read_text().strip() == name
        return False


def read_all(directory: str = DIRECTORY) -> dict[str, Entry]:
    """Returns every node that has a file, by name; what is no entry is left out."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                if ids.NODE_PATTERN.fullmatch(name):
                    data = Path(directory, name).read_bytes()
                    found[name] = msgspec.json.decode(data, type=Entry)
    return found


def enter(directory: str, name: str, config: NodeConfig) -> None:
    """Writes the node's file; a directory that cannot be written is only logged.

    Raises Conflict if another running node has the name: both would use the same control groups.
    """
    if not directory:
        return
    known = read_all(directory).get(name)
    if known is not None and known.state_dir != config.state_dir and held(known.state_dir):
        raise Conflict(
            f"another node with the name {name} runs here (pid {known.pid}, {known.state_dir}): "
            "was the state directory copied? Remove the file `name` in one of them"
        )
    entry = Entry(config.state_dir, config.run_dir, os.getpid())
    try:
        os.makedirs(directory, mode=0o755, exist_ok=True)
        temporary = os.path.join(directory, f".{name}.new")
        with open(temporary, "wb") as file:
            file.write(msgspec.json.encode(entry))
        os.rename(temporary, os.path.join(directory, name))
    except OSError as error:
        log.warning("the node is not in the registry %s: %s", directory, error)


def leave(directory: str, name: str) -> None:
    """Removes the node's file; idempotent."""
    if directory:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(directory, name))
