"""The control socket of the disk service: a line of JSON asks, a line answers, for root alone."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Final

import msgspec

from skerry.errors import SkerryError, Unavailable, from_code
from skerry.images.callers import Callers

_LINE_BYTES_MAX: Final = 64 << 10
_ANSWER_BYTES_MAX: Final = 16 << 20
_AT_ONCE: Final = 16
_TIMEOUT_S: Final = 60.0
_RESTART_S, _PAUSE_S = 30.0, 0.1
_REPEATABLE: Final = {"status", "attach"}


class Request(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is asked: status, attach, snapshot, close or stop."""

    do: str
    id: str = ""
    name: str = ""
    discard: bool = False
    force: bool = False


class DiskView(msgspec.Struct, frozen=True, kw_only=True):
    """How an open disk stands."""

    id: str
    path: str  # of the file that is the disk
    name: str  # of the snapshot that it is based on
    digest: str
    size: int
    opens: int  # who has it open
    changed: bool  # there is something that is in no snapshot in the store yet
    local_bytes: int  # what was written takes on this node
    packing: tuple[str, ...] = ()  # snapshots taken, on their way to the store
    failed: dict[str, str] = {}  # snapshots that there will not be, and why


class ServiceView(msgspec.Struct, frozen=True, kw_only=True):
    """How the service stands."""

    pid: int
    disks: tuple[DiskView, ...]
    stats: dict[str, float] = {}


class _Answer(msgspec.Struct, omit_defaults=True):
    view: ServiceView | None = None
    error: tuple[str, str] | None = None


class Control:
    """Answers on a socket that listens; each connection asks once."""

    def __init__(self, listener: socket.socket, answer: Callable[[Request], ServiceView]) -> None:
        self._listener, self._answer = listener, answer

    def start(self) -> None:
        """Answers in threads."""
        Callers(self._listener, self._serve, at_once=_AT_ONCE).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(_TIMEOUT_S)
        connection.sendall(msgspec.json.encode(self._result(connection)) + b"\n")

    def _result(self, connection: socket.socket) -> _Answer:
        with connection.makefile("rb") as file:
            line = file.readline(_LINE_BYTES_MAX)
        try:
            return _Answer(view=self._answer(msgspec.json.decode(line, type=Request)))
        except SkerryError as error:
            return _Answer(error=(error.code, error.message))
        except msgspec.DecodeError as error:
            return _Answer(error=("invalid_request", f"not understood: {error}"))
        except OSError as error:
            return _Answer(error=("storage_failed", f"{error}"))


def ask(path: str, request: Request) -> ServiceView:
    """Asks the service at a socket; raises what it raises, Unavailable if nobody answers there.

    While one service has died and the next one comes, what may be asked twice is.
    """
    until = time.monotonic() + (_RESTART_S if request.do in _REPEATABLE else 0.0)
    while True:
        try:
            return _ask(path, request)
        except (ConnectionResetError, BrokenPipeError, EOFError) as error:
            if time.monotonic() >= until:
                raise Unavailable(f"the disk service at {path} ended without an answer") from error
        except OSError as error:
            raise Unavailable(f"no disk service answers at {path}: {error}") from error
        time.sleep(_PAUSE_S)


def _ask(path: str, request: Request) -> ServiceView:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_TIMEOUT_S)
        connection.connect(path)
        connection.sendall(msgspec.json.encode(request) + b"\n")
        with connection.makefile("rb") as file:
            line = file.readline(_ANSWER_BYTES_MAX)
    if not line:
        raise EOFError
    try:
        answer = msgspec.json.decode(line, type=_Answer)
    except msgspec.DecodeError as error:
        raise Unavailable(f"the disk service at {path} is not of this version: {error}") from error
    if answer.error is not None:
        raise from_code(*answer.error, {})
    if answer.view is None:
        raise Unavailable(f"the disk service at {path} gave no answer")
    return answer.view
