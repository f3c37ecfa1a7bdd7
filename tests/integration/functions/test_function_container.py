"""Function containers for real: cells that are made, limited, counted, renewed; nothing is left."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import tarfile
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from container_places import places_for
from skerry.backends.api import CellLimits
from skerry.errors import Bug, NotFound, Unavailable
from skerry.guest.api import Operation, Rlimits, Stream
from skerry.guest.files import GuestFiles
from skerry.guest.output import MemorySink
from skerry.testing import rootfs as rootfs_module
from skerry.testing.conformance import Box, Conformance
from skerry.testing.rootfs import container_reason

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(container_reason()), reason=container_reason()),
]

MIB = 1 << 20
CELLS = 3
LIMITS = CellLimits(64 * MIB, 32)
DISK = 8 * MIB
BLOCK = "$x = 'x' x ({} << 20); substr($x, $_ << 12, 1) = 'y' for 0 .. ({} << 8) - 1; print 'ok'"


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
    return Conformance.request_for(
        rootfs_module.plan(), **{"cells": CELLS, "memory_bytes": 1 << 30, **values}
    )


class FunctionBox(Box):
    """A function container with a client."""

    async def open(self, cell: int, limits: CellLimits = LIMITS, *, disk: int = DISK) -> None:
        """Makes a cell afresh and sets its limits."""
        async with asyncio.timeout(self.patience_s):
            await self.client.cells.renew(cell, disk_bytes=disk, inodes=512)
        assert self.instance.open_cell(cell, limits)

    async def drop(self, cell: int) -> None:
        """Ends what is in a cell."""
        async with asyncio.timeout(self.patience_s):
            await self.client.cells.drop(cell)

    def files_of(self, cell: int) -> GuestFiles:
        """The files of a cell."""

        def new_operation() -> tuple[int, bytes]:
            self._handle += 1
            return self._handle, os.urandom(16)

        return GuestFiles(self.client, new_operation, cwd=b"/call", cell=cell)

    async def result_of(self, cell: int, line: str) -> bytes:
        """What a shell line writes to descriptor 4."""
        self._handle += 1
        argv = (b"/bin/sh", b"-c", line.encode())
        made = Operation(handle=self._handle, op_id=os.urandom(16), argv=argv, cell=cell)
        result = MemorySink(MIB)
        running = self.client.start(made, MemorySink(MIB), result=result)
        async with asyncio.timeout(self.patience_s):
            outcome = await running.wait()
        assert outcome.result_total == result.total(Stream.STDOUT)
        return result.output(Stream.STDOUT)


@asynccontextmanager
async def boxed(backend, **values):
    box = FunctionBox(await backend.create(request(**values)))
    try:
        await box.connect()
        yield box
    finally:
        await box.disconnect()
        await box.instance.destroy()


@pytest.fixture
async def box(backend):
    async with boxed(backend) as box:
        yield box


async def test_program_in_a_cell_is_an_ordinary_user_in_a_place_of_its_own(box):
    await box.open(0)
    said = await box.sh('id -u; pwd; echo "$HOME"; ls -A /call; echo $$', cell=0)
    assert said.text.splitlines()[:3] == ["1000", "/call", "/call"]
    assert (await box.sh("echo x > /x", cell=0)).outcome.exit_code != 0
    assert (await box.sh("grep CapEff /proc/self/status", cell=0)).text.split()[1] == "0" * 16
    ended = await box.run("cat", stdin=b"in", cell=0)
    assert (ended.stdout, ended.outcome.exit_code) == (b"in", 0)
    assert await box.result_of(0, "printf 49 >&4") == b"49"


async def test_cells_do_not_see_each_other_and_a_renewed_one_is_empty(box):
    for cell in (0, 1):
        await box.open(cell)
    line = "echo secret > /call/a; echo s > /tmp/b; echo s > /dev/shm/c; sleep 600 & echo"
    await box.sh(line, cell=0)
    look = "ls -A /call /tmp /dev/shm /run /var/tmp | grep -v :; cat /proc/[0-9]*/comm"
    before = (await box.sh(look, cell=1)).text
    assert "sleep" not in before
    assert not {"a", "b", "c"} & set(before.split())
    await box.open(0)
    assert (await box.sh(look, cell=0)).text == before


async def test_renewal_ends_what_runs_and_a_dropped_cell_takes_nothing(box):
    await box.open(0)
    line = "trap '' TERM; setsid sleep 600 & sleep 600"
    running = asyncio.create_task(box.sh(line, cell=0, timeout_ms=0))
    await box.until(lambda: two_sleep(box), "two sleeps in the cell")
    await box.drop(0)
    async with asyncio.timeout(box.patience_s):
        assert (await running).outcome.signal == signal.SIGKILL
    with pytest.raises(Unavailable, match="nothing was started"):
        await box.sh("true", cell=0)
    await box.open(0)
    assert (await box.sh("true", cell=0)).outcome.exit_code == 0


async def two_sleep(box) -> bool:
    return _pids(box, "sleep") == 2


def _pids(box, name: str) -> int:
    """Processes of a container by name, seen from the host."""
    work = Path(box.instance.slot.groups.work)
    found = 0
    for file in work.glob("**/cgroup.procs"):
        for pid in file.read_text().split():
            try:
                found += Path(f"/proc/{pid}/comm").read_text().strip() == name
            except OSError:
                continue
    return found


async def test_memory_limit_of_a_call_is_named_by_its_cells_counters(box):
    await box.open(0)
    ended = await box.run("perl", "-e", BLOCK.format(128, 128), cell=0)
    assert ended.outcome.signal == signal.SIGKILL
    used = box.instance.cell_usage(0)
    assert used.oom_kills >= 1
    assert 56 * MIB <= used.memory_peak_bytes <= 64 * MIB
    await box.open(0, CellLimits(512 * MIB, 32))
    ended = await box.run("perl", "-e", BLOCK.format(128, 128), cell=0)
    assert (ended.text, box.instance.cell_usage(0).oom_kills) == ("ok", 0)
    assert box.instance.cell_usage(0).memory_peak_bytes >= 128 * MIB
    await box.open(0)
    assert box.instance.cell_residue(0) < 8 * MIB


async def test_files_of_a_cell_are_charged_to_it_and_bounded(box):
    await box.open(0)
    fill = "head -c 6M /dev/zero > /call/a; wc -c < /call/a; head -c 6M /dev/zero > /tmp/b"
    ended = await box.sh(fill, cell=0)
    assert ended.text == str(6 * MIB)
    assert b"No space" in ended.stderr
    assert 6 * MIB <= ended.outcome.disk_used <= DISK
    assert box.instance.cell_usage(0).memory_bytes >= 6 * MIB
    await box.open(0)
    assert box.instance.cell_usage(0).memory_bytes < MIB
    assert (await box.sh("true", cell=0)).outcome.disk_used < MIB


async def test_fork_bomb_is_refused_counted_and_ended(box):
    await box.open(0)
    bomb = "fork() // last while 1; sleep 600"
    running = asyncio.create_task(box.run("perl", "-e", bomb, cell=0))
    await box.until(lambda: refused(box), "a fork was refused")
    await box.open(1)
    assert (await box.sh("echo others live", cell=1)).text == "others live"
    await box.drop(0)
    async with asyncio.timeout(box.patience_s):
        assert (await running).outcome.signal == signal.SIGKILL
    assert _pids(box, "perl") == 0
    await box.open(0)
    assert box.instance.cell_usage(0).pids_refused == 0
    assert (await box.sh("echo again", cell=0)).text == "again"


async def refused(box) -> bool:
    return box.instance.cell_usage(0).pids_refused > 0


async def test_processor_time_is_limited_over_all_processes(box):
    await box.open(0)
    spin = "perl -e '1 while 1' & perl -e '1 while 1'"
    ended = await box.sh(spin, cell=0, cpu_ms=400)
    assert ended.outcome.cpu_limit
    assert ended.outcome.signal == signal.SIGKILL
    assert ended.outcome.cpu_us >= 400_000
    assert box.instance.cell_usage(0).cpu_us >= 400_000
    ended = await box.sh("true", cell=0, cpu_ms=400)
    assert (ended.outcome.cpu_limit, ended.outcome.exit_code) == (False, 0)


async def test_resource_limits_are_those_of_the_operation(box):
    await box.open(0)
    limits = Rlimits(fsize=MIB, nofile=17, stack=2 * MIB)
    ended = await box.sh("ulimit -n; ulimit -s; ulimit -c; ulimit -f", cell=0, rlimits=limits)
    assert ended.text.split() == ["17", "2048", "0", str(MIB // 512)]
    ended = await box.sh("exec head -c 2M /dev/zero > /call/a", cell=0, rlimits=limits)
    assert ended.outcome.signal == signal.SIGXFSZ


async def test_trees_go_into_a_cell_and_come_back(box):
    await box.open(0)
    content = bytes(range(256)) * 1024
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        info = tarfile.TarInfo("in/data")
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))

    async def pieces():
        yield packed.getvalue()

    files = box.files_of(0)
    await files.tree_put("/call", pieces())
    ended = await box.sh("cp in/data out && stat -c %u in/data", cell=0)
    assert (ended.text, ended.outcome.exit_code) == ("1000", 0)
    tar = b"".join([piece async for piece in files.tree_get("/call")])
    with tarfile.open(fileobj=io.BytesIO(tar)) as unpacked:
        assert unpacked.extractfile("out").read() == content
    await box.open(1)
    with pytest.raises(NotFound):
        await box.files_of(1).stat("/call/out")


async def test_cells_work_side_by_side(box):
    for cell in range(CELLS):
        await box.open(cell)

    async def calls(cell: int) -> None:
        for number in range(5):
            said = await box.sh(f"echo {cell}-{number} > f; cat f", cell=cell)
            assert said.text == f"{cell}-{number}"
            await box.open(cell)

    await asyncio.gather(*(calls(cell) for cell in range(CELLS)))


async def test_cell_beyond_what_there_is_is_refused(box):
    with pytest.raises(Bug):
        async with asyncio.timeout(box.patience_s):
            await box.client.cells.renew(CELLS, disk_bytes=DISK, inodes=512)
    await box.open(0)


async def test_cells_stay_over_connections(box):
    await box.open(0)
    await box.sh("echo kept > f", cell=0)
    await box.connect()
    assert (await box.sh("cat f", cell=0)).text == "kept"
    await box.open(0)
    assert (await box.sh("ls", cell=0)).text == ""


async def test_slot_goes_with_its_container_and_no_sandbox_gets_it(backend):
    async with boxed(backend) as box:
        await box.open(0)
        slot = box.instance.slot
        groups = slot.groups
    assert not any(os.path.exists(path) for path in (groups.work, *groups.cell_tasks))
    sandbox = await backend.create(request(cells=0))
    assert sandbox.slot is not slot
    assert sandbox.slot.reusable
    await sandbox.destroy()
    backend.parts.slots.check_invariants()


async def test_cells_outlive_a_killed_launcher(backend):
    async with boxed(backend) as box:
        await box.open(0)
        os.kill(backend.parts.process.pid, signal.SIGKILL)
        assert (await box.sh("echo here", cell=0)).text == "here"
        await backend.parts.ready()
        await box.open(0)
        assert (await box.sh("echo still", cell=0)).text == "still"


async def test_what_a_killed_node_left_is_swept_with_its_cells(places):
    first = await places.backend()
    instance = await first.create(request())
    box = FunctionBox(instance)
    await box.connect()
    await box.open(1)
    running = asyncio.create_task(box.sh("sleep 600", cell=1))
    await box.until(lambda: sleeping(box), "a program in the cell")
    await box.disconnect()
    await asyncio.gather(running, return_exceptions=True)
    await first.close(keep_instances=True)
    second = await places.backend()
    swept = await second.sweep()
    assert any(instance.id in line for line in swept)
    assert not second.parts.slots.stuck
    await second.close(keep_instances=False)
    assert not places.groups()


async def sleeping(box) -> bool:
    return _pids(box, "sleep") == 1
