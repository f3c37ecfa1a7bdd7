"""Client of `skerry-spawn` over its SOCK_SEQPACKET socket: requests with ids, answers, events.

One object is one connection; the newest connection wins, so a second node on the same run directory
takes the launcher away from the first. What the requests mean stands in native/PROTOCOL.md, their
types in `skerry.wire.plan`; `launcher_process` beside this file starts and finds launchers.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable

import msgspec

from skerry.errors import Overloaded, SkerryError, StorageFailed, Unavailable
from skerry.wire import plan, replies
from skerry.wire.frames import HEADER_BYTES, PAYLOAD_BYTES_MAX, ProtocolError

REQUEST_TIMEOUT_S = 60.0
_PACKET_MAX = HEADER_BYTES + PAYLOAD_BYTES_MAX
_STORAGE = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}
_FULL = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}


class LauncherFailed(Exception):
    """The launcher answered FAIL: which step of the request, why, and details."""

    def __init__(self, request: str, failure: replies.Failure) -> None:
        self.request, self.step, self.errno = request, failure.error_step, failure.errno
        why = os.strerror(failure.errno) if failure.errno else "failed"
        details = f": {failure.text}" if failure.text else ""
        super().__init__(f"{request}: {failure.error_step or 'no step'}: {why}{details}")

    def to_error(self) -> SkerryError:
        """Returns the platform error that this is."""
        fields = {"step": self.step, "errno": self.errno}
        if self.errno in _STORAGE:
            return StorageFailed(str(self), **fields)
        if self.errno in _FULL:
            return Overloaded(str(self), limit=f"host: {self.step}", retry_after_s=1.0, **fields)
        return Unavailable(f"the launcher failed: {self}", **fields)


class Launcher:
    """One connection. After `lost` is set every request raises Unavailable."""

    def __init__(self, sock: socket.socket, on_exited: Callable[[replies.Exited], None]) -> None:
        self._sock = sock
        self._on_exited = on_exited
        self._loop = asyncio.get_running_loop()
        self._next_id = 1
        self._waiting: dict[int, tuple[str, asyncio.Future[replies.Reply]]] = {}
        self._unsent: deque[tuple[bytes, int | None]] = deque()  # with descriptors of our own
        self.lost = asyncio.Event()
        self._loop.add_reader(sock, self._readable)

    @classmethod
    async def connect(cls, path: str, on_exited: Callable[[replies.Exited], None]) -> Launcher:
        """Connects to a running launcher; OSError if there is none."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            await asyncio.get_running_loop().sock_connect(sock, path)
        except BaseException:
            sock.close()
            raise
        return cls(sock, on_exited)

    def close(self) -> None:
        """Closes the connection; the launcher runs on. Idempotent."""
        if self._sock.fileno() < 0:
            return
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        for _, descriptor in self._unsent:
            _close(descriptor)
        self._unsent.clear()
        for name, future in self._waiting.values():
            if not future.done():
                future.set_exception(Unavailable(f"the launcher was lost during {name}"))
                future.exception()  # whoever gave up waiting must not be warned about it
        self._waiting.clear()
        self.lost.set()

    async def ask(
        self,
        request: plan.Request,
        timeout_s: float = REQUEST_TIMEOUT_S,
        *,
        descriptor: int | None = None,
    ) -> replies.Reply:
        """Asks, with a copy of a descriptor if one is given, and returns the answer.

        Raises LauncherFailed for FAIL; Unavailable if the connection is lost or nothing comes in
        time: then the request may or may not be carried out.
        """
        name = request.CODE.name
        if self.lost.is_set():
            raise Unavailable(f"the launcher is not connected: {name} was not sent")
        number = self._next_id
        self._next_id = self._next_id % 0xFFFF_FFFF + 1
        packet = request.encode(number)
        future: asyncio.Future[replies.Reply] = self._loop.create_future()
        self._waiting[number] = (name, future)
        self._send(packet, descriptor)
        try:
            async with asyncio.timeout(timeout_s):
                reply = await future
        except TimeoutError:
            text = f"the launcher did not answer {name} within {timeout_s:g} s"
            raise Unavailable(text) from None
        finally:
            self._waiting.pop(number, None)
        if reply.failure is not None:
            raise LauncherFailed(name, reply.failure)
        return reply

    async def status(self, timeout_s: float = REQUEST_TIMEOUT_S) -> replies.StatusReply:
        """Returns what the launcher is and holds, all pages in one; raises as `ask` does."""
        page = whole = (await self.ask(plan.Status(), timeout_s)).status()
        while page.offset is not None:
            page = (await self.ask(plan.Status(page.offset), timeout_s)).status()
            whole = msgspec.structs.replace(
                whole, instance=whole.instance + page.instance, slot=whole.slot + page.slot
            )
        return msgspec.structs.replace(whole, offset=None)

    def _send(self, packet: bytes, descriptor: int | None) -> None:
        self._unsent.append((packet, None if descriptor is None else os.dup(descriptor)))
        if len(self._unsent) == 1:
            self._writable()

    def _writable(self) -> None:
        while self._unsent:
            packet, descriptor = self._unsent[0]
            try:
                if descriptor is None:
                    self._sock.send(packet)
                else:
                    socket.send_fds(self._sock, [packet], [descriptor])
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._sock, self._writable)
                return
            except OSError:
                self.close()
                return
            self._unsent.popleft()
            _close(descriptor)
        self._loop.remove_writer(self._sock)

    def _readable(self) -> None:
        while self._sock.fileno() >= 0:
            descriptor = None
            try:
                packet, passed, _, _ = socket.recv_fds(
                    self._sock, _PACKET_MAX, 1, socket.MSG_CMSG_CLOEXEC
                )
                descriptor = passed[0] if passed else None
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                packet = b""
            if not packet:
                self.close()
                return
            try:
                self._received(replies.decode(packet), descriptor)
            except ProtocolError:
                _close(descriptor)
                self.close()
                return

    def _received(self, packet: replies.Reply | replies.Exited, descriptor: int | None) -> None:
        if isinstance(packet, replies.Exited):
            _close(descriptor)
            self._on_exited(packet)
            return
        _, future = self._waiting.pop(packet.request_id, ("", None))
        if future is None or future.done():
            _close(descriptor)  # whoever asked has given up
        elif descriptor is None:
            future.set_result(packet)
        else:
            future.set_result(msgspec.structs.replace(packet, descriptor=descriptor))


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)
