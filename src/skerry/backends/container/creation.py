"""From a CreateRequest to a live instance: layers, a slot, one START."""

from __future__ import annotations

import errno
import os

from skerry.backends.api import CreateRequest
from skerry.backends.container.cores import confine
from skerry.backends.container.environment import environment
from skerry.backends.container.instance import ContainerInstance, Facts
from skerry.backends.container.parts import Parts
from skerry.backends.container.remains import process_start
from skerry.backends.container.slots import Slot
from skerry.backends.shared.cgroup import Limits
from skerry.backends.shared.launcher import LauncherFailed
from skerry.errors import Bug, InvalidRequest, Unavailable
from skerry.spec.sandbox import CpuClass
from skerry.wire import plan
from skerry.wire.guest_cells import CELLS_MAX

OPERATIONS_MAX = 512
EXEC_DEADLINE_MS = 10_000
EXEC_DEADLINE_IDLE_MS = 60_000
CONFIG_BYTES_MAX = 60_000  # the launcher hands it over in one pipe
SLOT_TRIES = 3
ROOM_MIN_BYTES = 1 << 20  # with less the overlay cannot be mounted writable
STALE = ("slot", errno.ENOENT)
COVERS = {"firm": "readonly", "cover": "hidden"}  # the launcher's steps, and the words for them


def start_plan(parts: Parts, request: CreateRequest, slot: Slot, limits: Limits) -> plan.StartPlan:
    """Returns the complete plan of START; limits are written only where the slot has others."""
    config = plan.AgentConfig(
        peer_uid=os.getuid(),
        nofile=request.nofile,
        env=environment(request.env),
        max_ops=OPERATIONS_MAX,
        # Behind others, a child may wait long for the little time that it needs to reach its exec.
        exec_deadline_ms=EXEC_DEADLINE_IDLE_MS if limits.best_effort else EXEC_DEADLINE_MS,
        best_effort=limits.best_effort or None,
        cells=request.cells or None,
    )
    payload = config.payload()
    if len(payload) > CONFIG_BYTES_MAX:
        over = len(payload) - CONFIG_BYTES_MAX
        raise InvalidRequest(f"env: {over} bytes too long, with what every command gets")
    groups = slot.groups
    return plan.StartPlan(
        instance=request.instance_id,
        slot=slot.number,
        layer=tuple(layer.id for layer in request.rootfs.layers),
        hostname=request.hostname,
        disk_bytes=_room(request),
        upper_from=None if request.view is None else request.view.name,
        uid_base=None if request.view is None else request.view.uid_base,
        readonly=request.readonly,
        hidden=request.hidden,
        node=tuple(f"{one.name} {one.major}:{one.minor}" for one in request.devices),
        shm_bytes=request.shm_bytes,
        step=parts.groups.limit(slot.number, slot.limits, limits),
        agent_group=groups.agent,
        work_group=groups.work,
        tasks=groups.tasks + groups.cell_tasks,
        oom_file=groups.oom_file,
        oom_kind=groups.oom_kind,
        socket=parts.socket_path(request.instance_id),
        config=payload,
        profile=plan.FUNCTION if request.cells else None,
    )


def _room(request: CreateRequest) -> int | None:
    """Returns how much it may write itself: what it begins with counts, as it did for its parent."""
    if request.disk_bytes is None or request.view is None:
        return request.disk_bytes
    return max(ROOM_MIN_BYTES, request.disk_bytes - request.view.used_bytes)


async def create(parts: Parts, request: CreateRequest) -> ContainerInstance:
    """Makes an instance, or raises and leaves nothing."""
    if not request.rootfs.layers:
        raise InvalidRequest("a container needs at least one layer")
    if not 0 <= request.cells <= CELLS_MAX:
        raise InvalidRequest(f"cells: {request.cells} is not within 0..{CELLS_MAX}")
    if request.disk_bytes is not None and "quota" not in parts.features:
        raise InvalidRequest(
            "disk: this node cannot limit what a sandbox writes (no btrfs pool); "
            "`skerry doctor` says why; ask without a limit"
        )
    async with parts.starts:
        await parts.layers.acquire(request.rootfs.layers)
        try:
            return await _in_some_slot(parts, request)
        except BaseException as error:
            parts.layers.release(tuple(layer.id for layer in request.rootfs.layers))
            if not isinstance(error, LauncherFailed):
                raise
            if error.step in COVERS and error.errno == errno.ENOENT:
                what = COVERS[error.step]
                raise InvalidRequest(f"{what}: a path is not in the layers: {error}") from error
            raise error.to_error() from error


