"""The keeper of a node's disks: mounts, starts the service, again whenever it dies, and packs for it.

    python -m skerry.images.disks.keeper CONFIG [--root PATH]

CONFIG is the number of a descriptor from which a `ServiceConfig` is read as JSON; PATH only says in the
process table whose it is. The command ends
with 0 once disks are served; keeper and service go on in the background. The keeper holds the session's
descriptor, so who uses a disk only waits while a service dies and the next one starts. It ends with
the service's orderly end, and takes the mount away. It does nothing else: that it dies is unlikely; then
the service goes on, and only packing waits for the next keeper.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from typing import IO, Final, cast

import msgspec

from skerry.errors import Conflict, SkerryError, StorageFailed
from skerry.images.disks import state
from skerry.images.disks.config import ServiceConfig
from skerry.images.disks.local import DIRECTORIES
from skerry.images.disks.service import SERVING
from skerry.images.disks.state import PackResult
from skerry.images.lazy.main import take_cache
from skerry.images.lazy.privilege import BLOBS_UID, name_process
from skerry.images.scratch import storage_errors

log = logging.getLogger("skerry.disks")
NAME: Final = "skerry-diskkeep"

_NOSUID, _NODEV, _FORCE, _DETACH = 2, 4, 1, 2
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.05, 5.0
_LOG_BYTES_MAX: Final = 4 << 20
_THEIRS: Final = ("chunks", "open", "jobs")  # what the service writes to
_libc = ctypes.CDLL(None, use_errno=True)


class Keeper:
    """Of one directory of disks; Conflict while another one has it."""

    def __init__(self, config: ServiceConfig) -> None:
        self._config = config.check()
        self._root = config.root
        with storage_errors(f"making {self._root}"):
            for name in ("", *DIRECTORIES, "scratch"):
                os.makedirs(os.path.join(self._root, name), mode=0o700, exist_ok=True)
            os.chmod(self._root, 0o700)
            self._lock = os.open(
                os.path.join(self._root, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Conflict(f"{self._root} has a disk service already") from None
            self._take_over()
        self._fuse = self._mount()
        self._listener = self._listen()
        self._packing: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, serving: int) -> None:
        """Keeps a service running until one ends in order; a byte is written to `serving` first."""
        pause = _PAUSE_MIN_S
        while True:
            began = time.monotonic()
            with self._start() as process:
                output = cast("IO[bytes]", process.stdout)
                for line in output:
                    if line == SERVING and serving >= 0:
                        os.write(serving, b"r")
                        os.close(serving)
                        serving = -1
                    elif line != SERVING:
                        self._pack(line.decode().strip())
            if process.returncode == 0:
                return
            log.error("the disk service ended with %d; starting another", process.returncode)
            pause = _PAUSE_MIN_S if time.monotonic() - began > _PAUSE_MAX_S else pause * 2
            time.sleep(min(pause, _PAUSE_MAX_S))
            if serving >= 0 and pause > 1:
                return  # it never came up: whoever waits is told

    def close(self) -> None:
        """Takes the mount away, and ends what still packs."""
        for process in list(self._packing.values()):
            process.kill()
            process.wait()
        _libc.umount2(os.fsencode(self._config.mount), _FORCE)
        _libc.umount2(os.fsencode(self._config.mount), _DETACH)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._config.socket)
        for handle in (self._fuse, self._lock):
            os.close(handle)
        self._listener.close()

    # --- inner parts ---

    def _take_over(self) -> None:
        """Makes what an earlier service left ours; its session is over, its mount may be there."""
        while os.path.ismount(self._config.mount) or _is_dead(self._config.mount):
            if _libc.umount2(os.fsencode(self._config.mount), _DETACH) < 0:
                number = ctypes.get_errno()
                raise StorageFailed(
                    f"unmounting {self._config.mount}: {os.strerror(number)}", errno=number
                )
        for name in _THEIRS:
            take_cache(os.path.join(self._root, name), BLOBS_UID)
        for name in os.listdir(os.path.join(self._root, "open")):
            take_cache(os.path.join(self._root, "open", name), BLOBS_UID)
            with contextlib.suppress(FileNotFoundError):  # who had it open is gone with the session
                os.unlink(os.path.join(self._root, "open", name, "opens"))

    def _mount(self) -> int:
        with storage_errors("opening /dev/fuse"):
            fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
        where = os.fsencode(self._config.mount)
        if _libc.mount(b"skerry-disks", where, b"fuse.skerry", _NOSUID | _NODEV, options) < 0:
            number = ctypes.get_errno()
            os.close(fuse)
            text = f"mounting {self._config.mount}: {os.strerror(number)}"
            raise StorageFailed(text, errno=number)
        return fuse

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._config.socket)
        mask = os.umask(0o177)
        try:
            with storage_errors(f"listening at {self._config.socket}"):
                listener.bind(self._config.socket)
        finally:
            os.umask(mask)
        listener.listen(16)
        return listener

    def _start(self) -> subprocess.Popen[bytes]:
        heard, told = os.pipe()
        listener = self._listener.fileno()
        # Within what a pipe holds, so that nobody waits.
        os.write(told, msgspec.json.encode(self._config))
        os.close(told)
        arguments = [str(self._fuse), str(listener), str(heard), "--root", self._root]
        try:
            return subprocess.Popen(
                [sys.executable, "-m", "skerry.images.disks.service", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._log(),
                pass_fds=(self._fuse, listener, heard, self._lock),
                cwd="/",
            )
        finally:
            os.close(heard)

    def _log(self) -> IO[bytes]:
        path = os.path.join(self._root, "log")
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_size > _LOG_BYTES_MAX:
                os.truncate(path, 0)
        return open(path, "ab")

    def _pack(self, path: str) -> None:
        """Starts what packs a job, unless it runs already; it is told no more than its job's path."""
        jobs = os.path.join(self._root, "jobs")
        running = self._packing.get(path)
        if os.path.dirname(path) != jobs or (running is not None and running.poll() is None):
            return
        with self._log() as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "skerry.images.disks.packing", path],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=file,
                cwd="/",
            )
        self._packing[path] = process
        pipe = cast("IO[bytes]", process.stdin)
        with contextlib.suppress(BrokenPipeError):
            pipe.write(msgspec.json.encode(self._config) + b"\n")
            pipe.flush()
        threading.Thread(target=self._await, args=(path, process), daemon=True).start()

    def _await(self, path: str, process: subprocess.Popen[bytes]) -> None:
        """Sees to it that a job has a result, and that the service may remove it."""
        process.wait()
        with contextlib.suppress(BrokenPipeError):
            cast("IO[bytes]", process.stdin).close()
        self._packing.pop(path, None)
        done = f"{path}.done"
        if process.returncode != 0 and not os.path.exists(done):
            text = f"the packing process ended with {process.returncode}"
            state.save(done, PackResult(error=("unavailable", text)))


def _is_dead(path: str) -> bool:
    """Says whether a mount is there whose server is gone."""
    try:
        os.stat(path)
    except OSError:
        return True
    return False


def main() -> int:
    """Keeps disks; returns the exit status of the command, which ends before."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    name_process(NAME)
    try:
        with open(int(sys.argv[1]), "rb") as file:
            config = msgspec.json.decode(file.read(), type=ServiceConfig)
        keeper = Keeper(config)
    except SkerryError as error:
        log.error("disks cannot be served: %s", error)  # noqa: TRY400 - it says where
        return 1
    heard, told = os.pipe2(os.O_CLOEXEC)
    if os.fork():
        os.close(told)
        return 0 if os.read(heard, 1) else 1
    os.close(heard)
    os.setsid()
    with open(os.path.join(config.root, "log"), "ab") as file, open(os.devnull, "rb") as null:
        os.dup2(null.fileno(), 0)
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    try:
        keeper.run(told)
    finally:
        keeper.close()
    return 0


if __name__ == "__main__":
    os._exit(main())
