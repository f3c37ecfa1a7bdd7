"""Removes what a node that is gone for good has left; never anything of one that may come back."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import os
import select
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from skerry.cli.holdings import Holdings, Process, group_roots, pins
from skerry.density.zram import Zram
from skerry.errors import SkerryError

DIE_WITHIN_S = 10.0
SHUT_DOWN_S = 2.0  # after its answer
POLL_S = 0.05
MNT_DETACH = 2


def clean(found: Holdings, node: str, registry_dir: str) -> list[str]:
    """Removes everything of one node that is gone; returns what could not be removed, and why.

    Raises nothing; a node that runs or waits is left alone.
    """
    if not node or node in found.running | found.waiting:
        return [f"node {node or '(unknown)'}: not an orphan"]
    trouble = [
        f"worker {worker.pid} does not end"
        for worker in found.workers.get(node, [])
        if not _end(worker, functools.partial(_tell, worker.pid))
    ]
    trouble += [
        f"launcher {launcher.pid} does not end"
        for launcher in found.launchers.get(node, [])
        if not _shut_down(launcher)
    ]
    roots = [path for path, owner in group_roots() if owner == node]
    trouble += _kill(roots)
    for root in roots:
        trouble += _remove_groups(root)
    for run in found.run_dirs.get(node, ()):
        # Several nodes may have had it, one after the other: the last one's is not touched.
        if not found.shared(run):
            trouble += _remove_run(run)
    # It ends with its session, which ended with its last mount.
    trouble += [
        f"blobs process {process.pid} does not end"
        for process in found.blobs.get(node, [])
        if not _end(process, lambda: None)
    ]
    try:
        Zram(node).close()
    except SkerryError as error:
        trouble.append(error.message)
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(registry_dir, node))
    return trouble


def _shut_down(process: Process) -> bool:
    """Asks a launcher to end, which takes along all that it holds."""
    from skerry.backends.shared.launcher import Launcher, LauncherFailed
    from skerry.wire import plan

    async def ask() -> None:
        socket = f"{process.option('--run')}/spawn.sock"
        launcher = await Launcher.connect(socket, lambda _exited: None)
        try:
            if (await launcher.status(5.0)).pid == process.pid:  # not another node's at that place
                await launcher.ask(plan.Shutdown(), 5.0)
        finally:
            launcher.close()

    def shut_down() -> None:
        with contextlib.suppress(OSError, SkerryError, LauncherFailed):
            asyncio.run(ask())

    return _end(process, shut_down)


def _end(process: Process, ask: Callable[[], None]) -> bool:
    """Asks a process to end, and kills it if it does not; returns whether it has ended."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        if not process.still_there():
            return True
        ask()
        if not _soon(lambda: _ended(pidfd), SHUT_DOWN_S):
            # Its socket is gone, or it hangs: what it held is removed one by one.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        return _soon(lambda: _ended(pidfd))
    finally:
        os.close(pidfd)


def _tell(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def _ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 0)[0])


def _kill(roots: list[str]) -> list[str]:
    """Ends every process below the node's groups."""
    for root in roots:
        with contextlib.suppress(OSError):
            Path(root, "cgroup.freeze").write_text("0")
        with contextlib.suppress(OSError):
            Path(root, "cgroup.kill").write_text("1")
    if _soon(lambda: not any(pid for root in roots for pid in _pids(root))):
        return []
    return [f"processes in {root} do not end" for root in roots if any(_pids(root))]


def _pids(root: str) -> Iterator[str]:
    for path, _, _ in os.walk(root):
        with contextlib.suppress(OSError):
            yield from Path(path, "cgroup.procs").read_text().split()


def _remove_groups(root: str) -> list[str]:
    for path, names, _ in os.walk(root, topdown=False):
        for name in names:
            with contextlib.suppress(OSError):
                os.rmdir(f"{path}/{name}")
    try:
        os.rmdir(root)
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"{root}: {error.strerror}"]
    return []


def _remove_run(run: str) -> list[str]:
    """Removes a run directory; first the mounts that keep the namespace of the node's launcher."""
    libc = ctypes.CDLL(None, use_errno=True)
    pinned = [at for at, owner in list(pins()) if owner == run]
    trouble = [
        f"{path}: {os.strerror(ctypes.get_errno())}"
        for at in pinned
        for path in (at, os.path.dirname(at))
        if libc.umount2(os.fsencode(path), MNT_DETACH)
    ]
    if not trouble:
        for name in ("container", "workers"):
            shutil.rmtree(f"{run}/{name}", ignore_errors=True)
        for name in ("node.sock", "blobs.sock", "lock"):
            with contextlib.suppress(OSError):
                os.unlink(f"{run}/{name}")
        with contextlib.suppress(OSError):
            os.rmdir(run)
    return trouble


def _soon(holds: Callable[[], bool], within_s: float = DIE_WITHIN_S) -> bool:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if holds():
            return True
        time.sleep(POLL_S)
    return bool(holds())
