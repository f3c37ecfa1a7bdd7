"""Conformance: the basics of isolation. Escapes are tried in tests/security, with positive controls."""

# ruff: noqa: D102, S101 - tests: their names say it, and asserting is their purpose

from __future__ import annotations

import pytest

from skerry.backends.api import Backend
from skerry.spec.layers import RootfsPlan
from skerry.testing.conformance.kit import Box, Conformance

REFUSED = {
    "mount": "mkdir -p /root/m && mount -t tmpfs none /root/m",
    "umount": "umount /proc/keys || umount /dev/mqueue",
    "bind": "mkdir -p /root/m && mount --bind / /root/m",
    "unshare_mount": "unshare -m true",
    "unshare_user": "unshare -U true",
    "unshare_net": "unshare -n true",
    "mknod_device": "mknod /root/disk b 254 0",
    "mknod_whiteout": "mknod /root/whiteout c 0 0",
    "hostname": "hostname changed || sethostname changed",
    "sysctl": "echo 1 > /proc/sys/vm/drop_caches",
    "core_pattern": "echo x > /proc/sys/kernel/core_pattern",
    "signal_agent": "kill -9 1",
    "trace_agent": "cat /proc/1/environ",
    "agent_memory": "head -c 1 /proc/1/mem",
    "agent_descriptors": "ls /proc/1/fd/0",
    "agent_root": "ls /proc/1/root/",
    "raw_disk": "head -c 1 /dev/vda || head -c 1 /dev/sda",
    "sysrq": "echo h > /proc/sysrq-trigger",
}


class IsolationConformance(Conformance):
    """What root inside cannot do and cannot see."""

    @pytest.mark.parametrize("what", sorted(REFUSED))
    async def test_root_inside_is_refused(self, box: Box, what: str) -> None:
        result = await box.sh(REFUSED[what])
        assert result.outcome.exit_code not in (0, None), result
        assert (await box.run("true")).outcome.exit_code == 0

    async def test_kernel_secrets_in_proc_are_hidden(self, box: Box) -> None:
        line = "cat /proc/kcore /proc/keys /proc/kallsyms /proc/timer_list 2>/dev/null | wc -c"
        assert (await box.sh(line)).text == "0"

    async def test_only_own_processes_are_seen(self, box: Box) -> None:
        pids = (await box.sh("cd /proc && ls -d [0-9]*")).text.split()
        assert "1" in pids
        assert len(pids) < 10

    async def test_no_host_path_shows(self, box: Box) -> None:
        line = "cat /proc/self/mountinfo /proc/self/cgroup /proc/1/cmdline /proc/1/comm"
        text = (await box.sh(line)).text
        for word in ("/skerry", "/var/", "slot-", "uppers", box_id(box)):
            assert word not in text, word

    async def test_network_is_loopback_only(self, box: Box) -> None:
        names = (await box.sh("cut -d: -f1 /proc/net/dev | tail -n +3")).text.split()
        assert names == ["lo"]
        assert (await box.sh("tail -n +2 /proc/net/route")).text == ""

    async def test_hostname_is_the_one_asked_for(self, box: Box) -> None:
        assert (await box.sh("cat /proc/sys/kernel/hostname")).text == "conformance"

    async def test_root_owns_its_files_but_is_not_host_root(self, box: Box) -> None:
        assert (await box.sh("stat -c %u:%g / /etc /root /tmp")).text.split() == ["0:0"] * 4
        inside, outside, count = (await box.sh("cat /proc/self/uid_map")).text.split()
        assert (inside, count) == ("0", "65536")
        assert int(outside) >= 65536

    async def test_devices_are_only_the_harmless_ones(self, box: Box) -> None:
        listed = (await box.sh("cd /dev && find . -type b -o -type c")).text.split()
        harmless = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts/ptmx"}
        assert {name.removeprefix("./") for name in listed} <= harmless

    async def test_two_instances_do_not_see_each_other(
        self, backend: Backend, rootfs: RootfsPlan
    ) -> None:
        async with self.boxed(backend, rootfs) as one, self.boxed(backend, rootfs) as other:
            places = "/root /tmp /var/tmp /dev/shm /run"
            await one.sh(f"for place in {places}; do echo mine > $place/mine; done")
            await one.sh("setsid sleep 1000 >/dev/null 2>&1 &")
            line = f"for place in {places}; do ls $place/mine; done 2>/dev/null"
            assert len((await one.sh(line)).text.split()) == len(places.split())
            assert (await other.sh(line)).text == ""
            assert await other.running_named("sleep") == 0
            ids = [(await box.sh("cut -c1-40 /proc/self/uid_map")).text for box in (one, other)]
            assert ids[0] != ids[1]

    async def test_setuid_programs_work_inside(self, box: Box) -> None:
        line = "cp $(command -v id) /usr/local/bin/suid && chmod 4755 /usr/local/bin/suid"
        assert (await box.sh(line)).outcome.exit_code == 0
        assert (await box.run("/usr/local/bin/suid", "-u", user=b"1234:1234")).text == "0"


def box_id(box: Box) -> str:
    """The id of a box's instance, as its record tells it."""
    return str(box.instance.record().data.get("instance", "?"))
