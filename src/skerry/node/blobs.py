"""The process that serves data blobs of verified mounts: found, started, watched, started again.

It outlives the node, and the FUSE session outlives it: the launcher, the backend object of this node
and the process itself each hold the session's descriptor, and whoever has lost it gets it from another
(`native/PROTOCOL.md`, BLOBS). A new process takes the session over, and reads under way go on.

Without a node nobody starts the process again. Then a read ends when the kernel ends the session, after
`lazy.server.request_timeout_s`; layers that were mounted on it give errors until they are unused and
mounted anew.
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
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final

import msgspec

from skerry.backends.api import Lazy
from skerry.errors import SkerryError, Unavailable
from skerry.images.format.profile import PROFILE
from skerry.images.lazy.main import NAME, LazyConfig
from skerry.images.lazy.options import LazyOptions
from skerry.node.config import NodeConfig
from skerry.wire.http import BlobsHealth

START_TIMEOUT_S: Final = 20.0
READY_TIMEOUT_S: Final = 30.0
# Both together end before an exec that waits for its program is given up by the agent (10 s).
ASK_TIMEOUT_S: Final = 4.0
LOOK_S: Final = 1.5
GONE_TIMEOUT_S: Final = 10.0
_PAUSE_S, _PAUSE_MAX_S = 0.05, 5.0
_ANSWER_MAX: Final = 64 << 10
log = logging.getLogger("skerry.node.blobs")

AddProfile = Callable[[str, bytes], None]


class Blobs:
    """One process for one backend. Invariant: `_ready` is set while a connection to it is open."""

    def __init__(
        self,
        config: LazyConfig,
        backend: Lazy,
        *,
        node: str,
        log_path: str,
        add_profile: AddProfile | None,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        """`prepare` is called before a process is started, in a thread."""
        self._node, self._prepare = node, prepare
        self._config, self._backend, self._log_path = config, backend, log_path
        self._add_profile = add_profile
        self._ready = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._stats: dict[str, float] = {}
        self._why = "it has not been started"
        self.pid = 0
        self.starts = 0

    async def start(self) -> None:
        """Begins to keep a process running."""
        self._keeper = asyncio.create_task(self._keep())

    async def ready(self) -> None:
        """Returns when blobs are served; Unavailable if that takes too long."""
        if self._ready.is_set():
            return
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                await self._ready.wait()
        except TimeoutError:
            raise Unavailable(
                f"layers cannot be read on demand now: {self._why} (log: {self._log_path})"
            ) from None

    async def close(self, *, gone: bool) -> None:
        """Leaves the process as it is; or returns when it is `gone`, after the session has ended."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        self._ready.clear()
        if not gone:
            return
        for _ in range(int(GONE_TIMEOUT_S / _PAUSE_S)):
            if not _is_ours(self.pid):
                break
            await asyncio.sleep(_PAUSE_S)
        else:
            _kill(self.pid)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._config.socket)

    def health(self) -> BlobsHealth:
        """Returns the part of it that people ask for."""
        counted = {name: int(self._stats.get(name, 0)) for name in _COUNTED}
        return BlobsHealth(
            pid=self.pid,
            serving=self._ready.is_set(),
            store_failing=bool(self._stats.get("store_failing")),
            **counted,
        )

    def gauges(self) -> dict[str, float]:
        """Returns what the process last said of itself."""
        counted = {f"blobs_{name}": value for name, value in self._stats.items()}
        return {
            f"{name}_total" if name.removeprefix("blobs_") not in _STANDING else name: value
            for name, value in counted.items()
        } | {
            "blobs_process_starts_total": self.starts,
            "blobs_serving": float(self._ready.is_set()),
        }

    # --- the keeper ---

    async def _keep(self) -> None:
        pause = _PAUSE_S
        while True:
            try:
                connection = await self._serve_somehow()
            except (SkerryError, OSError, subprocess.SubprocessError) as error:
                self._why = str(error)
                log.error("blobs are not served: %s", error)  # noqa: TRY400 - it says where
                await asyncio.sleep(pause)
                pause = min(pause * 2, _PAUSE_MAX_S)
                continue
            pause = _PAUSE_S
            self._ready.set()
            try:
                await self._watch(connection)
            finally:
                self._ready.clear()
                connection.close()
            self._why = f"process {self.pid} has ended"
            log.error("the process that serves blobs (%d) was lost", self.pid)

    async def _serve_somehow(self) -> socket.socket:
        """Returns a connection to a process that serves the session of the launcher."""
        connection = await asyncio.to_thread(self._connect)
        held = None
        try:
            if connection is not None:
                try:
                    held = await asyncio.to_thread(self._ask, connection)
                except (OSError, Unavailable) as error:  # it is just dying, or hangs
                    log.warning("what serves blobs does not answer: %s", error)
                    _kill(_peer(connection))
                    connection.close()
                    connection = None
            session = await self._backend.blob_session(held)
            try:
                if connection is not None and not session.fresh:
                    return connection
                if connection is not None:
                    connection.close()  # it served another session, which has ended with it
                await asyncio.to_thread(self._spawn, session.descriptor)
            finally:
                os.close(session.descriptor)
        finally:
            if held is not None:
                os.close(held)
        self.starts += 1
        connection = await asyncio.to_thread(self._connect)
        if connection is None:
            raise Unavailable(f"the process does not answer on {self._config.socket}")
        held = await asyncio.to_thread(self._ask, connection)
        os.close(held)
        return connection

    async def _watch(self, connection: socket.socket) -> None:
        """Returns when the process has ended, or does not answer any more."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        while not ended.is_set():
            loop.add_reader(connection, ended.set)  # nothing comes unasked but the end
            try:
                async with asyncio.timeout(LOOK_S):
                    await ended.wait()
            except TimeoutError:
                pass
            finally:
                loop.remove_reader(connection)
            if ended.is_set():
                return
            try:
                os.close(await asyncio.to_thread(self._ask, connection))
                await asyncio.to_thread(self._take_profiles)
            except TimeoutError:
                log.error("process %d does not answer: it is killed", self.pid)  # noqa: TRY400
                _kill(self.pid)
                return
            except (OSError, SkerryError) as error:
                log.warning("process %d: %s", self.pid, error)
                return

    # --- in threads ---

    def _connect(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(ASK_TIMEOUT_S)
        try:
            connection.connect(self._config.socket)
        except OSError:
            connection.close()
            return None
        return connection

    def _ask(self, connection: socket.socket) -> int:
        """Takes note of how the process stands; returns a copy of its session's descriptor."""
        connection.send(b"status")
        data, passed, _, _ = socket.recv_fds(connection, _ANSWER_MAX, 1, socket.MSG_CMSG_CLOEXEC)
        if not passed:
            raise Unavailable("the process that serves blobs has ended")
        try:
            told: dict[str, Any] = msgspec.json.decode(data)
            self.pid = int(told["pid"])
            self._stats = {str(name): float(value) for name, value in told["stats"].items()}
        except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
            os.close(passed[0])
            raise Unavailable(f"the process that serves blobs says nonsense: {error}") from error
        return passed[0]

    def _spawn(self, descriptor: int) -> None:
        """Starts a process; it goes into the background once it serves."""
        self._prepare()
        heard, told = os.pipe2(os.O_CLOEXEC)
        try:
            with open(told, "wb") as file:
                file.write(msgspec.json.encode(self._config))
            with open(self._log_path, "ab") as log_file:
                done = subprocess.run(
                    [
                        sys.executable,
                        "-I",
                        "-m",
                        "skerry.images.lazy.main",
                        str(descriptor),
                        str(heard),
                        # For who looks at the process table: whose it is.
                        "--socket",
                        self._config.socket,
                        "--node",
                        self._node,
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log_file,
                    cwd="/",
                    env=_environment(self._config),
                    pass_fds=(descriptor, heard),
                    check=False,
                    timeout=START_TIMEOUT_S,
                )
        finally:
            os.close(heard)
        if done.returncode:
            raise Unavailable(f"the process that serves blobs ends with {done.returncode}")

    def _take_profiles(self) -> None:
        """Takes what first runs have touched to the store, so that other nodes have it too."""
        if self._add_profile is None:
            return
        directory = self._config.cache_dir
        for name in os.listdir(directory):
            if not name.endswith(PROFILE) or name.startswith("."):
                continue
            path = os.path.join(directory, name)
            with open(path, "rb") as file:
                data = file.read()
            try:
                self._add_profile(f"sha256:{name.removesuffix(PROFILE)}", data)
            except SkerryError as error:
                log.info("the profile %s is not stored yet: %s", name, error)
                return
            os.unlink(path)


def _peer(connection: socket.socket) -> int:
    """Returns who listens at the other end."""
    size = struct.calcsize("3i")
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("3i", found)[0])


