"""Every feature of a kernel that Skerry uses or would use: there or not, its cost, what to do."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from skerry.cli.findings import Check
from skerry.cli.machine import Machine

# System calls by number (x86_64 and the generic table agree from 424 on; userfaultfd does not).
PIDFD_OPEN, CLONE3, PROCESS_MADVISE, MOUNT_SETATTR = 434, 435, 440, 442
USERFAULTFD = {"x86_64": 323, "aarch64": 282}
PRCTL = {"x86_64": 157, "aarch64": 167}
PR_SCHED_CORE = 62
INSTANCES_WANTED, WATCHES_WANTED = 8192, 524_288
KEYS_WANTED, FILES_WANTED, NETNS_WANTED = 2000, 1_000_000, 4096

Seen = tuple[bool | None, str]  # there, not there, or unknown; and in words


@dataclass(frozen=True)
class Feature:
    """One feature. `needed`: sandboxes are worse without it; others are for what may come."""

    name: str
    look: Callable[[Machine], Seen]
    consequence: str
    remedy: str
    needed: bool = False

    def check(self, machine: Machine) -> Check:
        """Returns the finding."""
        there, found = self.look(machine)
        if there:
            return Check(self.name, "ok", found)
        status = "warning" if self.needed and there is False else "note"
        return Check(self.name, status, found, self.consequence, self.remedy)  # type: ignore[arg-type]


def feature_checks(machine: Machine | None = None) -> list[Check]:
    """Returns a finding for every feature; starts and changes nothing."""
    machine = machine or Machine()
    return [feature.check(machine) for feature in FEATURES]


def mounts(machine: Machine, kind: str, controller: str = "") -> Iterator[str]:
    """Gives where hierarchies of a kind are mounted; of v1 those with the controller."""
    for line in machine.text("/proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        words, rest = before.split(), after.split()
        whole = len(words) > 4 and len(rest) > 2
        if whole and rest[0] == kind and (not controller or controller in rest[2].split(",")):
            yield words[4]


def group_file(
    v2: str, v1: str = "", controller: str = "", *, since: tuple[int, int] = (0, 0)
) -> Callable[[Machine], Seen]:
    """Returns a look for a file of groups: by the name that it has in v2, or in a v1 hierarchy.

    Where no group is there to look at, the kernel's version tells.
    """

    def look(machine: Machine) -> Seen:
        asked = [(at, v2) for at in mounts(machine, "cgroup2")]
        if v1:
            asked += [(at, v1) for at in mounts(machine, "cgroup", controller)]
        if not asked:
            return False, "no such hierarchy is mounted"
        empty = False
        for at, file in asked:
            # The file is in no root group: one below it must be looked at.
            below = [
                name for name in machine.names(at) if machine.exists(f"{at}/{name}/cgroup.procs")
            ]
            if any(machine.exists(f"{at}/{name}/{file}") for name in below):
                return True, f"{file} below {at}"
            empty = empty or not below
        if empty:
            return (
                machine.release() >= since,
                "by the kernel's version: no group is there to look at",
            )
        return False, f"no {' or '.join(file for _, file in asked)}"

    return look


def option(name: str, *, since: tuple[int, int] | None = None) -> Callable[[Machine], Seen]:
    """Returns a look at the kernel's configuration, or failing that at its version."""

    def look(machine: Machine) -> Seen:
        value = machine.option(name)
        if value is None:
            if since is not None and machine.release() < since:
                return False, f"the kernel is older than {since[0]}.{since[1]}"
            return None, "this kernel does not tell its configuration"
        return value in ("y", "m"), f"CONFIG_{name}={value}"

    return look


def call(number: int, *arguments: int) -> Callable[[Machine], Seen]:
    """Returns a look for a system call."""

    def look(machine: Machine) -> Seen:
        there = machine.has_call(number, *arguments)
        return there, "this kernel has it" if there else "this kernel has no such call"

    return look


def at_least(path: str, wanted: int) -> Callable[[Machine], Seen]:
    """Returns a look at a limit."""

    def look(machine: Machine) -> Seen:
        value = machine.text(path)
        if not value.isdecimal():
            return None, f"{path} cannot be read"
        return int(value) >= wanted, f"{value} ({path})"

    return look


def pressure(machine: Machine) -> Seen:
    """Pressure stall information of the host."""
    if machine.exists("/proc/pressure/memory"):
        return True, "/proc/pressure"
    built = machine.option("PSI") == "y"
    return False, "built in, but switched off" if built else "not in this kernel"


