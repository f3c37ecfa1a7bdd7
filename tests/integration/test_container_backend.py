"""Containers for real: deaths of node and launcher, bursts, hygiene of slots. Nothing is left."""

from __future__ import annotations

import asyncio
import os
import platform
import statistics
import subprocess
from pathlib import Path

import pytest

from container_places import Places, places_for
from skerry.backends.container.remains import process_start
from skerry.errors import InvalidRequest, LayerDamaged, Overloaded, SkerryError
from skerry.spec.layers import LayerFile, RootfsPlan
from skerry.testing import rootfs as rootfs_module
from skerry.testing.conformance import Box, Conformance
from skerry.testing.rootfs import container_reason

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(container_reason()), reason=container_reason()),
]


@pytest.fixture
async def places(census):
    async with places_for(census) as made:
        yield made


@pytest.fixture
async def backend(places):
    made = await places.backend()
    yield made
    await made.close(keep_instances=False)


def request(**values):
    return Conformance.request_for(rootfs_module.plan(), **values)


async def said(instance, line: str, start: int = 0) -> str:
    """What a shell line says; handles begin after `start`."""
    box = Box(instance)
    box._handle = start
    await box.connect()
    try:
        return (await box.sh(line)).text
    finally:
        await box.disconnect()


async def test_two_hundred_creates_at_once_all_live(backend):
    instances = await asyncio.gather(*(backend.create(request()) for _ in range(200)))
    assert len({instance.slot.number for instance in instances}) == 200
    answers = await asyncio.gather(*(said(instance, "echo $$") for instance in instances[::20]))
    assert all(answers)
    await asyncio.gather(*(instance.destroy() for instance in instances))
    backend.parts.slots.check_invariants()
    assert not backend.parts.instances


async def test_idle_agents_hold_little_memory_of_their_own(backend):
    """What it has written lies together, its stack among it (native/init/low.c): else 52 and 48."""
    instances = await asyncio.gather(*(backend.create(request()) for _ in range(9)))
    for box in map(Box, instances):
        await box.connect()
        await box.disconnect()
    pids = [instance.facts.pid for instance in instances]
    tables = [kib_of(Path(f"/proc/{pid}/status"), "VmPTE:") for pid in pids]
    own = [kib_of(Path(f"/proc/{pid}/smaps_rollup"), "Private_Dirty:") for pid in pids]
    await asyncio.gather(*(instance.destroy() for instance in instances))
    low = platform.machine() == "x86_64"
    assert 0 < statistics.median(tables) <= (12 if low else 44), tables
    assert 0 < statistics.median(own) <= (16 if low else 56), own  # the stack's place is random


def kib_of(file, name):
    return int(file.read_text().partition(name)[2].split()[0])


async def test_instances_outlive_a_killed_launcher(backend):
    instances = await asyncio.gather(*(backend.create(request()) for _ in range(5)))
    await said(instances[0], "echo kept > /root/kept")
    os.kill(backend.parts.process.pid, 9)
    assert await said(instances[0], "cat /root/kept", 1) == "kept"  # the channel needs no launcher
    later = await backend.create(request())  # waits for the new launcher
    assert await said(later, "echo new") == "new"
    assert backend.parts.process.restarts == 1
    os.kill(instances[1].facts.pid, 9)
    async with asyncio.timeout(10):
        await instances[1].wait()
    async with instances[0].snapshot() as upper:
        assert Path(upper.path, "root/kept").read_text() == "kept\n"
    await asyncio.gather(*(instance.destroy() for instance in (*instances, later)))


async def test_launcher_killed_under_load_leaves_nothing(backend):
    load = [asyncio.create_task(backend.create(request())) for _ in range(40)]
    await asyncio.sleep(0.03)
    os.kill(backend.parts.process.pid, 9)
    results = await asyncio.gather(*load, return_exceptions=True)
    made = [result for result in results if not isinstance(result, BaseException)]
    assert all(isinstance(r, SkerryError) for r in results if isinstance(r, BaseException))
    assert len(made) >= 20
    await asyncio.gather(*(instance.destroy() for instance in made))