def _is_ours(pid: int) -> bool:
    """Says whether a process is one that serves blobs."""
    try:
        with open(f"/proc/{pid}/comm", encoding="ascii", errors="replace") as file:
            return file.read().strip() == NAME
    except OSError:
        return False


def _kill(pid: int) -> None:
    """Ends a process that serves blobs."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if _is_ours(pid):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


_COUNTED: Final = ("blobs", "cached_bytes", "hits", "misses", "verify_failures", "faults")
_STANDING: Final = {"blobs", "waiting", "cached_bytes", "store_failing"}


def lazy_config(config: NodeConfig, layers_dir: str) -> LazyConfig:
    """Returns what a node tells the process."""
    chosen = {item.name: getattr(config.lazy, item.name) for item in fields(LazyOptions)}
    return LazyConfig(
        layers_dir=layers_dir,
        cache_dir=os.path.join(config.state_dir, "chunks"),
        socket=os.path.join(config.run_dir, "blobs.sock"),
        store=config.store or config.store_dir,
        s3=config.s3,
        **chosen,
    )


def _environment(config: LazyConfig) -> dict[str, str]:
    """Returns little memory for many threads, and the secrets that are named."""
    names = [
        reference.removeprefix("env:")
        for reference in (config.s3.access_key, config.s3.secret_key, config.s3.session_token)
        if reference.startswith("env:")
    ]
    known = {name: os.environ[name] for name in names if name in os.environ}
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "MALLOC_ARENA_MAX": "2", **known}