def erofs_from_files(machine: Machine) -> Seen:
    """Mounting an EROFS image without a loop device."""
    value = machine.option("EROFS_FS_BACKED_BY_FILE")
    if value is None:
        return machine.release() >= (6, 12) or None, "by the kernel's version"
    return value == "y", f"CONFIG_EROFS_FS_BACKED_BY_FILE={value}"


def fuse(machine: Machine) -> Seen:
    """User space file systems."""
    if "fuse" not in machine.text("/proc/filesystems").split():
        return False, "the kernel has no fuse"
    why = machine.opens("/dev/fuse")
    return not why, (why and f"/dev/fuse: {why}") or "/dev/fuse"


def userfaultfd(machine: Machine) -> Seen:
    """Faults that user space serves."""
    import os

    number = USERFAULTFD.get(os.uname().machine)
    if number is None:
        return None, "not asked on this architecture"
    failed = machine.call(number, 0x7FFF_0000)  # flags that no kernel knows: EINVAL where it is
    return (
        failed != errno.ENOSYS,
        "this kernel has it" if failed != errno.ENOSYS else "not built in",
    )


def zram(machine: Machine) -> Seen:
    """Compressed memory as swap."""
    if machine.exists("/sys/class/zram-control") or machine.exists("/sys/block/zram0"):
        return True, "ready"
    value = machine.option("ZRAM")
    if value is None:
        return None, "not loaded, and this kernel does not tell its configuration"
    return value in ("y", "m"), f"CONFIG_ZRAM={value}, not loaded"


def core_scheduling(machine: Machine) -> Seen:
    """Keeping sandboxes apart on the threads of one core."""
    import os

    number = PRCTL.get(os.uname().machine)
    if number is None:
        return None, "not asked on this architecture"
    failed = machine.call(number, PR_SCHED_CORE, 0, 0, 0, 1)  # GET with an address that is none
    if failed == errno.ENODEV:
        return True, "not needed: a core has one thread here"
    there = failed not in (errno.EINVAL, errno.ENOSYS)
    return there, "this kernel has it" if there else "not built in"


def kvm(machine: Machine) -> Seen:
    """Hardware virtualisation."""
    why = machine.opens("/dev/kvm")
    if not why:
        return True, "/dev/kvm"
    info = machine.text("/proc/cpuinfo")
    words = {
        word for line in info.splitlines() if line.startswith("flags") for word in line.split()
    }
    if "vmx" in words or "svm" in words:
        return False, f"the processor has it, /dev/kvm: {why}"
    nested = "a guest without nested virtualisation" if "hypervisor" in words else "no vmx or svm"
    return False, f"/dev/kvm: {why}; {nested}"


def btrfs_quota(machine: Machine) -> Seen:
    """Limits of what a sandbox writes."""
    names = machine.names("/sys/fs/btrfs/features")
    if not names:
        return False, "btrfs is not loaded"
    return True, "simple quota" if "simple_quota" in names else "quota groups"


def seccomp(machine: Machine) -> Seen:
    """Filters of system calls."""
    actions = machine.text("/proc/sys/kernel/seccomp/actions_avail")
    return "errno" in actions.split(), actions or "not in this kernel"


