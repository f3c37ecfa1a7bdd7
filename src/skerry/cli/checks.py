"""What Skerry needs of a host, one check each: the fact, its consequence, and what to do."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import sys
from collections.abc import Callable
from typing import Any

from skerry.backends.devices.listed import DevicesConfig
from skerry.backends.shared import proc
from skerry.cli.density_checks import cpu_class_check, swap_check
from skerry.cli.device_checks import devices_check
from skerry.cli.findings import Check
from skerry.cli.network_checks import services_check
from skerry.cli.secrets import cache_home
from skerry.cli.words import size
from skerry.errors import SkerryError
from skerry.network.services import NetworkConfig

NOFILE_WANTED = 65_536  # a sandbox takes a handful of descriptors in the node and the launcher
PID_MAX_WANTED = 262_144
DISK_WANTED = 10 << 30
RUN_WANTED = 64 << 20
MEMORY_WANTED = 1 << 30
EROFS_WANTED = (1, 8, 0)


def host_checks(
    state_dir: str,
    run_dir: str,
    network: NetworkConfig | None = None,
    devices: DevicesConfig | None = None,
) -> list[Check]:
    """Returns all findings about this machine; starts and changes nothing.

    `network` and `devices` are what a node's configuration says of them, where one was given.
    """
    checks: list[Callable[[], Check]] = [
        root_check,
        kernel_check,
        user_namespaces_check,
        cgroup_check,
        cpu_class_check,
        lambda: binary_check("skerry-spawn"),
        lambda: binary_check("skerry-init"),
        lambda: backend_check(state_dir, run_dir),
        erofs_check,
        lambda: program_check("mkfs.btrfs", "btrfs-progs", "disk= is refused or backed by a tmpfs"),
        lambda: program_check("mmdebstrap", "mmdebstrap", "no base can be built from a suite"),
        lambda: program_check("skopeo", "skopeo", "no images from registries, and no pushes"),
        descriptors_check,
        pid_max_check,
        suid_dumpable_check,
        core_pattern_check,
        lambda: disk_check(state_dir),
        lambda: run_check(run_dir),
        memory_check,
        swap_check,
        lambda: services_check(network),
        lambda: devices_check(devices),
    ]
    return [check() for check in checks]


def root_check() -> Check:
    """Containers need root on the node; clients do not."""
    if os.geteuid() == 0:
        return Check("rights", "ok", "root")
    return Check(
        "rights", "missing", f"uid {os.geteuid()}", "no node can run here as this user",
        "run as root; or use a remote node: SKERRY_URL, SKERRY_TOKEN",
    )  # fmt: skip


def kernel_check() -> Check:
    """The file systems that environments are composed with."""
    release = os.uname().release
    known = proc.text("/proc/filesystems").split()
    absent = [name for name in ("erofs", "overlay") if name not in known]
    if absent:
        return Check(
            "kernel", "missing", f"{release} without {', '.join(absent)}",
            "layers cannot be mounted", f"modprobe {' '.join(absent)}, or a kernel that has them",
        )  # fmt: skip
    if "btrfs" not in known:
        return Check(
            "kernel", "warning", f"{release} without btrfs", "disk= has no btrfs pool to use",
            "modprobe btrfs; or a state directory on XFS or ext4 with project quota",
        )  # fmt: skip
    return Check("kernel", "ok", f"{release} with erofs, overlay, btrfs")


def user_namespaces_check() -> Check:
    """Every sandbox has a user namespace."""
    limit = proc.text("/proc/sys/user/max_user_namespaces")
    if not limit.isdecimal():
        return Check(
            "user namespaces", "missing", "not in this kernel", "no sandbox can be isolated",
            "a kernel with CONFIG_USER_NS",
        )  # fmt: skip
    if int(limit) < 1024:
        return Check(
            "user namespaces", "missing" if int(limit) == 0 else "warning", f"at most {limit}",
            "that many sandboxes can live", "sysctl user.max_user_namespaces=65536",
        )  # fmt: skip
    return Check("user namespaces", "ok", f"at most {limit}")


def cgroup_check() -> Check:
    """Limits, and the end of every descendant."""
    from skerry.backends.shared.cgroup import detect

    layout = detect(proc.text("/proc/self/mountinfo"), os.path.exists, proc.text)
    if layout.kind == "none":
        return Check(
            "control groups", "missing", layout.reason, "limits cannot be enforced",
            "mount cgroup2 at /sys/fs/cgroup",
        )  # fmt: skip
    return Check("control groups", "ok", layout.kind)


def binary_check(name: str) -> Check:
    """The native pair."""
    from skerry.backends.shared import binaries

    try:
        return Check(name, "ok", str(binaries.find(name)))
    except SkerryError as error:
        return Check(name, "missing", "not found", "no sandbox can start", error.message)


def backend_check(state_dir: str, run_dir: str) -> Check:
    """The container backend's own probe."""
    from skerry.backends import registry

    async def probe() -> Any:
        backend = registry.load("container", state_dir=state_dir, run_dir=run_dir, node="probe")
        return await backend.probe()

    try:
        health = asyncio.run(probe())
    except SkerryError as error:
        return Check("container backend", "missing", error.message, "containers cannot run here")
    if not health.usable:
        return Check("container backend", "missing", health.reason, "containers cannot run here")
    facts = ", ".join(
        f"{name} {value}" for name, value in health.facts.items() if not name.startswith("risk_")
    )
    return Check("container backend", "ok", facts or "usable")


