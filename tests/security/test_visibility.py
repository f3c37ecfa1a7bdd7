"""What can be seen from inside: nothing of the host, of other sandboxes, of the agent."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest

from waiting import until

pytestmark = pytest.mark.root


def host_pid_of(marker):
    """The host's number of the process with that word in its command line."""
    for name in os.listdir("/proc"):
        if name.isdigit() and name != str(os.getpid()):
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if marker.encode() in words:
                return int(name)
    return 0


async def host_pid(marker):
    """The same, once it is there: a command in the background may not have begun yet."""
    await until(lambda: bool(host_pid_of(marker)))
    return host_pid_of(marker)


async def test_no_host_path_or_name_shows(box, live_node):
    line = """cat /proc/self/mountinfo /proc/mounts /proc/self/cgroup /proc/1/cgroup /proc/1/cmdline
        cat /proc/1/comm /proc/1/status /proc/self/environ /proc/net/unix /proc/swaps /etc/mtab
        cat /proc/1/mountinfo /proc/self/maps /proc/1/limits /proc/1/sched; ls -l /proc/self/fd /"""
    text = (await box.sh(line)).text
    assert len(text) > 2000
    instance = box.sandbox.id
    words = ["/var/tmp", "/run/skerry", "skerry-state", live_node.state, live_node.run, instance]
    words += [
        "uppers",
        "/upper/",
        "/layers",
        "slot",
        "spawn",
        "erofs",
        "btrfs",
        "/dev/loop",
        "sha256",
    ]
    assert not [word for word in words if word in text]


async def test_control_on_the_host_the_names_are_there(box, live_node):
    await box.sh("setsid sleep 31415.9 >/dev/null 2>&1 &")
    pid = await host_pid("31415.9")
    assert re.search(r"/skerry-\w+/", Path(f"/proc/{pid}/cgroup").read_text())
    assert f"{live_node.run}/container/i/{box.sandbox.id}" in Path("/proc/net/unix").read_text()


async def test_the_agents_socket_cannot_be_reached(box):
    assert (await box.sh("tail -n +2 /proc/net/unix | wc -l")).text.strip() == "0"
    found = await box.sh("find / -xdev -type s; find /dev /run /tmp -type s")
    assert found.stdout == b""


async def test_control_in_the_hosts_network_sockets_show_and_are_connected_to(weak, weak_nodes):
    async with weak("network,masks") as box:
        text = (await box.sh("cat /proc/net/unix")).text
        assert f"{weak_nodes('network,masks').run}/container/i/{box.sandbox.id}" in text


async def test_descriptors_of_commands_are_the_three_streams(box):
    listed = (await box.sh("exec /usr/bin/ls -l /proc/self/fd")).text
    numbers = re.findall(r" (\d+) -> (\S+)", listed)
    assert [number for number, _ in numbers] == ["0", "1", "2", "3"]  # 3: of ls itself
    assert numbers[0][1] == "/dev/null"
    assert all(target.startswith("pipe:") for _, target in numbers[1:3])


async def test_other_sandboxes_processes_and_files_do_not_exist(box, node_client, armed):
    async with armed(node_client) as other:
        await other.sh("echo secret > /root/secret; setsid sleep 27182.8 >/dev/null 2>&1 &")
        await host_pid("27182.8")
        seen = await box.sh("cat /proc/[0-9]*/cmdline; find / -xdev -name secret")
        assert b"27182.8" not in seen.stdout
        assert b"/root/secret" not in seen.stdout
        # By the host's number of a process, from every place that takes one.
        pid = host_pid_of("27182.8")
        assert not (await box.sh(f"kill -0 {pid} || ls /proc/{pid}/root")).ok


async def test_abstract_sockets_do_not_join_sandboxes(box, node_client, armed):
    async with armed(node_client) as other:
        await listener(other, "skerry-meet")
        assert await box.attack("abstract", "skerry-meet") == {"abstract": "ECONNREFUSED"}
        assert await other.attack("abstract", "skerry-meet") == {"abstract": "ok"}


async def test_control_abstract_sockets_join_sandboxes_in_one_network(weak):
    async with weak("network,masks") as one, weak("network,masks") as other:
        await listener(other, "skerry-control")
        assert await one.attack("abstract", "skerry-control") == {"abstract": "ok"}


