"""What the host has left, as the kernel tells it; zero and nothing where it does not."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PRESSURE = ("cpu", "memory", "io")


@dataclass(frozen=True)
class HostView:
    """A reading of /proc. `pressure` is the "some" share of the last 10 s, in percent.

    Available is MemAvailable and the free pages on per-cpu lists, which no line of meminfo counts:
    since Linux 6.7 they hold up to an eighth of the memory for seconds after much was freed
    (mm/page_alloc.c, `high_max`, `decay_pcp_high`), and go to whoever asks next.
    """

    cores: int
    memory_total_bytes: int
    memory_available_bytes: int
    load: tuple[float, float, float]
    pressure: dict[str, float]
    swap_free_bytes: int = 0


def host_view(proc: str = "/proc") -> HostView:
    """Reads the host's state; blocks for microseconds."""
    memory = _meminfo(_text(f"{proc}/meminfo"))
    listed = percpu_free_bytes(_text(f"{proc}/zoneinfo"))
    return HostView(
        cores=len(os.sched_getaffinity(0)),
        memory_total_bytes=memory.get("MemTotal", 0),
        memory_available_bytes=memory.get("MemAvailable", 0) + listed,
        load=_load(_text(f"{proc}/loadavg")),
        pressure={
            name: share
            for name in PRESSURE
            if (share := some_avg10(_text(f"{proc}/pressure/{name}"))) is not None
        },
        swap_free_bytes=memory.get("SwapFree", 0),
    )


def percpu_free_bytes(zoneinfo: str) -> int:
    """Returns the bytes of free pages that lie on lists of single processors, in all zones."""
    pages = 0
    for line in zoneinfo.splitlines():
        name, _, count = line.strip().partition(":")
        if name == "count" and count.strip().isdecimal():
            pages += int(count)
    return pages * os.sysconf("SC_PAGE_SIZE")


def some_avg10(text: str) -> float | None:
    """Returns the share of the last 10 s of a pressure file; None if it is none."""
    for line in text.splitlines():
        if line.startswith("some "):
            for word in line.split():
                if word.startswith("avg10="):
                    return float(word[6:])
    return None


def _meminfo(text: str) -> dict[str, int]:
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdecimal():
            found[name] = int(words[0]) * 1024
    return found


def _load(text: str) -> tuple[float, float, float]:
    words = text.split()[:3]
    if len(words) < 3:
        return (0.0, 0.0, 0.0)
    return (float(words[0]), float(words[1]), float(words[2]))


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
