"""A launcher without privilege: answers the socket's requests as told, keeps what was asked."""

from __future__ import annotations

import asyncio
import os
import socket

from skerry.wire import replies
from skerry.wire.fields import FieldBuilder, Fields
from skerry.wire.frames import Frame, LauncherFrame, Tag, decode_frame, encode_frame

OK_FIELDS = {
    LauncherFrame.STATUS: lambda: (
        FieldBuilder().u64(Tag.PID, os.getpid()).u64(Tag.VERSION, 1).payload()
    ),
    LauncherFrame.UPPER_OPEN: lambda: (
        FieldBuilder().text(Tag.FEATURE, "quota").text(Tag.FEATURE, "snapshot").payload()
    ),
    LauncherFrame.START: lambda: (
        FieldBuilder().u64(Tag.PID, os.getpid()).text(Tag.STEP_US, "total=1").payload()
    ),
    LauncherFrame.STOP: lambda: (
        FieldBuilder().u64(Tag.WAIT_STATUS, 9).u64(Tag.SLOT_CLEAN, 1).payload()
    ),
}


class FakeLauncher:
    """Listens on a path. `fail` maps a request to (step, errno); `mute` ones get no answer."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.asked: list[tuple[LauncherFrame, Fields]] = []
        self.fail: dict[LauncherFrame, tuple[str, int]] = {}
        self.mute: set[LauncherFrame] = set()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._listener.bind(path)
        self._listener.listen(4)
        self._client: socket.socket | None = None
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        self.drop()
        self._client, _ = self._listener.accept()
        self._client.setblocking(False)
        asyncio.get_running_loop().add_reader(self._client, self._readable)

    def _readable(self) -> None:
        try:
            packet = self._client.recv(70_000)
        except BlockingIOError:
            return
        if not packet:
            self.drop()
            return
        frame: Frame = decode_frame(packet)
        kind = LauncherFrame(frame.type)
        self.asked.append((kind, Fields(frame.payload)))
        if kind in self.mute:
            return
        if kind in self.fail:
            step, number = self.fail[kind]
            payload = FieldBuilder().text(Tag.ERROR_STEP, step).u64(Tag.ERRNO, number).payload()
            self.send(LauncherFrame.FAIL, frame.stream, payload)
        else:
            self.send(LauncherFrame.OK, frame.stream, OK_FIELDS.get(kind, bytes)())

    def send(self, kind: LauncherFrame, request: int, payload: bytes) -> None:
        self._client.send(encode_frame(kind, 0, request, payload))

    def exited(self, instance: str, status: int) -> None:
        event = replies.Exited(instance=instance, wait_status=status)
        self.send(LauncherFrame.EXITED, 0, event.payload())

    def count(self, kind: LauncherFrame) -> int:
        return sum(asked is kind for asked, _ in self.asked)

    def drop(self) -> None:
        """Drops the client, as a death would."""
        if self._client is not None:
            asyncio.get_running_loop().remove_reader(self._client)
            self._client.close()
            self._client = None

    async def until_asked(self, count: int) -> None:
        while len(self.asked) < count:  # noqa: ASYNC110 - one turn of the loop at a time
            await asyncio.sleep(0)

    def close(self) -> None:
        self.drop()
        if self._listener.fileno() < 0:
            return
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        os.unlink(self.path)