async def listener(box, name):
    line = f"""setsid attacks listen {name} > /tmp/said 2>&1 &
        until grep -q listening /tmp/said; do :; done"""
    assert (await box.sh(line, timeout=10)).ok


async def test_users_inside_are_others_on_the_host_and_differ_between_sandboxes(node_client):
    ranges = []
    async with (
        await node_client.sandboxes.create() as one,
        await node_client.sandboxes.create() as other,
    ):
        for sandbox in (one, other):
            await sandbox.run("setsid sleep 16180.3 >/dev/null 2>&1 &")
            pid = await host_pid("16180.3")
            status = Path(f"/proc/{pid}/status").read_text()
            ids = re.search(r"Uid:\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)", status).groups()
            assert len(set(ids)) == 1
            ranges.append(int(ids[0]))
            await sandbox.run("kill -9 -1")
            inside = (await sandbox.run("cat /proc/self/uid_map /proc/self/gid_map")).text.split()
            assert inside == ["0", ids[0], "65536"] * 2
    assert min(ranges) >= 1 << 16
    assert abs(ranges[0] - ranges[1]) >= 65_536


def files_of(live_node, sandbox_id):
    """The sandbox's files as the host sees them, through the launcher's mount namespace."""
    return Path(f"/proc/{live_node.launcher()}/root/upper/{sandbox_id}/u")


async def test_a_setuid_file_of_a_sandbox_is_nobodys_on_the_host(box, live_node):
    await box.sh("install -o 0 -g 0 -m 6755 /usr/bin/id /root/rootme")
    path = files_of(live_node, box.sandbox.id) / "root/rootme"
    found = path.stat()
    assert found.st_mode & 0o6000 == 0o6000
    assert found.st_uid >= 1 << 16
    assert found.st_gid >= 1 << 16
    # Nor can anybody but host root get at it: above it everything is closed.
    with pytest.raises(PermissionError):
        await asyncio.create_subprocess_exec(str(path), user=65534, group=65534, extra_groups=[])


async def test_control_of_a_sandbox_run_as_host_root_it_is_host_roots(weak, weak_nodes):
    async with weak("identity,filter,masks") as box:
        await box.sh("install -m 6755 /usr/bin/id /root/rootme")
        path = files_of(weak_nodes("identity,filter,masks"), box.sandbox.id) / "root/rootme"
        assert path.stat().st_uid == 0


async def test_dumps_of_crashes_stay_away(box):
    before = set(os.listdir("/"))
    done = await box.sh("ulimit -c unlimited; cd /tmp && exec attacks crash")
    assert done.signal == 6
    assert (
        await box.sh("find / -xdev -name 'core*' -size +8k -newer /usr/local/bin/victim")
    ).text == ""
    assert set(os.listdir("/")) == before


async def test_control_without_that_limit_a_dump_is_written(weak):
    async with weak("filter,core,beneath") as box:
        done = await box.sh("ulimit -c unlimited; cd /tmp && attacks crash; ls -1 /tmp")
        pattern = Path("/proc/sys/kernel/core_pattern").read_text()
        if pattern.startswith(("|", "/")):
            pytest.skip(f"this host writes dumps elsewhere: {pattern}")
        assert "core" in done.text


async def test_a_chroot_inside_opens_no_way_out(box, live_node):
    """The attack itself works: it leaves the inner chroot. Where it ends is the sandbox's own root."""
    await box.sh("echo inside > /root/mark; mkdir -p /etc/only-inside")
    done = await box.sandbox.run(["attacks", "chroot"])
    lines = done.text.split()
    assert lines[0] == "inside"
    assert set(lines[1:]) == set((await box.sh("ls -1A /")).text.splitlines())


async def test_links_of_proc_lead_nowhere_else(box):
    line = """for p in /proc/[0-9]*; do for n in root cwd exe fd/0 ns/mnt; do
        [ -e $p/$n ] && echo "$p/$n $(readlink $p/$n)"; done; done
        ls /proc/self/root/ /proc/self/cwd/ /proc/thread-self/root/"""
    text = (await box.sh(line)).text
    assert "/proc/1/" not in text
    inside = (await box.sh("ls -1A /")).text.split()
    assert set(inside) <= set(text.split())
    assert (await box.sh("cat /proc/self/exe | head -c 4")).stdout == b"\x7fELF"
    # The running agent's own image cannot be opened, let alone written.
    assert not (await box.sh("exec 3<>/proc/1/exe")).ok