def erofs_check() -> Check:
    """What makes layers."""
    from skerry.images.format.erofs import Tools

    try:
        tool = Tools(cache_home()).mkfs()
    except SkerryError as error:
        return Check("mkfs.erofs", "missing", "not found", "no layer can be made", error.message)
    version = ".".join(map(str, tool.version))
    if tool.version < EROFS_WANTED:
        return Check(
            "mkfs.erofs", "warning", f"{version} at {tool.path}",
            "older than 1.8: imports unpack to disk first and take longer; no zstd",
            "`make setup` in a checkout builds a newer one",
        )  # fmt: skip
    return Check("mkfs.erofs", "ok", f"{version} at {tool.path}")


def program_check(program: str, package: str, consequence: str) -> Check:
    """A program of the distribution."""
    # As the node looks for it: a user's own path often lacks the directories of root.
    path = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if path:
        return Check(program, "ok", path)
    return Check(program, "warning", "not found", consequence, f"apt-get install {package}")


def descriptors_check() -> Check:
    """Open files, in the node and the launcher."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < NOFILE_WANTED:
        return Check(
            "open files", "warning", f"at most {hard}",
            f"a node holds a few for each sandbox: about {hard // 8} can live",
            f"ulimit -Hn {NOFILE_WANTED}, or LimitNOFILE= of the service",
        )  # fmt: skip
    return Check("open files", "ok", "no limit" if hard == resource.RLIM_INFINITY else f"{hard}")


def pid_max_check() -> Check:
    """Processes of all sandboxes together."""
    limit = proc.text("/proc/sys/kernel/pid_max")
    if limit.isdecimal() and int(limit) < PID_MAX_WANTED:
        return Check(
            "process ids", "warning", f"at most {limit}",
            "many busy sandboxes run out of them together",
            f"sysctl kernel.pid_max={PID_MAX_WANTED * 16}",
        )  # fmt: skip
    return Check("process ids", "ok", f"at most {limit or 'unknown'}")


def suid_dumpable_check() -> Check:
    """Whether setuid programs dump core."""
    value = proc.text("/proc/sys/fs/suid_dumpable")
    if value not in ("0", ""):
        return Check(
            "fs.suid_dumpable", "warning", value,
            "a crash in a sandbox may write memory of a privileged process to disk",
            "sysctl fs.suid_dumpable=0",
        )  # fmt: skip
    return Check("fs.suid_dumpable", "ok", value or "unknown")


def core_pattern_check() -> Check:
    """Whether crashes start a program as host root."""
    value = proc.text("/proc/sys/kernel/core_pattern")
    if value.startswith("|"):
        return Check(
            "core_pattern", "warning", value[:60],
            "every crash in a sandbox starts this program as root of the host",
            "sysctl kernel.core_pattern=core",
        )  # fmt: skip
    return Check("core_pattern", "ok", value or "none")


def _existing(path: str) -> str:
    while not os.path.isdir(path):
        path = os.path.dirname(path) or "/"
    return path


def disk_check(state_dir: str) -> Check:
    """Room for layers and for what sandboxes write."""
    free = shutil.disk_usage(_existing(state_dir)).free
    found = f"{size(free)} free at {state_dir}"
    if free < DISK_WANTED:
        return Check(
            "disk", "warning", found, "a base takes about 0.5 GiB, writes of sandboxes come on top",
            f"free some, or --state on a larger disk (wanted: {size(DISK_WANTED)})",
        )  # fmt: skip
    return Check("disk", "ok", found)


def run_check(run_dir: str) -> Check:
    """Room for sockets, and that their paths are short enough."""
    if len(f"{run_dir}/i/") + 21 > 107:
        return Check(
            "run directory", "missing", run_dir, "its path is too long for sockets in it",
            "a shorter --run",
        )  # fmt: skip
    free = shutil.disk_usage(_existing(run_dir)).free
    if free < RUN_WANTED:
        return Check(
            "run directory", "warning", f"{size(free)} free at {run_dir}",
            "sockets of many sandboxes may not fit", "a larger tmpfs",
        )  # fmt: skip
    return Check("run directory", "ok", f"{size(free)} free at {run_dir}")


def memory_check() -> Check:
    """Memory that sandboxes could have."""
    for line in proc.text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) << 10
            found = (
                f"{size(free)} available, {os.cpu_count()} CPUs, Python {sys.version.split()[0]}"
            )
            if free < MEMORY_WANTED:
                return Check(
                    "memory", "warning", found, "new sandboxes are refused when it runs out",
                    "end other work",
                )  # fmt: skip
            return Check("memory", "ok", found)
    return Check("memory", "note", "unknown")
