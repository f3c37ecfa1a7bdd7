"""One worker: a process that is found or started, watched, and started again.

It outlives a killed node, and is found again at its socket by the next one. Nobody but the worker knows
what it works for; it holds a lock on its state, so that there are never two.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Sequence
from typing import Final

from skerry.errors import Bug, Unavailable
from skerry.node.workers.upstream import WorkerGone, asking

START_S: Final = 30.0  # from its start until it answers
LOOK_S: Final = 5.0
HUNG_S: Final = 60.0  # without an answer to anything
STEADY_S: Final = 5.0  # one that has served for so long is started again at once
END_S: Final = 10.0  # from being told to end to being killed
LOG_BYTES_MAX: Final = 4 << 20  # emptied then
_POLL_S: Final = 0.05
_PAUSE_S = 0.05  # before it is started again; doubled each time
_PAUSE_MAX_S, _PAUSE_LOST_MAX_S = 5.0, 0.5  # where it does not start; where it was lost
log = logging.getLogger("skerry.node.workers")


class Worker:
    """Invariant: `ready` is set while a process answers at the socket, as far as is known."""

    def __init__(
        self, number: int, command: Sequence[str], *, state: str, socket_path: str, node: str
    ) -> None:
        self.number = number
        self.state = state
        self.socket = socket_path
        self.ready = asyncio.Event()
        self.pid = 0
        self.starts = 0
        self.why = "it has not been started"
        self._command = [*command, "--socket", socket_path, "--state", state, "--node", node]
        self._log = f"{state}.log"
        self._keeper: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    @property
    def used(self) -> bool:
        """Whether it was ever used: then it has a state."""
        return os.path.isdir(self.state)

    @property
    def kept(self) -> bool:
        """Whether a process is kept running."""
        return self._keeper is not None

    def keep(self) -> None:
        """Keeps a process running from now on, unless it was closed; idempotent."""
        if self._keeper is None and not self._closed:
            self._keeper = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """Ends the process; returns when it is gone, and no other will come."""
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        self.ready.clear()
        if not self.pid:
            return
        await self._end(self.pid)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.socket)

    # -- the keeper -----------------------------------------------------------------------------------

    async def _keep(self) -> None:
        pause = _PAUSE_S
        loop = asyncio.get_running_loop()
        while True:
            most = _PAUSE_MAX_S
            try:
                handle = await self._serve_somehow()
            except (Unavailable, OSError, subprocess.SubprocessError) as error:
                self.why = str(error)
                log.error("worker %d does not run: %s", self.number, error)  # noqa: TRY400
            except Exception as error:  # a bug of ours: others wait for this worker, so go on
                self.why = f"{type(error).__name__}: {error}"
                log.exception("worker %d does not run", self.number)
            else:
                self.ready.set()
                pid = self.pid
                began, most = loop.time(), _PAUSE_LOST_MAX_S
                try:
                    await self._watch(handle)
                finally:
                    self.ready.clear()
                    os.close(handle)
                self.why = f"process {pid} has ended"
                log.error("worker %d (process %d) was lost", self.number, pid)
                self._collect()
                self.pid = 0  # soon another program's, which must not be ended for it
                if loop.time() - began > STEADY_S:
                    pause = _PAUSE_S
            pause = min(pause, most)
            await asyncio.sleep(pause)
            pause *= 2

    async def _serve_somehow(self) -> int:
        """Returns a pidfd of a process that answers; Unavailable, OSError."""
        pid = self._listener()
        if pid:
            handle = os.pidfd_open(pid)
            if await self._answers():
                self.pid = pid
                log.info("worker %d is process %d, which runs already", self.number, pid)
                return handle
            os.close(handle)
            log.warning("worker %d: process %d does not answer", self.number, pid)
            await self._end(pid, at_once=True)
        process = await self._started()
        until = asyncio.get_running_loop().time() + START_S
        while not await self._answers():
            if process.poll() is not None:
                self._collect()
                raise Unavailable(f"it ends with {process.returncode} (log: {self._log})")
            if asyncio.get_running_loop().time() > until:
                await self._end(self.pid, at_once=True)
                raise Unavailable(f"it does not answer within {START_S:g} s (log: {self._log})")
            await asyncio.sleep(_POLL_S)
        return os.pidfd_open(self.pid)

    async def _started(self) -> subprocess.Popen[bytes]:
        """Returns a process that was just started; `pid` is its, also if this is cancelled meanwhile."""
        spawning = asyncio.ensure_future(asyncio.to_thread(self._spawn))
        try:
            await asyncio.shield(spawning)
        finally:
            # A thread goes on when nobody waits for it any more: what it starts has to be ended.
            if not spawning.done():
                await asyncio.wait({spawning})
            if self._process is not None:
                self.pid = self._process.pid
        if self._process is None:
            raise Bug("a worker was started without a process")
        self.starts += 1
        return self._process

    async def _watch(self, handle: int) -> None:
        """Returns when the process has ended, or does not answer any more and was killed."""
        loop = asyncio.get_running_loop()
        ended, heard = asyncio.Event(), loop.time()
        loop.add_reader(handle, ended.set)
        try:
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await ended.wait()
                if ended.is_set():
                    return
                self._bound_log()
                if await self._answers():
                    heard = loop.time()
                elif loop.time() - heard > HUNG_S:
                    log.error("worker %d does not answer: it is killed", self.number)
                    await self._end(self.pid, at_once=True)
                    return
        finally:
            loop.remove_reader(handle)

    async def _answers(self) -> bool:
        try:
            async with (
                asyncio.timeout(LOOK_S),
                asking(self.socket, b"GET", b"/health", [(b"Accept", b"*/*")]) as reply,
            ):
                return reply.status < 500
        except (WorkerGone, TimeoutError):
            return False

    async def _end(self, pid: int, *, at_once: bool = False) -> None:
        """Returns when a process is gone; told to end first, killed when that takes too long."""
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            self._collect()
            return
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(handle, ended.set)
        try:
            for number in (signal.SIGKILL,) if at_once else (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, number)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(END_S):
                        await ended.wait()
                        break
        finally:
            loop.remove_reader(handle)
            os.close(handle)
            self._collect()

    def _collect(self) -> None:
        """Takes note of the end of a process that this node has started."""
        if self._process is not None and self._process.poll() is not None:
            if self.pid == self._process.pid:
                self.pid = 0
            self._process = None

    def _listener(self) -> int:
        """Returns the process that listens at the socket, 0 if there is none."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            try:
                probe.connect(self.socket)
            except OSError:
                return 0
            size = struct.calcsize("3i")
            found = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        return int(struct.unpack("3i", found)[0])

    def _spawn(self) -> None:
        os.makedirs(self.state, mode=0o700, exist_ok=True)
        os.makedirs(os.path.dirname(self.socket), mode=0o700, exist_ok=True)
        self._bound_log()
        with open(self._log, "ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                start_new_session=True,
            )

    def _bound_log(self) -> None:
        """Empties a log that has become too long; who writes to it appends."""
        with contextlib.suppress(OSError):
            if os.stat(self._log).st_size > LOG_BYTES_MAX:
                os.truncate(self._log, 0)
