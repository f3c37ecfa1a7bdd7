"""A sandbox tries to lift its CPU class, weight and limits from inside; then where it can."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.root

# Each line: a name, then "ok" or the error. Written to be run as root and as nobody.
ATTACK = r"""
import ctypes, errno, os, resource, sys
libc = ctypes.CDLL(None, use_errno=True)

def call(name, *args):
    if libc[name](*args) < 0:
        raise OSError(ctypes.get_errno(), name)

def policy(number, priority=0):
    param = ctypes.c_int(priority)
    if libc.syscall(144, 0, number, ctypes.byref(param)) < 0:  # sched_setscheduler
        raise OSError(ctypes.get_errno(), "policy")

def group(controller, file, value):
    place = f"/tmp/{controller}"
    os.makedirs(place, exist_ok=True)
    call("mount", b"none", place.encode(), b"cgroup", 0, controller.encode())
    try:
        own = [l.split(":") for l in open("/proc/self/cgroup").read().splitlines()]
        path = [p for _, names, p in own if controller in names.split(",")][0]
        with open(f"{place}{path}/{file}", "w") as handle:
            handle.write(value)
    finally:
        call("umount2", place.encode(), 2)

tries = {
    "normal": lambda: policy(0),
    "batch": lambda: policy(3),
    "realtime": lambda: policy(1, 1),
    "nice": lambda: os.setpriority(os.PRIO_PROCESS, 0, -5),
    "nice_limit": lambda: resource.setrlimit(resource.RLIMIT_NICE, (40, 40)),
    "group_cpu": lambda: group("cpu", "cpu.cfs_quota_us", "-1"),
    "group_shares": lambda: group("cpu", "cpu.shares", "200000"),
    "group_memory": lambda: group("memory", "memory.limit_in_bytes", "-1"),
    "group_leave": lambda: group("cpu", "../tasks", "0"),
    "cgroupfs": lambda: open("/sys/fs/cgroup/cpu/tasks", "w").write("0"),
}
for name, attempt in tries.items():
    try:
        attempt()
        print(name, "ok")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
    except ValueError as error:  # how Python tells of a limit that may not be raised
        print(name, "EPERM")
"""


async def attempts(sandbox, **fields):
    done = await sandbox.run(["python3", "-c", ATTACK], cwd="/tmp", **fields)
    assert done.ok, done.stderr
    return dict(line.split() for line in done.text.splitlines())


@pytest.mark.parametrize("user", ["root", "nobody"])
@pytest.mark.parametrize("cpu_class", ["best-effort", "latency-sensitive"])
async def test_class_weight_and_limits_cannot_be_lifted(node_client, user, cpu_class):
    async with await node_client.sandboxes.create(cpu_class=cpu_class) as sandbox:
        seen = await attempts(sandbox, user=user)
        if cpu_class == "latency-sensitive":
            assert seen.pop("normal") == seen.pop("batch") == "ok"  # it is that already
        assert set(seen.values()) <= {"EPERM", "EACCES", "ENOENT", "EROFS"}, seen
        assert len(seen) >= 8


async def test_control_with_privilege_it_leaves_its_class_and_lifts_its_limits(weak):
    async with weak("identity,filter,masks", cpu_class="best-effort") as box:
        seen = await attempts(box.sandbox)
    worked = {name for name, result in seen.items() if result == "ok"}
    assert {"normal", "batch", "nice", "group_cpu", "group_shares"} <= worked