async def _in_some_slot(parts: Parts, request: CreateRequest) -> ContainerInstance:
    """Starts it; a slot that went with an earlier launcher meanwhile is replaced by another."""
    for tries in range(SLOT_TRIES):
        await parts.ready()
        try:
            slot = await parts.slots.acquire(
                request.memory_bytes,
                best_effort=request.cpu_class is CpuClass.BEST_EFFORT,
                cells=request.cells,
            )
        except (LauncherFailed, Unavailable):
            # Nothing of the sandbox was begun, and the number is put aside: another one serves.
            if tries == SLOT_TRIES - 1:
                raise
            continue
        try:
            return await _start(parts, request, slot)
        except BaseException as error:
            await _undo(parts, request.instance_id, slot, error)
            stale = isinstance(error, LauncherFailed) and (error.step, error.errno) == STALE
            if not stale or tries == SLOT_TRIES - 1:
                raise
    raise Bug("a slot was neither used nor refused")


async def _start(parts: Parts, request: CreateRequest, slot: Slot) -> ContainerInstance:
    limits = Limits(
        request.memory_bytes,
        request.pids,
        request.cpu,
        request.cpu_weight,
        request.cpu_burst,
        slot.best_effort,
    )
    wanted = start_plan(parts, request, slot, limits)
    facts = Facts(
        instance=request.instance_id,
        slot=slot.number,
        pid=0,
        start_ticks=0,
        boot=parts.boot,
        layers=request.rootfs.layers,
        limits=limits,
        base=slot.base,
        disk_base=None if request.view is None else request.view.uid_base,
        disk_bytes=request.disk_bytes,
        inherited=0 if request.view is None else request.view.used_bytes,
        cells=request.cells,
    )
    instance = ContainerInstance(parts, facts, slot)
    # Known before START answers: its end may be told in the very next packet.
    parts.instances[instance.id] = instance
    try:
        if request.detached:
            parts.keep(instance.id)
        slot.limits = None  # unknown, should START fail half way
        started = (await parts.ask_raw(wanted)).start()
        slot.limits = limits
        _understood(request, started.step_us)
        cores = parts.cores.take(request.cpu, best_effort=limits.best_effort)
        instance.born(started.pid, process_start(started.pid), cores)
        confine(started.pid, instance.facts.cores)
        slot.rest()
    except BaseException:
        parts.forget(instance.id)
        raise
    return instance


def _understood(request: CreateRequest, stages: tuple[str, ...]) -> None:
    """Raises Unavailable if a launcher of an earlier version left out what it does not know."""
    done = {stage.partition("=")[0] for stage in stages}
    if (request.readonly and "firm" not in done) or (request.hidden and "cover" not in done):
        raise Unavailable(
            "the launcher that runs is older than this node and knows no read-only and no hidden paths; "
            "end its sandboxes and restart it"
        )
    if request.devices and "node" not in done:
        raise Unavailable(
            "the launcher that runs is older than this node and knows no device nodes; "
            "end its sandboxes and restart it"
        )
    if request.cells and "seal" not in done:
        raise Unavailable(
            "the launcher that runs is older than this node and knows no function containers; "
            "end its sandboxes and restart it"
        )


async def _undo(parts: Parts, instance: str, slot: Slot, error: BaseException) -> None:
    """After a failed START: the launcher undid it, unless it was lost meanwhile."""
    if not isinstance(error, LauncherFailed | InvalidRequest):
        await parts.remains.clear(instance, slot)
    clean = isinstance(error, InvalidRequest)  # nothing was sent
    await parts.slots.release(slot, clean=clean, after=slot.base, why=f"START failed: {error}")