V2 = "mount cgroup2 with this controller (systemd.unified_cgroup_hierarchy=1)"
FEATURES: tuple[Feature, ...] = (
    Feature("groups: kill", group_file("cgroup.kill", since=(5, 14)),
            "what a command started is ended process by process", "Linux 5.14", needed=True),
    Feature("groups: freezer", group_file("cgroup.freeze", "freezer.state", "freezer"),
            "sandboxes cannot be paused, and a commit may be torn", "Linux 5.2, cgroup2", needed=True),
    Feature("groups: memory", group_file("memory.max", "memory.limit_in_bytes", "memory"),
            "a sandbox can take all memory", V2, needed=True),
    Feature("groups: pids", group_file("pids.max", "pids.max", "pids"),
            "a fork bomb takes the host's process ids", V2, needed=True),
    Feature("groups: cpu", group_file("cpu.max", "cpu.cfs_quota_us", "cpu"),
            "a sandbox can take all processors", V2, needed=True),
    Feature("groups: cpu idle", group_file("cpu.idle", "cpu.idle", "cpu", since=(5, 15)),
            "best-effort sandboxes only weigh less", "Linux 5.15"),
    Feature("groups: cpu burst", group_file("cpu.max.burst", "cpu.cfs_burst_us", "cpu", since=(5, 14)),
            "cpu_burst is refused or without effect", "Linux 5.14"),
    Feature("groups: memory reclaim", group_file("memory.reclaim", since=(5, 19)),
            "cold memory is given back page by page (process_madvise)", "Linux 5.19 with cgroup v2"),
    Feature("groups: io limits", group_file("io.max", "blkio.throttle.read_bps_device", "blkio"),
            "a sandbox can keep the disk busy", V2),
    Feature("groups: pressure", group_file("memory.pressure"),
            "who suffers is not told by sandbox", "cgroup v2 and psi=1 at boot"),
    Feature("pressure (PSI)", pressure,
            "the node brakes by free memory and its own lag only", "psi=1 at boot", needed=True),
    Feature("erofs from files", erofs_from_files,
            "each layer takes a loop device", "Linux 6.12, CONFIG_EROFS_FS_BACKED_BY_FILE"),
    Feature("erofs zstd", option("EROFS_FS_ZIP_ZSTD", since=(6, 10)),
            "compressed layers would be lz4 (layers are stored plain today)",
            "CONFIG_EROFS_FS_ZIP_ZSTD"),
    Feature("btrfs quota", btrfs_quota, "disk= is refused or backed by a tmpfs", "modprobe btrfs"),
    Feature("loop devices", lambda m: (m.exists("/dev/loop-control"), "/dev/loop-control"),
            "no btrfs pool in a file", "modprobe loop", needed=True),
    Feature("idmapped mounts", call(MOUNT_SETATTR, -1, 0, 0, 0, 0),
            "layers cannot be shared between sandboxes", "Linux 5.19", needed=True),
    Feature("pidfd", call(PIDFD_OPEN, -1, 0), "processes cannot be waited for safely", "Linux 5.3",
            needed=True),
    Feature("clone3 into a group", call(CLONE3, 0, 0), "commands enter their group late", "Linux 5.7",
            needed=True),
    Feature("seccomp", seccomp, "system calls cannot be filtered", "CONFIG_SECCOMP_FILTER",
            needed=True),
    Feature("process_madvise", call(PROCESS_MADVISE, -1, 0, 0, 0, 0),
            "cold memory of idle sandboxes stays", "Linux 5.10"),
    Feature("zram", zram, "cold memory cannot be kept compressed", "CONFIG_ZRAM"),
    Feature("userfaultfd", userfaultfd, "memory of snapshots cannot be served on demand",
            "CONFIG_USERFAULTFD"),
    Feature("fuse", fuse, "layers cannot be read on demand from remote stores", "modprobe fuse"),
    Feature("core scheduling", core_scheduling,
            "sandboxes share the threads of a core", "CONFIG_SCHED_CORE, or SMT off"),
    Feature("kvm", kvm, "microVMs run emulated, many times slower",
            "a bare-metal host, or nested virtualisation"),
    Feature("network namespaces", at_least("/proc/sys/user/max_net_namespaces", NETNS_WANTED),
            "that many sandboxes can live", f"sysctl user.max_net_namespaces={NETNS_WANTED * 16}",
            needed=True),
    Feature("inotify instances", at_least("/proc/sys/fs/inotify/max_user_instances", INSTANCES_WANTED),
            "watchers in sandboxes run out: each user namespace is counted against its owner too",
            f"sysctl fs.inotify.max_user_instances={INSTANCES_WANTED}"),
    Feature("inotify watches", at_least("/proc/sys/fs/inotify/max_user_watches", WATCHES_WANTED),
            "large trees cannot be watched inside",
            f"sysctl fs.inotify.max_user_watches={WATCHES_WANTED}"),
    Feature("keys", at_least("/proc/sys/kernel/keys/maxkeys", KEYS_WANTED),
            "programs that use key rings may be refused",
            f"sysctl kernel.keys.maxkeys={KEYS_WANTED}"),
    Feature("files of the host", at_least("/proc/sys/fs/file-max", FILES_WANTED),
            "all processes together run out of open files", f"sysctl fs.file-max={FILES_WANTED * 8}",
            needed=True),
    Feature("threads of the host", at_least("/proc/sys/kernel/threads-max", 65_536),
            "many busy sandboxes run out of threads together", "sysctl kernel.threads-max=1000000",
            needed=True),
)  # fmt: skip
