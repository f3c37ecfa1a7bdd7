"""Which node this is: its lock, its name and its epoch, kept in the state directory.

RUN/lock    held (flock) by the daemon: two nodes must not share a launcher's socket
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
    """The node's name and epoch, while it holds the locks on its directories."""

    def __init__(self, name: str, epoch: int, *locks: int) -> None:
        self.name = name
        self.epoch = epoch
        self._locks = locks

    def sandbox_id(self) -> ids.SandboxId:
        """Returns a new, unguessable id."""
        return ids.sandbox_id(self.name, self.epoch, secrets.token_bytes(8))

    def release(self) -> None:
        """Lets go of the locks; idempotent."""
        locks, self._locks = self._locks, ()
        for lock in locks:
            os.close(lock)


def claim(state_dir: str, socket: str) -> Identity:
    """Takes the state directory, and the socket's, for this process, and raises its epoch.

    Raises Conflict, which names the holder, while another daemon has one of them; StorageFailed if
    the state directory cannot be written.
    """
    lock = _take(state_dir, f"pid={os.getpid()} socket={socket}", "")
    place = -1
    try:
        place = _take(
            os.path.dirname(socket),
            f"pid={os.getpid()} state={state_dir}",
            ": a node of another state directory needs another run directory (--run)",
        )
        name = read_line(state_dir, "name")
        if ids.NODE_PATTERN.fullmatch(name) is None:
            name = ids.base32(int.from_bytes(secrets.token_bytes(8), "big"), 5)
            write_line(state_dir, "name", name)
        text = read_line(state_dir, "epoch")
        epoch = int(text) + 1 if text.isdecimal() else 1
        write_line(state_dir, "epoch", str(epoch))
    except BaseException as error:
        Identity("", 0, *(held for held in (lock, place) if held >= 0)).release()
        if isinstance(error, OSError):
            raise _unusable(state_dir, error) from error
        raise
    return Identity(name, epoch, lock, place)


def held(directory: str) -> bool:
    """Returns whether a running node has taken this state or run directory."""
    try:
        lock = os.open(os.path.join(directory, "lock"), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _take(directory: str, text: str, advice: str) -> int:
    """Returns the held lock of a directory, which says who holds it."""
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        lock = os.open(
            os.path.join(directory, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
    except OSError as error:
        raise _unusable(directory, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{text}\n".encode(), 0)
    except BlockingIOError as error:
        holder = os.read(lock, 4096).decode("utf-8", "replace").strip() or "unknown"
        os.close(lock)
        raise Conflict(
            f"{directory} belongs to a running node ({holder}){advice}", holder=holder
        ) from error
    except OSError as error:
        os.close(lock)
        raise _unusable(directory, error) from error
    return lock


def _unusable(directory: str, error: OSError) -> StorageFailed:
    return StorageFailed(f"the directory {directory} cannot be used: {error}")


def read_line(directory: str, name: str) -> str:
    """Returns a file of one line; "" if there is none."""
    try:
        with open(os.path.join(directory, name), encoding="ascii", errors="replace") as file:
            return file.read(64).strip()
    except FileNotFoundError:
        return ""


def write_line(directory: str, name: str, text: str) -> None:
    """Writes a file of one line, which is on the disk when this returns."""
    path = os.path.join(directory, name)
    with open(path + ".new", "w", encoding="ascii") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".new", path)
