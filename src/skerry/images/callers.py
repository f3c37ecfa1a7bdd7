"""Who connects to a process's own socket: root and who runs it, a few at a time, each in a thread."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
from collections.abc import Callable

log = logging.getLogger("skerry.images")


class Callers:
    """Serves each connection with `serve`, which may raise OSError when the caller is gone."""

    def __init__(
        self, listener: socket.socket, serve: Callable[[socket.socket], None], *, at_once: int
    ) -> None:
        self._listener, self._serve = listener, serve
        self._allowed = {0, os.geteuid()}
        self._places = threading.BoundedSemaphore(at_once)

    def start(self) -> None:
        """Serves in threads from now on."""
        threading.Thread(target=self._accept, name="callers", daemon=True).start()

    def _accept(self) -> None:
        while True:
            self._places.acquire()
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                log.error("nobody is answered any more: %s", error)  # noqa: TRY400
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(OSError):
                size = struct.calcsize("3i")
                peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
                if struct.unpack("3i", peer)[1] in self._allowed:
                    self._serve(connection)
        finally:
            self._places.release()