async def test_instances_outlive_node_and_launcher(places):
    first = await places.backend()
    kept, dead, forgotten = [await first.create(request()) for _ in range(3)]
    await said(kept, "echo kept > /root/kept")
    launcher = first.parts.process.pid
    await first.close(keep_instances=True)
    os.kill(launcher, 9)
    os.kill(dead.facts.pid, 9)
    second = await places.backend()
    try:
        assert await second.recover(dead.record()) is None
        found = await second.recover(kept.record())
        assert found is not None
        assert await said(found, "cat /root/kept", 1) == "kept"
        swept = await second.sweep()
        assert any(f"slot {forgotten.slot.number}," in line for line in swept)
        assert process_start(forgotten.facts.pid) is None
        await found.destroy()
    finally:
        await second.close(keep_instances=False)


async def test_close_that_keeps_nothing_leaves_nothing(places):
    backend = await places.backend()
    await (await backend.create(request())).destroy()
    launcher = backend.parts.process.pid
    await backend.close(keep_instances=True)
    assert process_start(launcher) is None
    assert not os.listdir(places.run)


async def test_killed_node_leaves_what_the_next_one_sweeps(places):
    first = await places.backend()
    lost = await first.create(request())
    # As after kill -9 of the node: no call of `close`, only the connection goes.
    first.parts.process._watch.cancel()
    (await first.parts.process.get()).close()
    second = await places.backend()
    assert any(lost.id in line for line in await second.sweep())
    assert process_start(lost.facts.pid) is None
    again = await second.create(request())
    assert await said(again, "echo fine") == "fine"
    await second.close(keep_instances=False)
    await first.parts.layers.close()
    for keeper in first._keepers:  # one may be waiting for the launcher that nobody starts again
        keeper.cancel()
    await asyncio.gather(*first._keepers, return_exceptions=True)


async def test_slots_are_reused_and_carry_nothing_over(backend):
    seen = set()
    for _ in range(12):
        instance = await backend.create(request(memory_bytes=64 << 20))
        seen.add(instance.slot.number)
        line = "cat /root/mark 2>/dev/null; ls -A /dev/shm /dev/mqueue | grep -v :; echo x > /root/mark"
        text = await said(instance, f"{line}; echo y > /dev/shm/mark")
        assert text == ""
        await instance.destroy()
    assert len(seen) < 12
    assert backend.parts.slots.dropped == 0


async def test_slot_with_a_listening_daemon_is_cleaned_or_dropped(backend):
    instance = await backend.create(request())
    script = "import socket,time; s=socket.create_server(('127.0.0.1',8080)); time.sleep(1000)"
    await said(instance, f'setsid python3 -c "{script}" >/dev/null 2>&1 & sleep 0.3')
    number = instance.slot.number
    await instance.destroy()
    for _ in range(20):
        again = await backend.create(request())
        if again.slot.number == number:
            assert "1F90" not in await said(again, "cat /proc/net/tcp")
        await again.destroy()


async def test_damaged_layer_is_the_platforms_fault_and_leaves_nothing(backend, places):
    bad = Path(places.state, "bad.erofs")
    bad.write_bytes(b"no image" * 4096)
    layer = LayerFile("b" * 32, "sha256:" + "b" * 64, str(bad))
    with pytest.raises(LayerDamaged):
        await backend.create(Conformance.request_for(RootfsPlan((layer,))))
    bad.unlink()
    assert not backend.parts.instances
    instance = await backend.create(request())
    await instance.destroy()


async def test_environment_too_large_leaves_nothing(backend):
    with pytest.raises(InvalidRequest):
        await backend.create(request(env={"X": "x" * 64_000}))
    assert not backend.parts.instances


