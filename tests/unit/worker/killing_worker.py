"""A worker's process that kills itself at a record of its journal, before it is written or after.

python killing_worker.py TOP N before|after [KIND,...]

That is its n-th record (0: none), or the first of one of the kinds.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from far_world import FarClient
from job_world import OpenDownloads

from skerry.trajectory.journal import journal
from skerry.worker.service.main import serve

top, left, moment = Path(sys.argv[1]), [int(sys.argv[2])], sys.argv[3]
wanted = frozenset(sys.argv[4].split(",")) if len(sys.argv) > 4 else frozenset()
append = journal.Journal.append


def die(kind: str) -> None:
    (top / "died").write_text(f"{moment} {kind}")
    os.kill(os.getpid(), signal.SIGKILL)


def append_at(self: Any, subject: str, kind: str, data: Any) -> Any:
    left[0] -= 1
    now = left[0] == 0 or kind in wanted
    if now and moment == "before":
        die(kind)
    position = append(self, subject, kind, data)
    if now:
        die(kind)
    return position


if __name__ == "__main__":
    journal.Journal.append = append_at  # type: ignore[method-assign]
    asyncio.run(
        serve(
            top / "state",
            top / "worker.sock",
            FarClient(str(top / "node.sock")),
            OpenDownloads(top, {}),
        )
    )
