"""A census of our own things on this machine: what is here because of Skerry, whoever made it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

PROGRAMS = ("skerry-spawn", "skerry-init")


def take(state_dir: str, run_dir: str) -> dict[str, list[str]]:
    """Returns what was found, by kind; reads /proc and /sys and changes nothing."""
    return {
        "nodes": _processes(_is_node),
        "launchers and agents": _processes(_is_native),
        "mounts": _mounts(state_dir, run_dir),
        "control groups": _groups(),
        "loop devices": _loops(state_dir),
        "sockets of agents": _names(os.path.join(run_dir, "i")),
        "network namespaces": [n for n in _names("/run/netns") if n.startswith("skerry")],
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _is_node(_comm: str, words: list[str]) -> bool:
    if "node" not in words:
        return False
    before = words[: words.index("node")]
    return any(word == "skerry.cli.main" or word.endswith("/skerry") for word in before)


def _is_native(comm: str, words: list[str]) -> bool:
    program = os.path.basename(words[0]) if words else ""
    return comm in PROGRAMS or program in PROGRAMS


def _processes(wanted: Callable[[str, list[str]], bool]) -> list[str]:
    found = []
    for name in _names("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        comm = _read(f"/proc/{name}/comm").strip()
        words = [word for word in _read(f"/proc/{name}/cmdline").split("\0") if word]
        if comm and wanted(comm, words):
            found.append(f"{name} {' '.join(words)[:100] or comm}")
    return found


def _mounts(state_dir: str, run_dir: str) -> list[str]:
    below = tuple(f"{path.rstrip('/')}/" for path in (state_dir, run_dir))
    found = []
    for line in _read("/proc/self/mountinfo").splitlines():
        fields = line.split(" ")
        if len(fields) > 5 and f"{fields[4]}/".startswith(below):
            kind = line.partition(" - ")[2].split(" ")[0]
            found.append(f"{fields[4]} ({kind})")
    return found


def _groups() -> list[str]:
    found = []
    for line in _read("/proc/self/mountinfo").splitlines():
        if " - cgroup" not in line:
            continue
        root = line.split(" ")[4]
        found += [f"{root}/{name}" for name in _names(root) if name.startswith("skerry-")]
    return found


def _loops(state_dir: str) -> list[str]:
    found = []
    for name in _names("/sys/block"):
        backing = _read(f"/sys/block/{name}/loop/backing_file").strip()
        if backing.startswith(state_dir.rstrip("/") + "/"):
            found.append(f"/dev/{name} {backing}")
    return found
