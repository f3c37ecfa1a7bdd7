"""The node and its launcher as the kernel shows them: descriptors, slots, memory of agents."""

import os
import re
import statistics
from collections.abc import Callable
from pathlib import Path


class Daemons:
    """The daemons of one node."""

    def __init__(self, node: int, run: Path) -> None:
        self.node = node
        self.launcher = _launcher(run)

    def descriptors(self) -> dict[str, int]:
        """How many each has open."""
        pids = {"node": self.node, "launcher": self.launcher}
        return {name: len(os.listdir(f"/proc/{pid}/fd")) for name, pid in pids.items()}

    def slots(self) -> int:
        """Slots that the launcher holds, used or spare: each has one network namespace."""
        held = 0
        for name in os.listdir(f"/proc/{self.launcher}/fd"):
            try:
                held += os.readlink(f"/proc/{self.launcher}/fd/{name}").startswith("net:[")
            except OSError:
                continue
        return held

    def agents(self) -> list[int]:
        """Children of the launcher: first processes of sandboxes."""
        return children(self.launcher)

    def agent_pss_kib(self, count: int) -> float:
        """Median of the proportional set size of that many agents."""
        return median_pss_kib(self.agents()[:count])

    def written_kib(self) -> int:
        """What node, launcher and this process, their client, have written that nobody shares."""
        return sum(
            rollup_kib(pid, "Private_Dirty") for pid in (self.node, self.launcher, os.getpid())
        )


def busy_share() -> Callable[[], float]:
    """Begins to look at the processors; the result returns the share that was busy since."""
    first = _cpu()

    def since() -> float:
        busy, total = (now - then for now, then in zip(_cpu(), first, strict=True))
        return busy / total if total else 0.0

    return since


def _cpu() -> tuple[int, int]:
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


def _launcher(run: Path) -> int:
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"skerry-spawn") and os.fsencode(run / "container") in words:
            return int(name)
    raise ProcessLookupError(f"no launcher works below {run}")


def rollup_kib(pid: int, name: str) -> int:
    """One line of a process's smaps_rollup."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    match = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else 0


def median_pss_kib(pids: list[int]) -> float:
    """Median of the proportional set size of some processes."""
    return statistics.median([rollup_kib(pid, "Pss") for pid in pids] or [0])


def children(parent: int) -> list[int]:
    """Processes whose parent it is."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [pid for pid in pids if _parent(pid) == parent]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def used_cpu_s(pid: int) -> float:
    """CPU time of a process, user and system, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_kib(pid: int) -> int:
    """The highest resident size since the start or the last `reset_peak`."""
    text = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"^VmHWM:\s+(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else 0


def reset_peak(pid: int) -> None:
    """Begins to look for the highest resident size anew (proc(5), clear_refs)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