async def test_full_host_disk_refuses_creates(backend, monkeypatch):
    monkeypatch.setattr("skerry.backends.container.uppers.free_bytes", lambda _path: 1 << 20)
    backend._room._looked = 0.0
    with pytest.raises(Overloaded) as refused:
        await backend.create(request())
    assert refused.value.fields["limit"] == "disk_free"


async def test_layers_are_mounted_once_and_unmounted_when_unused(backend):
    instances = await asyncio.gather(*(backend.create(request()) for _ in range(4)))
    root = Path(backend.parts.launcher_root())
    assert len(os.listdir(root / "layers")) == 1
    await asyncio.gather(*(instance.destroy() for instance in instances))
    await backend.parts.layers.unmount_unused(0.0)
    assert os.listdir(root / "layers") == []


async def test_launcher_holds_no_more_descriptors_after_many_lives(backend):
    async def lives(count):
        for _ in range(count):
            await (await backend.create(request())).destroy()

    fds = f"/proc/{backend.parts.process.pid}/fd"
    await lives(20)
    while backend.parts.slots.idle < backend.parts.slots.target:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    before, ours = len(os.listdir(fds)), len(os.listdir("/proc/self/fd"))
    await lives(60)
    assert len(os.listdir(fds)) <= before + 2 * 8
    assert len(os.listdir("/proc/self/fd")) <= ours


async def test_census_sees_what_is_really_left(places, census):
    backend = await places.backend()
    instance = await backend.create(request())
    launcher = backend.parts.process.pid
    lines = "\n".join(census.left(settle_s=0.0))
    await instance.destroy()
    await backend.close(keep_instances=False)
    assert f"process {launcher} " in lines
    assert f"process {instance.facts.pid} " in lines
    for word in (
        "cgroup directory",
        "loop device",
        "network namespace",
        "memory file",
        "overlay on /",
    ):
        assert word in lines, word
    assert f"{places.run}/spawn.sock" in lines
    assert f"{places.state}/uppers.btrfs" in lines


async def test_plain_directory_works_without_limits_and_leaves_no_trash(places, monkeypatch):
    monkeypatch.setattr("skerry.backends.container.uppers._image_needs", lambda _text: "a test")
    backend = await places.backend()
    try:
        assert not backend.capabilities.disk_limit
        assert not backend.capabilities.snapshot
        with pytest.raises(InvalidRequest, match="disk"):
            await backend.create(request(disk_bytes=32 << 20))
        instance = await backend.create(request())
        deep = "d=/root; for i in $(seq 300); do d=$d/x; done; mkdir -p $d; echo text > /root/file"
        await said(instance, deep)
        async with instance.snapshot() as upper:
            assert Path(upper.path, "root/file").read_text() == "text\n"
        await instance.destroy()
    finally:
        await backend.close(keep_instances=False)


@pytest.fixture
def btrfs(census, tmp_path):
    """A mounted btrfs of its own."""
    census.watch(own=(str(tmp_path),))
    image, mount = tmp_path / "disk", tmp_path / "m"
    mount.mkdir()
    with image.open("wb") as disk:
        disk.truncate(2 << 30)
    subprocess.run(["mkfs.btrfs", "-q", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, mount], check=True)
    yield mount
    subprocess.run(["umount", mount], check=True)
    image.unlink()


async def test_state_on_btrfs_uses_it_as_it_is(btrfs):
    places = Places()
    os.rmdir(places.state)
    places.state = str(btrfs / "state")
    backend = await places.backend()
    assert backend.capabilities.snapshot
    instance = await backend.create(request())
    await said(instance, "echo text > /root/file")
    async with instance.snapshot() as upper:
        assert Path(upper.path, "root/file").read_text() == "text\n"
    await instance.destroy()
    await backend.close(keep_instances=False)
    assert not [*os.listdir(places.run), *os.listdir(places.state)]
    os.rmdir(places.run)
