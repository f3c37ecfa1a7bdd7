"""Layers, uppers, cores, environment, plans, host facts of the container backend."""

from __future__ import annotations

import asyncio
import errno
import logging
from types import SimpleNamespace

import pytest

from skerry.backends.api import Attended, CreateRequest
from skerry.backends.container import build_backend, creation, host, uppers
from skerry.backends.container.cores import Cores
from skerry.backends.container.creation import start_plan
from skerry.backends.container.environment import environment
from skerry.backends.container.instance import exit_of
from skerry.backends.container.layers import LayerMounts
from skerry.backends.container.parts import Parts, Places
from skerry.backends.container.remains import process_start
from skerry.backends.container.slots import Slot
from skerry.backends.shared import proc
from skerry.backends.shared.cgroup import Layout, Limits
from skerry.backends.shared.launcher import LauncherFailed
from skerry.errors import InvalidRequest, LayerDamaged, Overloaded, StorageFailed, Unavailable
from skerry.spec.layers import LayerFile, RootfsPlan
from skerry.wire import plan, replies

LAYOUT = Layout("v1", "/u", {"memory": "/m", "pids": "/p", "cpu": "/c"}, True)
LOG = logging.getLogger("test")
LAYERS = tuple(LayerFile(str(n) * 32, f"sha256:{n}", f"/blobs/{n}") for n in range(3))


class Answers:
    def __init__(self) -> None:
        self.asked: list[plan.Request] = []
        self.broken: dict[type[plan.Request], int] = {}

    async def __call__(self, request: plan.Request) -> replies.Reply:
        self.asked.append(request)
        await asyncio.sleep(0)
        number = self.broken.get(type(request))
        if number is not None:
            raise LauncherFailed(request.CODE.name, replies.Failure(error_step="x", errno=number))
        return replies.Reply(1, None)


def kinds(answers: Answers) -> list[str]:
    return [type(asked).__name__ for asked in answers.asked]


async def test_layer_is_mounted_once_for_many():
    answers = Answers()
    mounts = LayerMounts(answers, LOG)
    await asyncio.gather(*(mounts.acquire(LAYERS) for _ in range(10)))
    assert kinds(answers) == ["LayerMount"] * 3


async def test_unused_layer_is_unmounted_and_a_used_one_is_not():
    answers = Answers()
    mounts = LayerMounts(answers, LOG)
    await mounts.acquire(LAYERS)
    mounts.release((LAYERS[1].id,))
    await mounts.unmount_unused(60.0)
    assert "LayerUnmount" not in kinds(answers)
    await mounts.unmount_unused(0.0)
    assert [asked.layer for asked in answers.asked if isinstance(asked, plan.LayerUnmount)] == [
        LAYERS[1].id
    ]
    await mounts.acquire(LAYERS[1:2])
    assert kinds(answers)[-1] == "LayerMount"


async def test_found_layers_are_not_mounted_again():
    answers = Answers()
    mounts = LayerMounts(answers, LOG)
    mounts.found((LAYERS[0].id,))
    await mounts.acquire(LAYERS[:2])
    assert [asked.layer for asked in answers.asked] == [LAYERS[1].id]


@pytest.mark.parametrize(
    ("number", "error"), [(errno.EUCLEAN, LayerDamaged), (errno.ENOSPC, StorageFailed)]
)
async def test_failed_mount_leaves_no_user(number, error):
    answers = Answers()
    answers.broken[plan.LayerMount] = number
    mounts = LayerMounts(answers, LOG)
    with pytest.raises(error):
        await mounts.acquire(LAYERS)
    answers.broken.clear()
    await mounts.acquire(LAYERS)
    mounts.release(tuple(layer.id for layer in LAYERS))
    await mounts.unmount_unused(0.0)
    assert kinds(answers).count("LayerUnmount") == 3


