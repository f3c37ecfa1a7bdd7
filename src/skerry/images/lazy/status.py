"""The process's own socket: tells how it stands, and hands back the session's descriptor.

One packet asks, one answers: `status` gets JSON with a copy of the descriptor of /dev/fuse, so that
whoever lost theirs has it again; `stop` ends the process. The end of a connection is the process's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
from collections.abc import Callable
from typing import Final

import msgspec

log = logging.getLogger("skerry.blobs")

CONNECTIONS_MAX: Final = 8
ANSWER_BYTES_MAX: Final = 64 << 10


class StatusSocket:
    """Listens on `path`, for root and for who made it."""

    def __init__(self, path: str, fuse: int) -> None:
        self._fuse = fuse
        self._allowed = {0, os.geteuid()}
        self._places = threading.BoundedSemaphore(CONNECTIONS_MAX)
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
        threading.Thread(target=self._accept, name="status", daemon=True).start()

    def _accept(self) -> None:
        while True:
            self._places.acquire()
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                log.error("status socket: %s", error)  # noqa: TRY400
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            size = struct.calcsize("3i")
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            allowed = struct.unpack("3i", peer)[1] in self._allowed
            while allowed and (asked := connection.recv(64)):
                if asked == b"stop":
                    self._stop()
                    break
                answer = msgspec.json.encode(self._tell())[:ANSWER_BYTES_MAX]
                socket.send_fds(connection, [answer], [self._fuse])
        self._places.release()
