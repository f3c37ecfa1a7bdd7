"""Conformance: limits hold, and what they stop is told apart from other failures."""

# ruff: noqa: D102, S101 - tests: their names say it, and asserting is their purpose

from __future__ import annotations

import math
import os

import pytest

from skerry.backends.api import Backend
from skerry.spec.layers import RootfsPlan
from skerry.testing.conformance.kit import Box, Conformance

MIB = 1 << 20


class LimitConformance(Conformance):
    """Memory, processes, disk, descriptors, cores."""

    async def test_memory_limit_kills_and_is_flagged(
        self, backend: Backend, rootfs: RootfsPlan
    ) -> None:
        async with self.boxed(backend, rootfs, memory_bytes=48 * MIB) as box:
            outcome = (await box.run("tail", "/dev/zero", timeout_ms=20_000)).outcome
            assert outcome.oom
            assert outcome.signal == 9
            assert not outcome.timed_out
            after = await box.run("echo", "alive")
            assert (after.stdout, after.outcome.oom) == (b"alive\n", False)
            assert (await box.instance.usage()).oom_kills >= 1

    async def test_reused_slots_do_not_inherit_counts(
        self, backend: Backend, rootfs: RootfsPlan
    ) -> None:
        for _ in range(3):
            async with self.boxed(backend, rootfs, memory_bytes=48 * MIB) as box:
                used = await box.instance.usage()
                assert used.oom_kills == 0
                assert used.memory_peak_bytes < 40 * MIB
                assert not (await box.run("true")).outcome.oom
                await box.run("tail", "/dev/zero", timeout_ms=20_000)

    async def test_limits_follow_each_request(self, backend: Backend, rootfs: RootfsPlan) -> None:
        for size in (48 * MIB, 256 * MIB, 64 * MIB):
            async with self.boxed(backend, rootfs, memory_bytes=size) as box:
                line = f"head -c {size * 3 // 4} /dev/zero | tail | wc -c"
                assert (await box.sh(line)).text == str(size * 3 // 4)
                line = f"head -c {size * 5 // 4} /dev/zero | tail | wc -c"
                assert (await box.sh(line)).outcome.oom

    async def test_process_limit_holds_and_the_agent_lives(
        self, backend: Backend, rootfs: RootfsPlan
    ) -> None:
        async with self.boxed(backend, rootfs, pids=16) as box:
            line = "for i in $(seq 64); do sleep 1000 & done; wait"
            await box.sh(line, timeout_ms=3_000)
            assert (await box.run("true")).outcome.exit_code == 0

    async def test_descriptor_limit_is_the_one_asked_for(
        self, backend: Backend, rootfs: RootfsPlan
    ) -> None:
        async with self.boxed(backend, rootfs, nofile=333) as box:
            assert (await box.sh("ulimit -n; ulimit -Hn")).text == "333\n333"

    async def test_disk_limit_stops_writing(self, backend: Backend, rootfs: RootfsPlan) -> None:
        if not backend.capabilities.disk_limit:
            pytest.skip("this backend cannot limit disk space here")
        async with self.boxed(backend, rootfs, disk_bytes=32 * MIB) as box:
            result = await box.sh("head -c 100000000 /dev/urandom > /root/big; sync; echo $?")
            assert b"space" in result.stderr or b"quota" in result.stderr.lower(), result
            size = int((await box.sh("stat -c %s /root/big")).text)
            assert 16 * MIB < size <= 34 * MIB

    async def test_shared_memory_is_bounded(self, backend: Backend, rootfs: RootfsPlan) -> None:
        async with self.boxed(backend, rootfs, shm_bytes=8 * MIB) as box:
            result = await box.sh("head -c 20000000 /dev/zero > /dev/shm/big")
            assert result.outcome.exit_code != 0
            assert b"space" in result.stderr

    async def test_visible_cores_follow_the_request(
        self, backend: Backend, rootfs: RootfsPlan
    ) -> None:
        host = len(os.sched_getaffinity(0))
        for cpu in (0.5, 1.0, 64.0):
            async with self.boxed(backend, rootfs, cpu=cpu) as box:
                assert (await box.run("nproc")).text == str(min(host, math.ceil(cpu)))

    async def test_cpu_quota_slows_down(self, backend: Backend, rootfs: RootfsPlan) -> None:
        async with self.boxed(backend, rootfs, cpu=0.2) as box:
            outcome = (await box.sh("while :; do :; done", timeout_ms=2_000)).outcome
            assert outcome.timed_out
            assert outcome.cpu_us < 1_000_000

    async def test_usage_grows_with_use(self, box: Box) -> None:
        before = await box.instance.usage()
        await box.sh("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
        after = await box.instance.usage()
        assert after.cpu_seconds > before.cpu_seconds
        assert after.memory_peak_bytes > 0
        assert after.pids == 0