class Table(Answers):
    """A launcher with room for so many layers."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room, self.mounted, self.busy = room, set[str](), set[str]()

    async def __call__(self, request: plan.Request) -> replies.Reply:
        await asyncio.sleep(0)
        if isinstance(request, plan.LayerMount):
            if len(self.mounted) == self.room:
                full = replies.Failure(error_step="layer", errno=errno.ENOSPC, text="it is full")
                raise LauncherFailed(request.CODE.name, full)
            self.mounted.add(request.layer)
        if isinstance(request, plan.LayerUnmount):
            if request.layer in self.busy:
                busy = replies.Failure(error_step="layer", errno=errno.EBUSY)
                raise LauncherFailed(request.CODE.name, busy)
            self.mounted.discard(request.layer)
        return replies.Reply(1, None)


def numbered(number: int) -> LayerFile:
    return LayerFile(f"{number + 4096:032x}", f"sha256:{number}", f"/blobs/{number}")


async def test_unused_layers_make_room_the_longest_unused_first():
    table = Table(40)
    mounts = LayerMounts(table, LOG)
    for at in range(100):
        await mounts.acquire((LAYERS[0], numbered(at)))
        mounts.release((LAYERS[0].id, numbered(at).id))
        assert len(mounts) == len(table.mounted)
    assert {LAYERS[0].id, *(numbered(at).id for at in range(80, 100))} <= table.mounted


async def test_where_all_are_in_use_it_is_an_overload_and_passes():
    table = Table(40)
    mounts = LayerMounts(table, LOG)
    asked = [mounts.acquire((LAYERS[0], numbered(at))) for at in range(60)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    refused = [one for one in answers if one is not None]
    assert len(refused) == 60 - 39
    assert all(isinstance(one, Overloaded) for one in refused)
    assert {one.fields["limit"] for one in refused} == {"layers_mounted"}
    assert all(one.fields["retry_after_s"] > 0 for one in refused)
    [ended] = [numbered(at) for at, one in enumerate(answers) if one is None][:1]
    mounts.release((LAYERS[0].id, ended.id))
    await mounts.acquire((LAYERS[0], numbered(99)))
    assert numbered(99).id in table.mounted


async def test_layers_that_cannot_go_are_not_asked_for_ever():
    table = Table(3)
    mounts = LayerMounts(table, LOG)
    mounts.found(tuple(numbered(at).id for at in range(3)))
    table.mounted = table.busy = {numbered(at).id for at in range(3)}
    with pytest.raises(Overloaded):
        await mounts.acquire((numbered(7),))


def test_cores_go_to_the_least_used():
    cores = Cores({0, 1, 2, 3})
    assert cores.take(1.5) == (0, 1)
    assert cores.take(1) == (2,)
    assert cores.take(2) in {(0, 3), (1, 3), (3, 0)}
    assert cores.take(4) == ()
    assert cores.take(64) == ()
    cores.give_back((2,))
    assert cores.take(0.1) == (2,)


def test_each_class_is_spread_over_the_cores_by_itself():
    cores = Cores({0, 1, 2, 3})
    assert [cores.take(1, best_effort=True) for _ in range(2)] == [(0,), (1,)]
    # Those that give way do not keep the others off a core, but where there is a choice.
    assert [cores.take(1) for _ in range(4)] == [(2,), (3,), (0,), (1,)]
    assert cores.take(1.5, best_effort=True) == (2, 3)
    cores.give_back((2,))
    assert cores.take(0.5) == (2,)


def test_environment_of_the_sandbox_wins():
    lines = environment({"LANG": "de_DE.UTF-8", "X": "a=b"})
    assert b"LANG=de_DE.UTF-8" in lines
    assert b"X=a=b" in lines
    assert b"TAR_OPTIONS=--no-same-owner" in lines
    assert not any(line.startswith(b"HOME=") for line in lines)


def test_wait_status_is_read():
    assert exit_of(9).signal == 9
    assert exit_of(7 << 8).status == 7


def request(**values) -> CreateRequest:
    fixed = {
        "instance_id": "s1",
        "rootfs": RootfsPlan(LAYERS),
        "hostname": "h",
        "cpu": 1.0,
        "memory_bytes": 1 << 28,
        "pids": 10,
        "nofile": 64,
        "shm_bytes": 1 << 20,
    }
    return CreateRequest(**(fixed | values))


async def test_start_plan_is_complete_and_writes_only_what_differs():
    parts = Parts(Places("/s", "/r", "n"), LAYOUT, LOG)
    slot = Slot(4, parts.groups)
    limits = Limits(1 << 28, 10, 1.0)
    fresh = start_plan(parts, request(), slot, limits)
    assert fresh.layer == tuple(layer.id for layer in LAYERS)
    assert fresh.socket == "/r/i/s1"
    assert fresh.tasks[0] == "/m/skerry-n/slot-4/tasks"
    assert any("pids.max 10" in step for step in fresh.step)
    slot.limits = limits
    assert not any("pids.max" in step for step in start_plan(parts, request(), slot, limits).step)
    assert len(fresh.encode(1)) < 4096


async def test_start_plan_of_a_function_container_has_its_cells():
    parts = Parts(Places("/s", "/r", "n"), LAYOUT, LOG)
    slot = Slot(4, parts.groups, cells=32)
    wanted = start_plan(parts, request(cells=32), slot, Limits(1 << 28, 10, 1.0))
    config = plan.AgentConfig.parse(wanted.config)
    assert (wanted.profile, config.cells) == (plan.FUNCTION, 32)
    assert len(wanted.tasks) == 3 * 33
    assert wanted.tasks[3] == "/m/skerry-n/slot-4/cell-0/tasks"
    assert len(wanted.encode(1)) < 1 << 15
    usual = start_plan(parts, request(), Slot(5, parts.groups), Limits(1 << 28, 10, 1.0))
    config = plan.AgentConfig.parse(usual.config)
    assert (usual.profile, config.cells) == (None, None)


@pytest.mark.parametrize("cells", [-1, 33])
async def test_number_of_cells_out_of_bounds_is_the_callers_fault(cells):
    parts = Parts(Places("/s", "/r", "n"), LAYOUT, LOG)
    with pytest.raises(InvalidRequest, match="cells"):
        await creation.create(parts, request(cells=cells))


async def test_environment_that_does_not_fit_is_the_callers_fault():
    parts = Parts(Places("/s", "/r", "n"), LAYOUT, LOG)
    with pytest.raises(InvalidRequest, match="env"):
        start_plan(parts, request(env={"X": "x" * 65_000}), Slot(4, parts.groups), Limits(1, 1, 1))


MOUNTS = """\
27 1 254:0 / / rw - ext4 /dev/vda rw
40 27 0:40 / /run rw - tmpfs tmpfs rw
41 27 0:41 / /pool rw - btrfs /dev/vdb rw
"""


def test_store_follows_the_file_system_of_the_state_directory():
    assert uppers.file_system("/var/lib/x", MOUNTS) == "ext4"
    assert uppers.file_system("/pool", MOUNTS) == "btrfs"
    assert uppers.file_system("/poolside", MOUNTS) == "ext4"
    assert uppers.choose("/pool/x", MOUNTS, "btrfs") == uppers.UpperPlan("btrfs", "/pool/x/uppers")
    with pytest.raises(Unavailable, match="tmpfs"):
        uppers.choose("/run/x", MOUNTS, "btrfs")


def test_store_without_btrfs_is_a_directory_that_says_why():
    store = uppers.choose("/var/lib/x", MOUNTS, "nodev proc\n ext4\n")
    assert store.kind == "dir"
    assert "btrfs" in store.reason


def test_full_disk_refuses_creates(monkeypatch):
    monkeypatch.setattr(uppers, "free_bytes", lambda _path: 5)
    with pytest.raises(Overloaded, match="free") as refused:  # for who can wait: room may come
        uppers.Room("/x").check()
    assert refused.value.fields["limit"] == "disk_free"
    assert refused.value.fields["retry_after_s"] > 0
    with pytest.raises(StorageFailed, match="too little"):
        uppers.prepare(uppers.UpperPlan("btrfs", "/tmp/x.btrfs", image=True))


def test_lacking_rights_are_named():
    assert host.missing_capabilities("CapEff:\t000001ffffffffff\n") == []
    assert "CAP_SYS_ADMIN" in host.missing_capabilities("CapEff:\t0000000000000000\n")
    assert host.missing_capabilities("") == list(host.CAPABILITIES)


def test_kernel_versions_are_compared_as_numbers():
    assert host.kernel_version("6.18.44-fc") == (6, 18)
    assert host.kernel_version("6.8-rc1") == (6, 8)
    assert host.kernel_version("odd") == (0, 0)


def test_run_dir_must_be_short():
    with pytest.raises(InvalidRequest, match="too long"):
        build_backend(state_dir="/s", run_dir="/" + "x" * 100, node="abcde")


async def test_backend_that_was_not_started_is_unavailable():
    backend = build_backend(state_dir="/s", run_dir="/r", node="abcde")
    with pytest.raises(Unavailable):
        await backend.create(request())
    await backend.close(keep_instances=False)


async def test_launcher_is_named_for_its_descriptors():
    backend = build_backend(state_dir="/s", run_dir="/r", node="abcde")
    assert isinstance(backend, Attended)
    assert backend.daemons() == ()
    backend._parts = SimpleNamespace(process=SimpleNamespace(pid=77))
    assert backend.daemons() == (("launcher", 77),)


def test_processes_are_told_apart():
    assert process_start(1) is not None
    assert process_start(2**22 + 1) is None
    assert len(proc.boot_id()) == 36


@pytest.mark.parametrize(
    "error",
    [
        LauncherFailed("SLOT_MAKE", replies.Failure(error_step="slot", errno=errno.EEXIST)),
        LauncherFailed("SLOT_MAKE", replies.Failure(error_step="deadline", errno=errno.ETIMEDOUT)),
        Unavailable("the launcher was lost during SLOT_MAKE"),
    ],
)
async def test_slot_that_cannot_be_made_is_replaced_by_another(monkeypatch, error):
    """Nothing of the sandbox was begun: its create goes on in a slot of another number."""
    parts = Parts(Places("/s", "/r", "n"), LAYOUT, LOG)
    failures = [error]

    async def ask(asked):
        if isinstance(asked, plan.SlotMake) and failures:
            raise failures.pop()
        return replies.Reply(1, None)

    async def start(_parts, _request, slot):
        return slot

    parts.slots._ask = ask
    monkeypatch.setattr(creation, "_start", start)
    slot = await creation._in_some_slot(parts, request())
    assert (slot.number, parts.slots.stuck) == (1, (0,))
    failures.extend([error] * creation.SLOT_TRIES)
    with pytest.raises(type(error)):
        await creation._in_some_slot(parts, request())
