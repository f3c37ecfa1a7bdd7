"""A node that kills itself, its launcher, or both, at a point of its work that a file names.

    python tests/killing_node.py ORDER node ...          (then as `skerry node ...`)

ORDER is a file that a test writes: `WHAT WHEN VICTIM`. WHAT is `append:KIND` (a record of the
journal), `ask:NAME` (a request to the launcher) or `put:KIND` (an object of a trajectory in the layer
store: seg, idx, blob or tail), `WHAT/2` the second one from the order on; WHEN is
before, sent or after, VICTIM is node, launcher or both. The order is taken (the file removed) before
anything dies, so it happens once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

from skerry.backends.shared import launcher, launcher_process
from skerry.cli.main import main
from skerry.images.objects import directory
from skerry.trajectory.journal import journal

PLACE = "trajectories/"
order = Path(sys.argv.pop(1))
launcher_pid = [0]
seen = [0]  # how often the point of the order was passed


def point(what: str, when: str) -> None:
    """Dies here if that was ordered."""
    try:
        wanted, moment, victim = order.read_text().split()
    except (OSError, ValueError):
        return
    wanted, _, number = wanted.partition("/")
    if (wanted, moment) != (what, when):
        return
    seen[0] += 1
    if seen[0] < int(number or 1):
        return
    order.unlink()
    seen[0] = 0
    if victim in ("launcher", "both") and launcher_pid[0]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(launcher_pid[0], signal.SIGKILL)
    if victim in ("node", "both"):
        os.kill(os.getpid(), signal.SIGKILL)


def putting(real):
    """Puts points around a way to store objects."""

    def put_at(self, key, *arguments, **more):
        kind = key.rpartition(".")[2].partition("/")[0] if "." in key else key.split("/")[1]
        what = f"put:{'blob' if kind == 'blobs' else kind}" if key.startswith(PLACE) else ""
        point(what, "before")
        done = real(self, key, *arguments, **more)
        point(what, "after")
        return done

    return put_at


def patch() -> None:
    """Puts the points around what the real node does."""
    append, ask = journal.Journal.append, launcher.Launcher.ask
    attach, send = launcher_process.LauncherProcess._attach, launcher.Launcher._send
    name_of: dict[int, str] = {}

    def append_at(self, subject, kind, data):
        point(f"append:{kind}", "before")
        position = append(self, subject, kind, data)
        point(f"append:{kind}", "after")
        return position

    async def ask_at(self, request, *arguments):
        name = request.CODE.name
        point(f"ask:{name}", "before")
        name_of[id(self)] = name
        reply = await ask(self, request, *arguments)
        point(f"ask:{name}", "after")
        return reply

    def send_at(self, packet, *more):
        send(self, packet, *more)
        point(f"ask:{name_of.get(id(self), '')}", "sent")

    async def attach_at(self):
        await attach(self)
        launcher_pid[0] = self.pid

    journal.Journal.append = append_at
    for name in ("put_file", "put_bytes"):
        real = getattr(directory.DirectoryObjects, name)
        setattr(directory.DirectoryObjects, name, putting(real))
    launcher.Launcher.ask = ask_at
    launcher.Launcher._send = send_at
    launcher_process.LauncherProcess._attach = attach_at


if __name__ == "__main__":
    patch()
    main()
