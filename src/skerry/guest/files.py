"""Files of a sandbox, through the agent's file helper (native/PROTOCOL.md, "File helper").

The helper acts inside, as the target user, so it can do what that user can and no more. What comes
back is hostile: `skerry.guest.records` parses it within bounds, and a failure is believed only as a
failure. Errors: NotFound (ENOENT), FileDenied, DiskFull and FileRefused carry `errno` and `path`;
Unavailable when the channel is lost: then a change may or may not have been made.

Nothing waits for ever on a helper that is stopped inside: operations on names have a timeout, and a
transfer in which neither side moves for STALL_S is given up (FileRefused, ETIMEDOUT).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Final

from skerry.errors import FileRefused
from skerry.guest.api import Kind, Operation, Outcome, Stream
from skerry.guest.client import GuestClient
from skerry.guest.operation import RunningOperation
from skerry.guest.output import MemorySink, PullSink
from skerry.guest.records import (
    NAME_BYTES_MAX,
    event_reader,
    helper_error,
    info_reader,
    parse_records,
    parse_usage,
)
from skerry.guest.stall import Stall
from skerry.spec.files import FileInfo, TreeUsage, WatchEvent

LISTING_BYTES_MAX: Final = 16 * 1024 * 1024
QUICK_MS: Final = 60_000  # for what looks at or changes one name
LONG_MS: Final = 3_600_000  # for what goes through a tree
STALL_S: Final = 300.0
MODE_NEW: Final = 0o644  # of a file that is made
AHEAD_BYTES: Final = 512 * 1024  # of a file may wait in the node for a client that is slower
_EIO, _E2BIG, _ETIMEDOUT = 5, 7, 110
NewOperation = Callable[[], tuple[int, bytes]]


class GuestFiles:
    """The file operations of one sandbox, as one user, relative to one directory.

    With a cell they are that cell's: its files, by default as the user of its programs.
    `new_operation` gives a fresh handle and operation id each time. An operation whose caller goes
    away (an exception, a cancelled task, an iterator that is closed early) is cancelled inside.
    """

    def __init__(
        self,
        client: GuestClient,
        new_operation: NewOperation,
        *,
        user: bytes | None = None,
        cwd: bytes | None = None,
        cell: int | None = None,
    ) -> None:
        self._client = client
        self._new_operation = new_operation
        self._user = user
        self._cwd = cwd
        self._cell = cell

    async def stat(self, path: str) -> FileInfo:
        """Returns what a path is; a link is not followed."""
        return _one(await self._records(path, "stat", path), path)

    async def list_dir(self, path: str) -> list[FileInfo]:
        """Returns the entries of a directory; FileRefused (E2BIG) beyond LISTING_BYTES_MAX."""
        return await self._records(path, "list", path)

    async def mkdir(self, path: str, mode: int = 0o755, *, parents: bool = False) -> None:
        """Makes a directory; with `parents` also those above it, and one that exists is fine."""
        await self._records(path, "mkdir", path, f"{mode:o}", _flags(p=parents))

    async def follow(self, path: str) -> FileInfo:
        """Returns what a path leads to."""
        return _one(await self._records(path, "follow", path), path)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Removes a file, a link, or a directory, which must be empty unless `recursive`."""
        await self._records(path, "remove", path, _flags(r=recursive), ms=LONG_MS)

    async def rename(self, path: str, to: str) -> None:
        """Moves within one file system, replacing what is there."""
        await self._records(path, "rename", path, to)

    async def move(
        self, path: str, to: str, *, parents: bool = False, exclusive: bool = False
    ) -> None:
        """Moves, replacing what is there; onto another file system by a copy, which costs more."""
        await self._records(path, "move", path, to, _flags(p=parents, x=exclusive), ms=LONG_MS)

    async def copy(
        self,
        path: str,
        to: str,
        *,
        recursive: bool = False,
        parents: bool = False,
        exclusive: bool = False,
    ) -> None:
        """Copies content, modes (no set-id bits) and times; files appear whole, holes stay."""
        flags = _flags(r=recursive, p=parents, x=exclusive)
        await self._records(path, "copy", path, to, flags, ms=LONG_MS)

    async def chmod(self, path: str, mode: int) -> None:
        """Sets the permission bits."""
        await self._records(path, "chmod", path, f"{mode:o}")

    async def chown(
        self, path: str, owner: str, *, recursive: bool = False, follow: bool = True
    ) -> None:
        """Gives a path, or all below it, to "USER", "USER:GROUP" or ":GROUP"."""
        flags = _flags(r=recursive, h=not follow)
        await self._records(path, "chown", path, owner, flags, ms=LONG_MS)

    async def symlink(
        self, path: str, target: str, *, parents: bool = False, replace: bool = False
    ) -> None:
        """Makes a symbolic link at `path`."""
        await self._records(path, "symlink", path, target, _flags(p=parents, f=replace))

    async def link(self, path: str, to: str, *, parents: bool = False) -> None:
        """Gives the file `to` the further name `path`."""
        await self._records(path, "link", path, to, _flags(p=parents))

    async def truncate(self, path: str, size: int) -> None:
        """Cuts a file, or lengthens it by a hole."""
        await self._records(path, "truncate", path, str(size))

    async def utime(self, path: str, atime_ns: int | None, mtime_ns: int | None) -> None:
        """Sets times, of a link itself; None keeps one, both None: now."""
        now = atime_ns is None and mtime_ns is None
        times = [
            "now" if now else "keep" if time is None else str(time) for time in (atime_ns, mtime_ns)
        ]
        await self._records(path, "utime", path, *times)

    async def usage(self, path: str) -> TreeUsage:
        """Returns what a tree takes up; other file systems below it are not part of it."""
        return parse_usage(await self._answer(path, "usage", path, ms=LONG_MS))

    async def walk(
        self, path: str, *, depth: int | None = None, types: str = "", glob: str = ""
    ) -> AsyncGenerator[list[FileInfo]]:
        """Yields what is below a directory, some entries at a time, in constant memory.

        Names are paths relative to it, parents come before children, links are not followed. A
        directory that could not be looked into has `unreadable` set.
        """
        reader = info_reader()
        words = ("walk", path, str(-1 if depth is None else depth), types or "-", glob)
        async for piece in self._pull(path, *words):
            if found := reader.feed(piece):
                yield found
        reader.finish()

    async def watch(self, path: str, *, recursive: bool = False) -> AsyncGenerator[WatchEvent]:
        """Yields what happens, READY first, until `path` itself is gone: its removal is the last."""
        reader = event_reader(path)
        async for piece in self._pull(path, "watch", path, _flags(r=recursive), stall_s=None):
            for event in reader.feed(piece):
                yield event
        reader.finish()

    async def read(self, path: str, offset: int = 0, length: int = -1) -> AsyncGenerator[bytes]:
        """Yields the content from `offset` on, `length` bytes or to the end, in constant memory.

        The end is where it was when the file was opened, however it grows.
        """
        async for piece in self._pull(path, "read", path, str(offset), str(length)):
            yield piece

    async def tail(self, path: str, length: int) -> AsyncGenerator[bytes]:
        """Yields the last bytes, at most `length`."""
        async for piece in self._pull(path, "tail", path, str(length)):
            yield piece

    async def read_sparse(self, path: str) -> AsyncGenerator[bytes]:
        """Yields a map of the pieces that hold data, then the pieces (GNU tar's sparse 1.0)."""
        async for piece in self._pull(path, "sparse", path):
            yield piece

    async def write(
        self,
        path: str,
        content: AsyncIterator[bytes],
        *,
        mode: int | None = None,
        parents: bool = False,
        append: bool = False,
        exclusive: bool = False,
        sparse: bool = False,
    ) -> FileInfo:
        """Writes a file as a whole and returns what it is now: no reader sees half of it.

        Without a mode a file that is there keeps the one that it has; a new one gets 0o644. If
        `content` raises, the file stays as it was, and the exception goes on to the caller. With
        `sparse` the content is a map of pieces and the pieces.
        """
        flags = _flags(p=parents, a=append, x=exclusive, s=sparse, k=mode is None)
        octal = f"{MODE_NEW if mode is None else mode:o}"
        return await self._write(path, content, "write", path, octal, flags)

    async def put(
        self, path: str, content: AsyncIterator[bytes], offset: int, *, parents: bool = False
    ) -> FileInfo:
        """Writes over what is there from `offset` on, in place; a missing file is made."""
        return await self._write(path, content, "put", path, str(offset), _flags(c=True, p=parents))

    async def tree_get(self, path: str) -> AsyncGenerator[bytes]:
        """Yields a pax tar of a directory's content, in constant memory."""
        async for piece in self._pull(path, "tree-get", path):
            yield piece

    async def tree_put(self, path: str, content: AsyncIterator[bytes]) -> None:
        """Unpacks a tar beneath a directory; after a failure some members may be there."""
        await self._push(path, content, MemorySink(NAME_BYTES_MAX), "tree-put", path)

    # --- inside ------------------------------------------------------------------------------------

    async def _write(self, path: str, content: AsyncIterator[bytes], *words: str) -> FileInfo:
        sink = MemorySink(2 * NAME_BYTES_MAX)
        await self._push(path, content, sink, *words)
        return _one(parse_records(sink.output(Stream.STDOUT)), path)

    def _start(
        self, sink: MemorySink | PullSink, words: tuple[str, ...], *, stdin: bool, ms: int = 0
    ) -> RunningOperation:
        handle, op_id = self._new_operation()
        operation = Operation(
            handle=handle,
            op_id=op_id,
            kind=Kind.FILE,
            argv=tuple(os.fsencode(word) for word in words),
            cwd=self._cwd,
            user=self._user,
            stdin=stdin,
            timeout_ms=ms,
            cell=self._cell,
        )
        return self._client.start(operation, sink)

    async def _records(self, path: str, *words: str, ms: int = QUICK_MS) -> list[FileInfo]:
        return parse_records(await self._answer(path, *words, ms=ms))

    async def _answer(self, path: str, *words: str, ms: int = QUICK_MS) -> bytes:
        sink = MemorySink(LISTING_BYTES_MAX)
        running = self._start(sink, words, stdin=False, ms=ms)
        try:
            outcome = await running.wait()
        finally:
            _finish(running)
        _check(outcome, sink.output(Stream.STDERR), path)
        if sink.truncated:
            raise FileRefused(f"{path}: too many entries", errno=_E2BIG, path=path)
        return sink.output(Stream.STDOUT)

    async def _push(
        self, path: str, content: AsyncIterator[bytes], sink: MemorySink, *words: str
    ) -> None:
        running = self._start(sink, words, stdin=True)
        try:
            async with Stall(STALL_S) as stall:
                await _feed(running, content, stall)
                outcome = await running.wait()
        except TimeoutError:
            raise _stalled(path) from None
        finally:
            _finish(running)
        _check(outcome, sink.output(Stream.STDERR), path)

    async def _pull(
        self, path: str, *words: str, stall_s: float | None = STALL_S
    ) -> AsyncGenerator[bytes]:
        sink = PullSink(bytes_max=AHEAD_BYTES)
        running = self._start(sink, words, stdin=False)
        try:
            running.on_ended(sink.tee.finish)
            while True:
                # Nothing waits here for a piece that has come, and most have.
                if not (piece := sink.tee.take_here()):
                    try:
                        async with asyncio.timeout(stall_s):
                            piece = await sink.tee.take()
                    except TimeoutError:
                        raise _stalled(path) from None
                if not piece:
                    break
                yield piece
            outcome = await running.wait()
        finally:
            sink.tee.close()
            _finish(running)
        _check(outcome, sink.errors(), path)


