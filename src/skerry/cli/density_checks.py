"""What this host offers for sharing it between many sandboxes (docs/guide/density.md)."""

from __future__ import annotations

import os

from skerry.backends.shared import proc
from skerry.cli.findings import Check
from skerry.cli.words import size


def cpu_class_check() -> Check:
    """Whether best-effort sandboxes can be told to give way."""
    from skerry.backends.shared.cgroup import detect

    layout = detect(proc.text("/proc/self/mountinfo"), os.path.exists, proc.text)
    if not layout.cpu_idle:
        return Check(
            "cpu classes", "warning", "no cpu.idle: SCHED_IDLE and the least shares instead",
            "best-effort sandboxes slow others down more", "a kernel since 5.15",
        )  # fmt: skip
    return Check("cpu classes", "ok", "cpu.idle and SCHED_IDLE")


def swap_check() -> Check:
    """What a pause can do with the memory of a sandbox."""
    from skerry.density.zram import ALGORITHMS, Kernel, offered

    areas = Kernel().areas()
    if areas:
        total = sum(areas.values())
        return Check("swap", "ok", f"{size(total)} on {', '.join(areas)}: a pause frees memory")
    if offered():
        names = ", ".join(ALGORITHMS)
        return Check(
            "swap", "note", f"none; this kernel makes compressed swap ({names} if it has them)",
            "a paused sandbox keeps its memory", "skerry node --zram 4GiB",
        )  # fmt: skip
    return Check(
        "swap", "note", "none, and no zram in this kernel", "a paused sandbox keeps its memory",
        "modprobe zram, or a swap partition or file",
    )  # fmt: skip
