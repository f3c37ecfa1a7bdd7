"""What /proc and /sys say, for those who look and must not fail over what has just gone.

A file, directory or process that is not there, or that may not be read, reads as empty.
"""

from __future__ import annotations

import os


def text(path: str) -> str:
    """Returns a file's text without surrounding blanks."""
    try:
        with open(path, errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def content(path: str, size_max: int) -> bytes:
    """Returns the first bytes of a file, as one read gives them."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(handle, size_max)
    except OSError:
        return b""
    finally:
        os.close(handle)


def names(path: str) -> list[str]:
    """Returns what a directory holds, sorted."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def link(path: str) -> str:
    """Returns where a symbolic link points to."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def words(pid: int) -> tuple[str, ...]:
    """Returns the command line of a process; one that has ended has none."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return tuple(os.fsdecode(word) for word in file.read().split(b"\0") if word)
    except OSError:
        return ()


def option(line: tuple[str, ...], name: str) -> str:
    """Returns the value of a long option in a command line; "" if it is not there."""
    at = line.index(name) + 1 if name in line else len(line)
    return line[at] if at < len(line) else ""


def runs(pid: int) -> bool:
    """Returns whether there is such a process and it has not ended.

    One that has ended stays until its parent collects it, for an orphan the host's first process:
    it runs nothing and holds nothing, so it counts as gone (proc_pid_stat(5), states Z and X).
    """
    return text(f"/proc/{pid}/stat").rpartition(")")[2].split()[:1] not in ([], ["Z"], ["X"])


def boot_id() -> str:
    """Returns what names the time since the host was started (random(4))."""
    return text("/proc/sys/kernel/random/boot_id")
