"""Threads that take requests from /dev/fuse, and how they are answered."""

from __future__ import annotations

import errno
import logging
import os
import threading
from abc import ABC, abstractmethod
from typing import Final

from skerry.errors import SkerryError
from skerry.images.lazy import protocol
from skerry.images.lazy.pipes import Conveyor
from skerry.images.lazy.protocol import Request

_AGAIN: Final = {errno.EINTR, errno.EAGAIN, errno.ENOENT}
_JOIN_S: Final = 0.5
_ENDED: Final = {errno.ENODEV, errno.ECONNABORTED, errno.ENOTCONN}


class FuseLoop(ABC):
    """Serves one session until it ends. The session may be one that an earlier process served."""

    def __init__(self, fuse: int, threads: int, log: logging.Logger, request_bytes: int) -> None:
        self._fuse, self._log, self._request_bytes = fuse, log, request_bytes
        self._lock = threading.Lock()
        self._own = threading.local()
        self.ended = threading.Event()  # the session is over
        self._conveyors: list[Conveyor] = []
        self._threads = [
            threading.Thread(target=self._serve, name=f"serve-{at}", daemon=True)
            for at in range(threads)
        ]

    @abstractmethod
    def _handle(self, request: Request) -> None:
        """Answers a request, now or later; an exception is answered with EIO."""

    def _start_serving(self) -> None:
        """Asks again for what another process took and did not answer, and serves from now on."""
        try:
            os.write(self._fuse, protocol.resend())
        except OSError as error:  # before Linux 6.9: those reads end when the session does
            if error.errno in _ENDED:
                self.ended.set()
            self._log.info("requests are not handed out again: %s", error.strerror)
        for thread in self._threads:
            thread.start()

    def _stop_serving(self) -> None:
        """Ends the threads, but those that wait for the kernel or the store."""
        for thread in self._threads:
            thread.join(_JOIN_S)
        with self._lock:
            for conveyor in self._conveyors:
                conveyor.close()

    def _serve(self) -> None:
        buffer = bytearray(self._request_bytes)
        view = memoryview(buffer)
        while not self.ended.is_set():
            try:
                length = os.readv(self._fuse, (buffer,))
            except OSError as error:
                if error.errno in _AGAIN:
                    continue
                if error.errno not in _ENDED:
                    self._log.error("reading requests: %s", error)
                self.ended.set()
                return
            request = protocol.parse(view, length)
            try:
                self._handle(request)
            except SkerryError as error:
                self._log.error("platform fault: %s", error)
                self._refuse(request.unique, errno.EIO)
            except Exception:  # noqa: BLE001 - whoever asked gets an answer
                self._log.exception("request of type %d", request.op)
                self._refuse(request.unique, errno.EIO)

    def _answer(self, unique: int, data: bytes = b"") -> None:
        try:
            os.writev(self._fuse, (protocol.head(unique, len(data)), data))
        except OSError as error:
            self._unsent(error)

    def _refuse(self, unique: int, number: int) -> None:
        try:
            os.write(self._fuse, protocol.head(unique, error=number))
        except OSError as error:
            self._unsent(error)

    def _unsent(self, error: OSError) -> None:
        """Nobody waits for it any more (ENOENT), or the session is over."""
        if error.errno not in _ENDED and error.errno != errno.ENOENT:
            self._log.error("the kernel refused an answer: %s", error)

    def _conveyor(self) -> Conveyor:
        """Returns this thread's."""
        found: Conveyor | None = getattr(self._own, "conveyor", None)
        if found is None:
            found = self._own.conveyor = Conveyor(self._fuse)
            with self._lock:
                self._conveyors.append(found)
        return found
