"""What the container backend needs of a host, and whether it is there."""

from __future__ import annotations

import os
import re
import sys

from skerry.backends.api import Health
from skerry.backends.container import uppers
from skerry.backends.shared import binaries, proc
from skerry.backends.shared.cgroup import Layout, detect
from skerry.errors import SkerryError

KERNEL_MIN = (6, 8)  # lowerdir+ with descriptors, idmapped layers below an overlay
CAPABILITIES = {
    "CAP_SYS_ADMIN": 21,
    "CAP_SETUID": 7,
    "CAP_SETGID": 6,
    "CAP_CHOWN": 0,
    "CAP_NET_ADMIN": 12,
    "CAP_MKNOD": 27,
    "CAP_KILL": 5,
    "CAP_DAC_OVERRIDE": 1,
}


def layout() -> Layout:
    """Detects this host's cgroup layout."""
    return detect(proc.text("/proc/self/mountinfo"), os.path.exists, proc.text)


def missing_capabilities(status: str) -> list[str]:
    """Returns the names of needed capabilities that /proc/self/status does not show as effective."""
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            bits = int(line.split()[1], 16)
            return [name for name, bit in CAPABILITIES.items() if not bits >> bit & 1]
    return list(CAPABILITIES)


def kernel_version(release: str) -> tuple[int, int]:
    """Returns (major, minor) of a release text; (0, 0) if it is odd."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def probe(state_dir: str, found: Layout) -> Health:
    """Looks at rights, kernel, cgroups, binaries and the disk; starts nothing."""
    release = os.uname().release
    file_systems = proc.text("/proc/filesystems")
    facts = {"kernel": release, "cgroup": found.kind, **_risks()}
    reasons = []
    if not sys.platform.startswith("linux"):
        reasons.append("this is not Linux")
    missing = missing_capabilities(proc.text("/proc/self/status"))
    if os.geteuid() != 0 or missing:
        reasons.append(f"root is needed, with {', '.join(missing) or 'uid 0'}")
    if kernel_version(release) < KERNEL_MIN:
        reasons.append(f"kernel {release} is too old: at least {KERNEL_MIN[0]}.{KERNEL_MIN[1]}")
    absent = [name for name in ("overlay", "erofs") if name not in file_systems.split()]
    reasons += [f"the kernel has no {name} (load the module)" for name in absent]
    if found.kind == "none":
        reasons.append(found.reason)
    try:
        facts["launcher"] = str(binaries.find("skerry-spawn"))
        facts["agent"] = str(binaries.find("skerry-init"))
        store = _store(state_dir, file_systems)
        facts["uppers"] = store.kind + (f": {store.reason}" if store.reason else "")
        facts["free_mib"] = str(uppers.free_bytes(_existing(state_dir)) >> 20)
    except (SkerryError, OSError) as error:
        reasons.append(str(error))
    return Health(not reasons, "; ".join(reasons), facts)


def _existing(path: str) -> str:
    """Returns the nearest directory above that exists."""
    while not os.path.isdir(path):
        path = os.path.dirname(path) or "/"
    return path


def _store(state_dir: str, file_systems: str) -> uppers.UpperPlan:
    return uppers.choose(_existing(state_dir), proc.text("/proc/self/mountinfo"), file_systems)


def _risks() -> dict[str, str]:
    """Returns host settings that weaken isolation, each with what to do."""
    risks = {}
    if proc.text("/proc/sys/fs/suid_dumpable") not in ("0", ""):
        risks["risk_suid_dumpable"] = "fs.suid_dumpable is not 0: set it to 0"
    if proc.text("/proc/sys/kernel/core_pattern").startswith("|"):
        risks["risk_core_pattern"] = (
            "kernel.core_pattern pipes crashes of sandboxes to a program that runs as host root: "
            "set it to a file name"
        )
    return risks
