"""Groups of the cells of a function container: below the container's own, which bound them all.

    v1 hybrid   <memory|pids|cpu>/NODE/slot-N/cell-I    limits, entered through `tasks`
                <unified>/NODE/slot-N/w/cell-I          one group an operation; cpu time
    v2          <unified>/NODE/slot-N/w/cell-I          all of that

They live as long as the slot; the calls of a cell come one after the other in the same groups
(decision 19). Kernels with cgroup.kill know no memory groups that do not count their children, so
`memory.use_hierarchy` is not to be written. Nothing here opens a file.
"""

from __future__ import annotations

import posixpath

import msgspec

from skerry.backends.shared.cgroup import OomKind, SlotGroups


class CellGroups(msgspec.Struct, frozen=True):
    """What the launcher, the agent and the node need to know of one cell's groups."""

    make: tuple[str, ...]
    drop: tuple[str, ...]
    tasks: tuple[str, ...]
    memory: str  # directories
    pids: str
    work: str
    v1: bool


def cell_groups(slot: SlotGroups, cell: int, owner_uid: int) -> CellGroups:
    """Plans one cell of a slot; limit files are root's, and operations' groups are the owner's."""
    name = f"cell-{cell}"
    v1 = slot.oom_kind is OomKind.V1
    work = f"{slot.work}/{name}"
    limits = tuple(f"{posixpath.dirname(path)}/{name}" for path in slot.tasks)
    make = (*(f"mkdir {path} 0755 -1" for path in limits), f"mkdir {work} 0755 {owner_uid}")
    memory, pids = work, work
    if v1:
        memory = f"{posixpath.dirname(slot.oom_file)}/{name}"
        pids = f"{posixpath.dirname(slot.readings[2])}/{name}"
    return CellGroups(
        make=make,
        drop=tuple(f"rmdir {path}" for path in (work, *reversed(limits))),
        tasks=tuple(f"{path}/tasks" for path in limits),
        memory=memory,
        pids=pids,
        work=work,
        v1=v1,
    )


def with_cells(slot: SlotGroups, cells: int, owner_uid: int) -> SlotGroups:
    """Returns the slot's plan with those of its cells in it."""
    if not cells:
        return slot
    planned = [cell_groups(slot, cell, owner_uid) for cell in range(cells)]
    # A group of v2 that hands controllers down holds no process itself; nor does this one.
    down = () if slot.tasks else (f"write {slot.work}/cgroup.subtree_control +memory +pids +cpu",)
    return msgspec.structs.replace(
        slot,
        make=(*slot.make, *down, *(step for each in planned for step in each.make)),
        drop=(*(step for each in planned for step in each.drop), *slot.drop),
        cell_tasks=tuple(path for each in planned for path in each.tasks),
    )
