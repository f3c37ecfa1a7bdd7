"""Finding instances again: after a restart of the node, of the launcher, or of both."""

from __future__ import annotations

import errno

import msgspec

from skerry.backends.api import Record
from skerry.backends.container.instance import RECORD_VERSION, ContainerInstance, Facts
from skerry.backends.container.parts import Parts
from skerry.backends.container.remains import process_start, remove_groups_below
from skerry.backends.shared.launcher import Launcher, LauncherFailed
from skerry.errors import Bug, SkerryError
from skerry.wire import plan, replies


def is_alive(parts: Parts, facts: Facts) -> bool:
    """Whether the process of a record still runs."""
    return facts.boot == parts.boot and process_start(facts.pid) == facts.start_ticks


def adoption(parts: Parts, instance: ContainerInstance) -> plan.Adopt:
    """Returns the request that gives an instance to a new launcher."""
    groups = instance.slot.groups
    return plan.Adopt(
        instance=instance.id,
        slot=instance.slot.number,
        pid=instance.facts.pid,
        agent_group=groups.agent,
        work_group=groups.work,
        socket=parts.socket_path(instance.id),
    )


async def recover(parts: Parts, record: Record) -> ContainerInstance | None:
    """Finds an instance; what is left of a dead one is removed."""
    if record.backend != "container" or record.version != RECORD_VERSION:
        raise Bug(f"a record of {record.backend} version {record.version} was given to container")
    facts = msgspec.convert(record.data, Facts)
    known = parts.instances.get(facts.instance)
    if known is not None:
        return known
    if not is_alive(parts, facts) and facts.instance not in parts.unclaimed:
        await _forget_dead(parts, facts)
        return None
    best_effort = facts.limits.best_effort
    slot = parts.slots.reserve(facts.slot, best_effort=best_effort, cells=facts.cells)
    slot.limits, slot.base = None, facts.base  # whoever has it next writes all limits
    slot.rest()
    instance = ContainerInstance(parts, facts, slot)
    instance.paused = True  # perhaps: no record says so, and only a thaw makes sure
    parts.instances[instance.id] = instance
    mounted = False
    try:
        await parts.layers.acquire(facts.layers)
        mounted = True
        parts.cores.retake(facts.cores, best_effort=facts.limits.best_effort)
        alive = is_alive(parts, facts)
        if alive and instance.id not in parts.unclaimed:
            slot.reusable = False  # its namespaces' descriptors died with their launcher
            await parts.ask(adoption(parts, instance))
    except BaseException:
        # As if it had not been asked for: it can be tried again, or `sweep` clears it.
        parts.instances.pop(instance.id, None)
        if mounted:
            parts.layers.release(tuple(layer.id for layer in facts.layers))
            parts.cores.give_back(facts.cores, best_effort=facts.limits.best_effort)
        raise
    parts.unclaimed.discard(instance.id)
    parts.orphans.discard(slot.number)
    if alive:
        return instance
    await instance.destroy()
    return None


async def _forget_dead(parts: Parts, facts: Facts) -> None:
    """Removes what bears the name of an instance that neither runs nor is known to the launcher.

    Its slot is left alone: it may long be another's, who is recovered in the same moment. If it is
    nobody's, `sweep` drops it. No process of a dead one is left: they end with the first of them.
    """
    await parts.remains.drop_uppers((facts.instance,))
    parts.remains.unlink_socket(facts.instance)


async def restore(parts: Parts, launcher: Launcher, status: replies.StatusReply) -> None:
    """Tells a launcher, found or new, what lives; runs before any other request gets through."""
    held = set(status.instance)
    parts.layers.found(status.layer)
    for instance in list(parts.instances.values()):
        if not instance.facts.pid:  # its START is under way, or was when the launcher was lost
            continue
        if not is_alive(parts, instance.facts):
            instance.exited(9)
        if instance.id in held:
            continue
        instance.slot.reusable = False
        if not instance.alive:
            continue
        try:
            await launcher.ask(adoption(parts, instance))
        except LauncherFailed as error:
            parts.log.warning("instance %s was not adopted: %s", instance.id, error)
            if error.errno != errno.EEXIST:
                instance.exited(9)
    parts.unclaimed = held - set(parts.instances)
    parts.slots.lost(set(status.slot))
    if not parts.restored:
        await _find_orphans(parts, launcher, status)
        parts.restored = True


async def _find_orphans(parts: Parts, launcher: Launcher, status: replies.StatusReply) -> None:
    """Keeps the numbers of slots of an earlier node out of use; drops those that are idle."""
    for number in sorted(parts.remains.slots() | set(status.slot)):
        slot = parts.slots.reserve(number, cells=parts.remains.cells(number))
        if number in status.slot:
            try:
                await launcher.ask(plan.SlotDrop(slot=number, step=slot.groups.drop))
            except LauncherFailed:
                parts.orphans.add(number)  # in use: by an instance that `recover` may claim
            else:
                parts.slots.unreserve(number)
        else:
            parts.orphans.add(number)  # an instance may live in it that no launcher knows


async def sweep(parts: Parts) -> list[str]:
    """Destroys what nobody claimed by `recover`; returns a line for each thing destroyed."""
    swept = []
    for name in sorted(parts.unclaimed):
        try:
            await parts.ask_raw(plan.Stop(instance=name))
            swept.append(f"instance {name}, which no record knows")
        except LauncherFailed as error:
            parts.log.warning("unclaimed instance %s stays: %s", name, error)
    parts.unclaimed.clear()
    for number in sorted(parts.orphans):
        slot = parts.slots.reserve(number, cells=parts.remains.cells(number))
        try:
            await parts.remains.kill(slot)
        except SkerryError as error:
            parts.log.warning("slot %d stays: %s", number, error)
            continue
        remove_groups_below(slot.groups.work)
        await parts.slots.drop(slot)
        swept.append(f"slot {number}, which nobody uses")
    parts.orphans.clear()
    for name in sorted(parts.remains.sockets() - set(parts.instances) - parts.making):
        await parts.remains.drop_uppers((name,))
        parts.remains.unlink_socket(name)
        swept.append(f"socket of {name}")
    # Views for a fork or a diff that an earlier node died in, and uppers of half an instance.
    for name in sorted(parts.uppers() - set(parts.instances) - parts.making - set(parts.views)):
        await parts.remains.drop_uppers((name,))
        swept.append(f"upper {name}, which nobody uses")
    return swept
