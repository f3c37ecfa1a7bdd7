"""The process's own socket: tells how it stands, and hands back the session's descriptor.

One packet asks, one answers: `status` gets JSON with a copy of the descriptor of /dev/fuse, so that
whoever lost theirs has it again; `stop` ends the process. The end of a connection is the process's.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from typing import Final

import msgspec

from skerry.images.callers import Callers

CONNECTIONS_MAX: Final = 8
ANSWER_BYTES_MAX: Final = 64 << 10


class StatusSocket:
    """Listens on `path`, for root and for who made it."""

    def __init__(self, path: str, fuse: int) -> None:
        self._fuse = fuse
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        mask = os.umask(0o177)
        try:
            self._listener.bind(path)
        finally:
            os.umask(mask)
        self._listener.listen(CONNECTIONS_MAX)

    def start(self, tell: Callable[[], dict[str, object]], stop: Callable[[], None]) -> None:
        """Serves in threads."""
        self._tell, self._stop = tell, stop
        Callers(self._listener, self._serve, at_once=CONNECTIONS_MAX).start()

    def _serve(self, connection: socket.socket) -> None:
        while asked := connection.recv(64):
            if asked == b"stop":
                self._stop()
                break
            answer = msgspec.json.encode(self._tell())[:ANSWER_BYTES_MAX]
            socket.send_fds(connection, [answer], [self._fuse])
