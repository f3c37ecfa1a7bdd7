"""Which node this is: its lock, its name and its epoch, kept in the state directory.

STATE/
  lock      held (flock) by the daemon; its text says who: "pid=4711 socket=/run/..."
  name      five characters of base32, drawn once
  epoch     a decimal number, raised at every start
"""

from __future__ import annotations

import fcntl
import os
import secrets

from skerry.errors import Conflict, StorageFailed
from skerry.spec import ids


class Identity:
    """The node's name and epoch, while it holds the lock on its state directory."""

    def __init__(self, name: str, epoch: int, lock: int) -> None:
        self.name = name
        self.epoch = epoch
        self._lock = lock

    def sandbox_id(self) -> ids.SandboxId:
        """Returns a new, unguessable id."""
        return ids.sandbox_id(self.name, self.epoch, secrets.token_bytes(8))

    def release(self) -> None:
        """Lets go of the lock; idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def claim(state_dir: str, socket: str) -> Identity:
    """Takes the state directory for this process and raises its epoch.

    Raises Conflict, which names the holder, while another daemon has it; StorageFailed if the
    directory cannot be written.
    """
    try:
        os.makedirs(state_dir, mode=0o700, exist_ok=True)
        lock = os.open(
            os.path.join(state_dir, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
    except OSError as error:
        raise StorageFailed(f"the state directory {state_dir} cannot be used: {error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(lock, 4096).decode("utf-8", "replace").strip() or "unknown"
        os.close(lock)
        raise Conflict(
            f"{state_dir} belongs to a running node ({holder})", holder=holder
        ) from error
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"pid={os.getpid()} socket={socket}\n".encode(), 0)
        name = _read(state_dir, "name")
        if ids.NODE_PATTERN.fullmatch(name) is None:
            name = ids.base32(int.from_bytes(secrets.token_bytes(8), "big"), 5)
            _write(state_dir, "name", name)
        text = _read(state_dir, "epoch")
        epoch = int(text) + 1 if text.isdecimal() else 1
        _write(state_dir, "epoch", str(epoch))
    except OSError as error:
        os.close(lock)
        raise StorageFailed(f"the state directory {state_dir} cannot be used: {error}") from error
    return Identity(name, epoch, lock)


def _read(directory: str, name: str) -> str:
    try:
        with open(os.path.join(directory, name), encoding="ascii", errors="replace") as file:
            return file.read(64).strip()
    except FileNotFoundError:
        return ""


def _write(directory: str, name: str, text: str) -> None:
    path = os.path.join(directory, name)
    with open(path + ".new", "w", encoding="ascii") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".new", path)
