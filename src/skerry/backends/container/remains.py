"""What is left of instances that no launcher holds: found by name below the node's own places.

Only groups below `skerry-NODE` and files below the run directory are looked at: they are ours.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path

from skerry.backends.container.slots import Ask, Slot
from skerry.backends.shared import proc
from skerry.backends.shared.cgroup import Groups
from skerry.backends.shared.launcher import LauncherFailed
from skerry.errors import SkerryError, Unavailable
from skerry.wire import plan

KILL_TIMEOUT_S = 10.0
_POLL_S = 0.005
_SLOT = re.compile(r"slot-([0-9]+)")
_CELL = re.compile(r"cell-([0-9]{1,2})")


def process_start(pid: int) -> int | None:
    """Returns when a process started, in ticks since boot; None if it is gone or a zombie."""
    try:
        handle = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(handle, 1024)
    except ProcessLookupError:
        return None
    finally:
        os.close(handle)
    fields = text.rpartition(b")")[2].split(None, 20)
    return None if fields[0] in b"ZX" else int(fields[19])


class Remains:
    """Finds and clears what is left below one node's places."""

    def __init__(self, groups: Groups, run_dir: str, ask: Ask, log: logging.Logger) -> None:
        self._groups, self._run_dir, self._ask, self._log = groups, run_dir, ask, log

    def slots(self) -> set[int]:
        """Returns the numbers of slots that have a group in any hierarchy."""
        found = set()
        for root in self._groups.roots():
            try:
                names = os.listdir(root)
            except OSError:
                continue
            found |= {int(match[1]) for name in names if (match := _SLOT.fullmatch(name))}
        return found

    def cells(self, number: int) -> int:
        """Returns how many cells a slot of an earlier node may have."""
        slot = Slot(number, self._groups).groups
        places = (slot.work, *(os.path.dirname(path) for path in slot.tasks))
        names = (name for place in places for name in proc.names(place))
        return max(
            (int(match[1]) + 1 for name in names if (match := _CELL.fullmatch(name))), default=0
        )

    async def kill(self, slot: Slot) -> None:
        """Ends every process of a slot; Unavailable if some do not end."""
        try:
            Path(f"{slot.top}/cgroup.kill").write_text("1")
        except OSError:
            return
        for _ in range(int(KILL_TIMEOUT_S / _POLL_S)):
            try:
                if "populated 0" in Path(f"{slot.top}/cgroup.events").read_text():
                    return
            except OSError:
                return
            await asyncio.sleep(_POLL_S)
        raise Unavailable(f"processes of slot {slot.number} do not end")

    async def clear(self, instance: str, slot: Slot) -> None:
        """Ends an instance that the launcher does not know, and removes its upper and socket."""
        await self.kill(slot)
        remove_groups_below(slot.groups.work)
        await self.drop_uppers((instance,))
        self.unlink_socket(instance)

    async def drop_uppers(self, names: Iterable[str]) -> None:
        """Deletes uppers; those that are gone already do not matter."""
        for name in names:
            try:
                await self._ask(plan.UpperDrop(name))
            except LauncherFailed as error:
                if error.errno != errno.ENOENT:
                    self._log.warning("upper %s stays: %s", name, error)
            except SkerryError as error:
                self._log.warning("upper %s stays: %s", name, error)

    def unlink_socket(self, instance: str) -> None:
        """Removes an agent's socket."""
        Path(f"{self._run_dir}/i/{instance}").unlink(missing_ok=True)

    def sockets(self) -> set[str]:
        """Returns the names of agents' sockets."""
        try:
            return set(os.listdir(f"{self._run_dir}/i"))
        except OSError:
            return set()


def remove_groups_below(directory: str) -> None:
    """Removes the groups that an agent made for its commands."""
    for path, names, _ in os.walk(directory, topdown=False):
        for name in names:
            try:
                os.rmdir(f"{path}/{name}")
            except OSError:
                continue
