"""What root inside asks of the kernel and is refused, and the same where a protection is missing."""

# ruff: noqa: ASYNC110 - what is inside sends no events

from __future__ import annotations

import asyncio

import pytest

from skerry.spec.command import Terminal

pytestmark = pytest.mark.root

# A call that was let in fails later, for what it was asked to do; these say that it was not let in.
REFUSED = {"EPERM", "EACCES", "ENOSYS", "EROFS"}
NOT_THERE = {"ENOENT", "ENODATA"}  # masked: nothing at all, or an empty file


def worked(results, refused=REFUSED):
    return {name for name, result in results.items() if result not in refused}


async def test_system_calls_that_reach_the_host_are_refused(box):
    results = await box.attack("calls")
    assert len(results) > 60
    assert not worked(results)


async def test_they_are_refused_to_a_plain_user_too(box):
    assert not worked(await box.attack("calls", user="nobody"))


async def test_control_without_the_filter_kernel_interfaces_are_reached(weak):
    async with weak("filter,core,beneath") as box:
        let_in = worked(await box.attack("calls"))
    expected = {"keyctl", "add_key", "request_key", "perf", "io_uring_enter", "fanotify"}
    expected |= {"settimeofday", "clock_settime", "clock_adjtime", "int80"}
    assert expected <= let_in
    # The filter is not alone: mounts and privileges are held by the namespaces' owner and by the
    # counters, which say ENOSPC.
    assert not let_in & {"mount", "fsopen", "unshare_mnt", "hostname", "swapon", "bounding"}
    async with weak("filter,core,beneath") as box:
        results = await box.attack("calls")
    assert {results[name] for name in ("unshare_user", "clone_user", "clone3")} == {"ENOSPC"}


async def test_control_without_filter_and_counters_namespaces_are_made(weak):
    async with weak("filter,counters") as box:
        let_in = worked(await box.attack("calls"))
    assert {"unshare_user", "clone_user", "clone3", "user_then_mount"} <= let_in
    assert "clone3_guess" in let_in


async def test_control_as_host_root_nearly_everything_works(weak):
    async with weak("identity,filter,masks") as box:
        calls = worked(await box.attack("calls"))
        files = worked(await box.attack("files"), REFUSED | NOT_THERE)
        network = worked(await box.attack("network"), REFUSED | {"ENETUNREACH"})
        agent = worked(await box.attack("agent"))
    assert {"mount", "bind", "umount_lazy", "pivot", "open_tree", "fsopen", "move_mount"} <= calls
    assert {"unshare_mnt", "unshare_net", "clone_all", "setns_mnt", "setns_pidfd"} <= calls
    assert {"hostname", "syslog", "dmesg", "reboot", "acct", "swapon", "bpf", "bounding"} <= calls
    assert {"mknod_null", "sys_core", "sys_drop", "sys_forward", "sys_hostname"} <= files
    assert {"xattr_trusted", "kallsyms", "keys", "timer_list", "kmsg", "slabinfo"} <= files
    assert {"raw", "packet", "lo_down"} <= network
    assert len(agent) > 35


async def test_first_process_cannot_be_touched(box):
    results = await box.attack("agent")
    assert len(results) > 35
    assert not worked(results)


async def test_devices_sysctls_and_kernel_files_are_out_of_reach(box):
    results = await box.attack("files")
    assert len(results) > 20
    assert not worked(results, REFUSED | NOT_THERE)
    secrets = ("kallsyms", "kcore", "keys", "timer_list", "kpageflags", "kpagecgroup")
    assert {results[name] for name in secrets} <= NOT_THERE


async def test_control_masks_hide_what_would_be_there(weak):
    async with weak("network,masks") as box:
        results = await box.attack("files")
    assert {name for name in ("kallsyms", "keys", "timer_list") if results[name] == "ok"}


async def test_terminal_input_cannot_be_forged(box):
    done = await box.sandbox.run(["attacks", "tiocsti"], terminal=Terminal())
    assert done.text.split() == ["tiocsti", "EPERM"]


async def test_kill_everything_leaves_the_agent_and_the_next_command(box):
    for user in ("root", "nobody"):
        await box.sh("kill -9 -1", user=user, cwd="/")
        assert (await box.sh("echo alive")).stdout == b"alive\n"
    # Another command of the same sandbox dies with it: that is the sandbox's own affair.
    sleeper = "0" * 31 + "1"
    running = asyncio.create_task(box.sandbox.run("sleep 1000", op_id=sleeper))
    while (await box.sandbox.info()).running_commands < 1:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    await box.sh("kill -9 -1")
    assert (await running).signal == 9


async def test_setuid_works_inside_and_bounds_hold_there(box):
    line = "install -m 4755 /usr/local/bin/attacks /usr/local/bin/raised"
    assert (await box.sh(line)).ok
    done = await box.sandbox.run(["/usr/local/bin/raised", "calls"], user="nobody", cwd="/")
    results = dict(line.split(" ", 1) for line in done.text.splitlines())
    assert not worked(results)