async def _feed(running: RunningOperation, content: AsyncIterator[bytes], stall: Stall) -> None:
    """Gives an operation its standard input; returns when it is closed, or the operation has ended.

    What `content` raises is raised here. A client that stands still holds up nothing: it is not
    waited for once nobody inside takes any more.
    """

    async def feed() -> None:
        async for piece in content:
            stall.moved()
            await running.write_stdin(piece)
            stall.moved()
        await running.close_stdin()

    ended = asyncio.get_running_loop().create_future()
    running.on_ended(lambda: None if ended.done() else ended.set_result(None))
    feeding = asyncio.ensure_future(feed())
    try:
        either: set[asyncio.Future[Any]] = {feeding, ended}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            feeding.result()
    finally:
        if not feeding.done():
            feeding.cancel()
            await asyncio.wait({feeding})
        if not feeding.cancelled():
            feeding.exception()  # nobody hears of it once the operation has ended


def _flags(**flags: bool) -> str:
    return "".join(letter for letter, given in flags.items() if given) or "-"


def _stalled(path: str) -> FileRefused:
    message = f"{path}: nothing moved for {STALL_S:g} s"
    return FileRefused(message, errno=_ETIMEDOUT, path=path)


def _finish(running: RunningOperation) -> None:
    """Lets the agent forget the operation, or ends it if its caller goes away before its end."""
    if running.ended:
        running.acknowledge()
    else:
        running.abandon()


def _check(outcome: Outcome, stderr: bytes, path: str) -> None:
    error = helper_error(outcome, stderr, path)
    if error is not None:
        raise error


def _one(records: list[FileInfo], path: str) -> FileInfo:
    if len(records) != 1:
        raise FileRefused(
            f"{path}: the file helper answered {len(records)} records", errno=_EIO, path=path
        )
    return records[0]
