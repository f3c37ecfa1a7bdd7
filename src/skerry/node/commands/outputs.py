"""Where input and output of commands under way are kept, so that a restarted node can go on.

STATE/spool/SANDBOX-OP.stdout, .stderr: see `skerry.guest.spool`; short output makes no file.
STATE/spool/SANDBOX-OP.stdin: see `skerry.node.commands.inputs`; short input makes none either.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

from skerry.guest.output import SpoolSink


class Outputs:
    """Makes and finds the sinks of commands in one directory."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        os.makedirs(directory, mode=0o700, exist_ok=True)

    def make(self, sandbox_id: str, op_id: str, limit: int) -> SpoolSink:
        """Returns an empty sink; it makes files only if the output grows long."""
        return SpoolSink(self._directory, f"{sandbox_id}-{op_id}", limit)

    def reopen(self, sandbox_id: str, op_id: str, limit: int) -> SpoolSink:
        """Returns the sink that an earlier process left; StorageFailed if it cannot be read."""
        return SpoolSink.reopen(self._directory, f"{sandbox_id}-{op_id}", limit)

    def input_path(self, sandbox_id: str, op_id: str) -> str:
        """Returns where long input of an operation is kept."""
        return os.path.join(self._directory, f"{sandbox_id}-{op_id}.stdin")

    def drop(self, sandbox_id: str, op_id: str) -> None:
        """Removes the files of an operation; idempotent."""
        for name in ("stdin", "stdout", "stderr"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self._directory, f"{sandbox_id}-{op_id}.{name}"))

    def sweep(self, keep: Collection[tuple[str, str]]) -> None:
        """Removes what no operation in `keep` (sandbox, operation) will be reopened for."""
        names = {f"{sandbox_id}-{op_id}" for sandbox_id, op_id in keep}
        for entry in os.scandir(self._directory):
            if entry.name.partition(".")[0] not in names:
                os.unlink(entry.path)
