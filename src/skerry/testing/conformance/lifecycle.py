"""Conformance: from create to nothing, through restarts, pauses and snapshots."""

# ruff: noqa: D102, S101 - tests: their names say it, and asserting is their purpose

from __future__ import annotations

import asyncio
import os
import time

import pytest

from skerry.backends.api import Backend, Pausable, Reclaimable, Snapshotable
from skerry.errors import Conflict, SkerryError
from skerry.guest.api import Stream
from skerry.spec.layers import RootfsPlan
from skerry.testing.conformance.kit import Box, Conformance, Sink, is_whiteout


class LifecycleConformance(Conformance):
    """Create, destroy, recover, pause, snapshot. That nothing is left is the fixture's to check."""

    async def test_probe_is_quick_and_says_usable(self, backend: Backend) -> None:
        begin = time.monotonic()
        health = await backend.probe()
        assert health.usable, health.reason
        assert time.monotonic() - begin < 0.5

    async def test_destroy_twice_is_fine(self, backend: Backend, rootfs: RootfsPlan) -> None:
        instance = await backend.create(self.request_for(rootfs))
        await asyncio.gather(instance.destroy(), instance.destroy())
        await instance.destroy()
        assert (await instance.wait()).signal == 9

    async def test_destroy_ends_a_running_command(
        self, backend: Backend, rootfs: RootfsPlan
    ) -> None:
        box = Box(await backend.create(self.request_for(rootfs)))
        await box.connect()
        running, _ = box.start(("sleep", "1000"), Sink())
        await running.started
        await box.instance.destroy()
        with pytest.raises(SkerryError):
            await running.wait()
        await box.disconnect()

    async def test_destroyed_instance_has_no_channel(
        self, backend: Backend, rootfs: RootfsPlan
    ) -> None:
        box = Box(await backend.create(self.request_for(rootfs)))
        await box.instance.destroy()
        with pytest.raises(SkerryError):
            await box.connect()

    async def test_death_of_the_first_process_is_reported(
        self, backend: Backend, rootfs: RootfsPlan
    ) -> None:
        instance = await backend.create(self.request_for(rootfs))
        waiting = asyncio.ensure_future(instance.wait())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        self.kill_first_process(instance)
        async with asyncio.timeout(self.patience_s):
            assert (await waiting).signal == 9
        await instance.destroy()

    async def test_same_id_twice_is_a_conflict(self, backend: Backend, rootfs: RootfsPlan) -> None:
        request = self.request_for(rootfs)
        results = await asyncio.gather(
            backend.create(request), backend.create(request), return_exceptions=True
        )
        made = [result for result in results if not isinstance(result, BaseException)]
        assert len(made) == 1
        assert sum(isinstance(result, Conflict) for result in results) == 1
        await made[0].destroy()

    async def test_many_creates_at_once(self, backend: Backend, rootfs: RootfsPlan) -> None:
        wanted = [self.request_for(rootfs) for _ in range(40)]
        instances = await asyncio.gather(*(backend.create(request) for request in wanted))
        assert len({instance.record().data["instance"] for instance in instances}) == 40
        await asyncio.gather(*(instance.destroy() for instance in instances))

    async def test_cancelled_create_leaves_nothing(
        self, backend: Backend, rootfs: RootfsPlan
    ) -> None:
        tasks = [asyncio.ensure_future(backend.create(self.request_for(rootfs))) for _ in range(12)]
        await asyncio.sleep(0.004)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if not isinstance(result, BaseException):
                await result.destroy()

    async def test_instance_survives_a_restart_of_the_node(
        self, backend: Backend, rootfs: RootfsPlan
    ) -> None:
        box = Box(await backend.create(self.request_for(rootfs)))
        await box.connect()
        sink = Sink()
        running, operation = box.start(("sh", "-c", "echo a; sleep 1; echo b"), sink)
        await running.started
        record = box.instance.record()
        await box.disconnect()
        await backend.close(keep_instances=True)
        second = await self.restart(backend)
        try:
            found = await second.recover(record)
            assert found is not None
            again = Box(found)
            client = await again.connect()
            offset = len(sink.output[Stream.STDOUT])
            attached = client.attach(operation.handle, operation.op_id, sink, offset, 0)
            async with asyncio.timeout(self.patience_s):
                assert (await attached.wait()).exit_code == 0
            assert bytes(sink.output[Stream.STDOUT]) == b"a\nb\n"
            await again.disconnect()
            await found.destroy()
            assert await second.recover(record) is None
        finally:
            await second.close(keep_instances=False)

    async def test_instance_that_was_paused_when_the_node_ended_goes_on_by_resume(
        self, backend: Backend, rootfs: RootfsPlan
    ) -> None:
        box = Box(await backend.create(self.request_for(rootfs)))
        if not isinstance(box.instance, Pausable):
            pytest.skip("this backend cannot pause")
        await box.connect()
        await box.instance.pause()
        record = box.instance.record()
        await box.disconnect()
        await backend.close(keep_instances=True)
        second = await self.restart(backend)
        try:
            found = await second.recover(record)
            assert found is not None
            again = Box(found)
            assert isinstance(again.instance, Pausable)
            await again.instance.resume()
            await again.connect()
            assert (await again.sh("echo on")).text == "on"
            await again.disconnect()
            await found.destroy()
        finally:
            await second.close(keep_instances=False)

    async def test_record_of_a_dead_instance_recovers_nothing(
        self, backend: Backend, rootfs: RootfsPlan
    ) -> None:
        instance = await backend.create(self.request_for(rootfs))
        record = instance.record()
        await backend.close(keep_instances=True)
        self.kill_first_process(instance)
        second = await self.restart(backend)
        try:
            await asyncio.sleep(0.05)
            assert await second.recover(record) is None
        finally:
            await second.close(keep_instances=False)

    async def test_pause_stops_and_resume_goes_on(self, box: Box) -> None:
        instance = box.instance
        if not isinstance(instance, Pausable):
            pytest.skip("this backend cannot pause")
        sink = Sink()
        line = "while :; do echo x; sleep 0.01; done"
        running, _ = box.start(("sh", "-c", line), sink)
        await running.started
        await instance.pause()
        await instance.pause()
        await asyncio.sleep(0.1)
        count = len(sink.output[Stream.STDOUT])
        await asyncio.sleep(0.3)
        assert len(sink.output[Stream.STDOUT]) == count
        await instance.resume()
        await instance.resume()

        async def more() -> bool:
            return len(sink.output[Stream.STDOUT]) > count

        await box.until(more, "it goes on")
        running.cancel()
        await running.wait()

    async def test_instance_that_gave_memory_back_goes_on(self, box: Box) -> None:
        instance = box.instance
        if not isinstance(instance, Reclaimable):
            pytest.skip("this backend cannot give memory back")
        sink = Sink()
        running, _ = box.start(("cat",), sink, stdin=True)
        await running.started
        before = (await instance.usage()).memory_bytes
        for _ in range(2):
            given = await instance.reclaim(1 << 40)
            assert 0 <= given.bytes <= before
        await running.write_stdin(b"here\n")
        await running.close_stdin()
        assert (await running.wait()).exit_code == 0
        assert bytes(sink.output[Stream.STDOUT]) == b"here\n"
        assert (await box.run("echo", "alive")).stdout == b"alive\n"

    async def test_paused_instance_can_be_destroyed(
        self, backend: Backend, rootfs: RootfsPlan
    ) -> None:
        instance = await backend.create(self.request_for(rootfs))
        if isinstance(instance, Pausable):
            await instance.pause()
        async with asyncio.timeout(self.patience_s):
            await instance.destroy()
        # What comes after it, perhaps out of the same pool, is not paused.
        async with self.boxed(backend, rootfs) as box:
            assert (await box.run("echo", "alive", timeout_ms=20_000)).stdout == b"alive\n"

    async def test_snapshot_is_consistent_and_shows_what_was_written(self, box: Box) -> None:
        instance = box.instance
        if not isinstance(instance, Snapshotable):
            pytest.skip("this backend has no snapshots")
        await box.sh("echo one > /root/new; rm /etc/hostname; chown 1000:1000 /root/new")
        async with instance.snapshot() as upper:
            await box.sh("echo two > /root/new")
            with open(f"{upper.path}/root/new") as file:  # noqa: ASYNC230
                assert file.read() == "one\n"
            assert os.stat(f"{upper.path}/root/new").st_uid == upper.uid_base + 1000
            assert is_whiteout(f"{upper.path}/etc/hostname")
            assert os.path.isdir(f"{upper.lowers[0]}/usr")
            assert 0 <= upper.frozen_seconds < 5
        assert not os.path.exists(upper.path)
        assert (await box.sh("cat /root/new")).text == "two"

    async def test_snapshot_loses_no_acknowledged_write(self, box: Box) -> None:
        instance = box.instance
        if not isinstance(instance, Snapshotable):
            pytest.skip("this backend has no snapshots")
        step = "echo $i > /root/n.tmp; mv /root/n.tmp /root/n; echo $i"
        line = f"i=0; while :; do i=$((i+1)); {step}; done"
        sink = Sink()
        running, _ = box.start(("sh", "-c", line), sink)
        await running.started
        await asyncio.sleep(0.3)
        told = int(bytes(sink.output[Stream.STDOUT]).split()[-1])
        async with instance.snapshot() as upper:
            with open(f"{upper.path}/root/n") as file:  # noqa: ASYNC230
                assert int(file.read()) >= told
        running.cancel()
        await running.wait()
