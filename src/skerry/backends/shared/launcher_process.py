"""Keeps a launcher running: finds the one of an earlier node, starts one, restarts a dead one.

The launcher goes into the background with a session of its own, and so outlives the node. After its
death a new one enters the pinned mount namespace; the owner's `restore` then tells it what lives
(ADOPT), before any other request gets through.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
from collections.abc import Awaitable, Callable

from skerry.backends.shared import proc
from skerry.backends.shared.launcher import REQUEST_TIMEOUT_S, Launcher, LauncherFailed
from skerry.errors import Conflict, SkerryError, Unavailable
from skerry.wire import plan, replies

START_TIMEOUT_S = 10.0
RESTARTS_MAX = 8
OPEN_TRIES = 3
RESTART_PAUSE_S = 0.1
_POLL_S = 0.005
_LOG_TAIL = 600

Restore = Callable[[Launcher, replies.StatusReply], Awaitable[None]]


class LauncherProcess:
    """The one launcher of a run directory. `get` returns a connection on which `restore` has run."""

    def __init__(
        self,
        argv: tuple[str, ...],
        run_dir: str,
        *,
        restore: Restore,
        on_exited: Callable[[replies.Exited], None],
        log: logging.Logger,
    ) -> None:
        self._run_dir, self._log = run_dir, log
        self._argv = (*argv, "--log", self.log_path)
        self._restore, self._on_exited = restore, on_exited
        self._current: Launcher | None = None
        self._ready = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self._gave_up = ""
        self.pid = 0
        self.restarts = 0

    @property
    def socket_path(self) -> str:
        """Where the launcher listens."""
        return f"{self._run_dir}/spawn.sock"

    @property
    def log_path(self) -> str:
        """Where the launcher writes what went wrong."""
        return f"{self._run_dir}/spawn.log"

    async def open(self) -> None:
        """Finds or starts the launcher; Unavailable if it does not come up.

        One that is just dying may still accept, and hold its lock for a moment: it is tried again.
        """
        for tries in range(OPEN_TRIES):
            try:
                await self._attach()
                break
            except Unavailable:
                if tries == OPEN_TRIES - 1:
                    raise
                await asyncio.sleep(RESTART_PAUSE_S)
        self._watch = asyncio.create_task(self._keep())

    async def get(self) -> Launcher:
        """Returns the connection; waits while the launcher is being restarted."""
        if self._current is not None and self._current.lost.is_set():
            self._ready.clear()  # `_keep` has not heard of it yet
        if not self._ready.is_set():
            try:
                async with asyncio.timeout(START_TIMEOUT_S * 2):
                    await self._ready.wait()
            except TimeoutError:
                raise Unavailable("the launcher does not come up again") from None
        if self._current is None:
            raise Unavailable(self._gave_up)
        return self._current

    async def close(self, *, stop: bool) -> None:
        """Leaves the launcher, or stops it with everything that it holds. Idempotent."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None
        current, self._current = self._current, None
        self._gave_up = "the launcher was closed"
        self._ready.set()
        if current is None:
            return
        try:
            if stop:
                await current.ask(plan.Shutdown())
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    await current.lost.wait()
        except (LauncherFailed, SkerryError, TimeoutError) as error:
            self._log.warning("the launcher did not shut down: %s", error)
        finally:
            current.close()
        if stop:
            await self._gone()

    async def _attach(self) -> None:
        launcher = await self._connect()
        if launcher is None:
            await asyncio.to_thread(self._spawn)
            launcher = await self._connect()
        if launcher is None:
            raise Unavailable(f"the launcher does not listen on {self.socket_path}")
        try:
            status = await launcher.status(START_TIMEOUT_S)
            self._check_ours(status.pid)
            self.pid = status.pid
            await self._restore(launcher, status)
        except LauncherFailed as error:
            launcher.close()
            raise error.to_error() from error
        except BaseException:
            launcher.close()
            raise
        self._current = launcher
        self._ready.set()

    def _check_ours(self, pid: int) -> None:
        """Raises Conflict if what listens was started for another state directory.

        Its node is dead or it would hold the run directory; what lives there is that node's.
        """
        wanted, found = proc.option(self._argv, "--state"), proc.option(proc.words(pid), "--state")
        if found and os.path.realpath(found) != os.path.realpath(wanted):
            raise Conflict(
                f"the sandboxes of another node live on in {os.path.dirname(self._run_dir)} "
                f"(launcher {pid}, state directory {os.path.dirname(found)}): start that node to end "
                "them (`skerry census` shows them), or give this one another run directory (--run)",
                holder=found,
            )

    async def _connect(self) -> Launcher | None:
        try:
            return await Launcher.connect(self.socket_path, self._on_exited)
        except OSError:
            return None

    def _spawn(self) -> None:
        """Runs it; it puts itself into the background once it listens."""
        try:
            done = subprocess.run(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
                check=False,
                timeout=START_TIMEOUT_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"the launcher does not start: {error}") from error
        if done.returncode:
            said = self._log_tail() or "nothing"
            raise Unavailable(f"the launcher ended with {done.returncode}; its log says: {said}")

    def _log_tail(self) -> str:
        try:
            with open(self.log_path, "rb") as log:
                return log.read()[-_LOG_TAIL:].decode(errors="replace").strip()
        except OSError:
            return ""

    async def _keep(self) -> None:
        """Restarts the launcher when it dies; gives up after RESTARTS_MAX in a row."""
        failures = 0
        while self._current is not None and failures < RESTARTS_MAX:
            await self._current.lost.wait()
            self._ready.clear()
            self.restarts += 1
            self._log.error(
                "the launcher (process %d, which %s) was lost; its log ends with: %s",
                self.pid,
                "lives" if proc.runs(self.pid) else "has ended",
                self._log_tail() or "nothing",
            )
            while failures < RESTARTS_MAX:
                try:
                    await self._attach()
                    failures = 0
                    break
                except (SkerryError, OSError, subprocess.SubprocessError) as error:
                    failures += 1
                    self._log.error("restart %d of the launcher failed: %s", failures, error)
                    await asyncio.sleep(RESTART_PAUSE_S * failures)
        self._current = None
        self._gave_up = f"the launcher failed {failures} times in a row"
        self._ready.set()

    async def _gone(self) -> None:
        """Returns when the launcher's process has ended."""
        for _ in range(int(START_TIMEOUT_S / _POLL_S)):
            if not proc.runs(self.pid):
                return
            await asyncio.sleep(_POLL_S)
        self._log.error("the launcher (process %d) does not end", self.pid)


def clear_log(run_dir: str) -> None:
    """Removes the log of a launcher that ended well."""
    for name in ("spawn.log", "spawn.log.1"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{run_dir}/{name}")
