"""What serves data blobs on demand, as the census sees it: process, FUSE session, mount, chunk cache."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from skerry.backends.shared import proc
from skerry.cli.things import Process, Thing

ASK_S: Final = 1.0
_ANSWER_MAX: Final = 64 << 10
_CLONE_NEWNS: Final = 0x0002_0000


def of_process(process: Process, node: str) -> Iterator[Thing]:
    """Gives a blobs process and its chunk cache, with what the process says of both."""
    told = _ask(process)
    yield Thing("blobs process", process.label(), node)
    for fd in proc.names(f"/proc/{process.pid}/fd"):
        target = proc.link(f"/proc/{process.pid}/fd/{fd}")
        if target.endswith("/chunks/lock"):
            yield Thing("chunk cache", _cache(os.path.dirname(target), told), node)


def sessions(process: Process, node: str) -> Iterator[Thing]:
    """Gives the descriptors of FUSE sessions that a process holds, as one thing."""
    links = (
        proc.link(f"/proc/{process.pid}/fd/{fd}") for fd in proc.names(f"/proc/{process.pid}/fd")
    )
    count = sum(target == "/dev/fuse" for target in links)
    if count:
        yield Thing("FUSE descriptor", f"{count} of process {process.pid}", node)


def mounts(table: list[str], where: str, node: str) -> Iterator[Thing]:
    """Gives the FUSE mounts of a mount table."""
    for line in table:
        before, _, after = line.partition(" - ")
        if after.split(" ")[0] in ("fuse", "fuseblk"):
            yield Thing("FUSE mount", f"{before.split(' ')[4]} in {where}", node)


def table_in(namespace: str) -> list[str]:
    """Returns the mount table of a mount namespace that a file names; [] if it cannot be entered.

    A child of this process is in it for a moment: who keeps it may long have ended.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    heard, told = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            entered = libc.setns(os.open(namespace, os.O_RDONLY | os.O_CLOEXEC), _CLONE_NEWNS) == 0
            os.write(told, b"y" if entered else b"n")
            signal.pause()
        finally:
            os._exit(1)
    try:
        os.close(told)
        entered = os.read(heard, 1) == b"y"
        return proc.text(f"/proc/{child}/mountinfo").splitlines() if entered else []
    finally:
        os.close(heard)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _cache(directory: str, told: dict[str, Any]) -> str:
    facts = []
    for name in proc.names(directory):
        try:
            facts.append(os.stat(f"{directory}/{name}").st_blocks * 512)
        except OSError:
            continue  # its room was just needed
    text = f"{directory}: {sum(facts)} bytes"
    if not told:
        return f"{text}; its process does not answer"
    counts = (f"{told.get(name, 0):.0f} {word}" for name, word in _COUNTS.items())
    return f"{text}; {', '.join(counts)}"


_COUNTS: Final = {
    "hits": "hits",
    "misses": "misses",
    "verify_failures": "verify failures",
    "faults": "reads failed",
    "blobs": "blobs mounted",
}


def _ask(process: Process) -> dict[str, Any]:
    """Returns what the process counts; {} if it does not say in time."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(ASK_S)
        try:
            connection.connect(process.option("--socket"))
            peer = connection.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
            )
            if struct.unpack("3i", peer)[0] != process.pid:
                return {}  # another one has its place
            connection.send(b"status")
            data, passed, _, _ = socket.recv_fds(connection, _ANSWER_MAX, 1)
            for descriptor in passed:
                os.close(descriptor)
            stats = msgspec.json.decode(data)["stats"]
        except (OSError, ValueError, KeyError, TypeError):
            return {}
    return stats if isinstance(stats, dict) else {}
