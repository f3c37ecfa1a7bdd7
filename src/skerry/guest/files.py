"""Files of a sandbox, through the agent's file helper (native/PROTOCOL.md, "File helper").

The helper acts inside, as the target user, so it can do what that user can and no more. What comes
back is hostile: records are parsed within bounds, and a failure is believed only as a failure.
Errors: NotFound (ENOENT) and FileRefused carry `errno` and `path`; Unavailable when the channel is
lost: then a change may or may not have been made.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Callable
from typing import Final

from skerry.errors import FileRefused, NotFound, SkerryError
from skerry.guest.api import Kind, Operation, Outcome, Stream
from skerry.guest.client import GuestClient
from skerry.guest.operation import RunningOperation
from skerry.guest.output import MemorySink, PullSink
from skerry.spec.files import FileInfo, FileType

LISTING_BYTES_MAX: Final = 16 * 1024 * 1024
NAME_BYTES_MAX: Final = 4096
_EIO, _E2BIG, _ENOENT, _EINTR, _ETIMEDOUT = 5, 7, 2, 4, 110
_RECORD = re.compile(
    rb"([fdlpscb]) ([0-7]{1,6}) ([0-9]{1,10}) ([0-9]{1,10}) ([0-9]{1,19}) (-?[0-9]{1,20})"
    rb" ([0-9]{1,4}) ([0-9]{1,4})\n"
)
_FAILURE = re.compile(rb"([0-9]{1,4}) ([ -~]{1,64})")

NewOperation = Callable[[], tuple[int, bytes]]


def parse_records(data: bytes) -> list[FileInfo]:
    """Returns the records of `stat`, `list` and `write`; raises FileRefused if they are none."""
    found = []
    at = 0
    while at < len(data):
        match = _RECORD.match(data, at)
        if match is None:
            raise FileRefused(f"the file helper's answer is no record at byte {at}", errno=_EIO)
        kind, mode, uid, gid, size, mtime, name_length, link_length = match.groups()
        middle = match.end() + int(name_length)
        end = middle + int(link_length)
        name, link = data[match.end() : middle], data[middle:end]
        if end > len(data) or not name or b"\0" in name + link:
            raise FileRefused(f"the file helper's answer is cut off at byte {at}", errno=_EIO)
        found.append(
            FileInfo(
                name=os.fsdecode(name),
                type=FileType(kind.decode()),
                mode=int(mode, 8),
                uid=int(uid),
                gid=int(gid),
                size=int(size),
                mtime=int(mtime) / 1e9,
                target=os.fsdecode(link) if kind == b"l" else None,
            )
        )
        at = end
    return found


def helper_error(outcome: Outcome, stderr: bytes, path: str) -> SkerryError | None:
    """Returns the error that a helper's end means; None if it succeeded."""
    if outcome.exit_code == 0:
        return None
    errno, step = _EIO, "helper"
    match = _FAILURE.match(stderr)
    if outcome.error_step is not None:
        errno, step = outcome.errno or _EIO, outcome.error_step
    elif outcome.timed_out:
        errno, step = _ETIMEDOUT, "timeout"
    elif outcome.signal is not None:
        errno, step = _EINTR, f"killed by signal {outcome.signal}"
    elif match is not None:
        errno, step = int(match[1]), match[2].decode("ascii")
    message = f"{path}: {os.strerror(errno)} ({step})"
    if errno == _ENOENT and outcome.error_step is None:
        return NotFound(message, errno=errno, path=path)
    return FileRefused(message, errno=errno, path=path, step=step)


class GuestFiles:
    """The file operations of one sandbox, as one user, relative to one directory.

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
    ) -> None:
        self._client = client
        self._new_operation = new_operation
        self._user = user
        self._cwd = cwd

    async def stat(self, path: str) -> FileInfo:
        """Returns what a path is; a link is not followed."""
        return _one(await self._records(path, "stat", path), path)

    async def list_dir(self, path: str) -> list[FileInfo]:
        """Returns the entries of a directory; FileRefused (E2BIG) beyond LISTING_BYTES_MAX."""
        return await self._records(path, "list", path)

    async def mkdir(self, path: str, mode: int = 0o755, *, parents: bool = False) -> None:
        """Makes a directory; with `parents` also those above it, and one that exists is fine."""
        await self._records(path, "mkdir", path, f"{mode:o}", "p" if parents else "-")

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Removes a file, a link, or a directory, which must be empty unless `recursive`."""
        await self._records(path, "remove", path, "r" if recursive else "-")

    async def rename(self, path: str, to: str) -> None:
        """Moves within one file system, replacing what is there."""
        await self._records(path, "rename", path, to)

    async def chmod(self, path: str, mode: int) -> None:
        """Sets the permission bits."""
        await self._records(path, "chmod", path, f"{mode:o}")

    async def read(self, path: str, offset: int = 0, length: int = -1) -> AsyncIterator[bytes]:
        """Yields the content from `offset` on, `length` bytes or to the end, in constant memory."""
        async for piece in self._pull(path, "read", path, str(offset), str(length)):
            yield piece

    async def write(
        self,
        path: str,
        content: AsyncIterator[bytes],
        *,
        mode: int = 0o644,
        parents: bool = False,
        append: bool = False,
        exclusive: bool = False,
    ) -> FileInfo:
        """Writes a file as a whole and returns what it is now: no reader sees half of it.

        If `content` raises, the file stays as it was, and the exception goes on to the caller.
        """
        flags = "p" * parents + "a" * append + "x" * exclusive
        sink = MemorySink(2 * NAME_BYTES_MAX)
        await self._push(path, content, sink, "write", path, f"{mode:o}", flags or "-")
        return _one(parse_records(sink.output(Stream.STDOUT)), path)

    async def tree_get(self, path: str) -> AsyncIterator[bytes]:
        """Yields a pax tar of a directory's content, in constant memory."""
        async for piece in self._pull(path, "tree-get", path):
            yield piece

    async def tree_put(self, path: str, content: AsyncIterator[bytes]) -> None:
        """Unpacks a tar beneath a directory; after a failure some members may be there."""
        await self._push(path, content, MemorySink(NAME_BYTES_MAX), "tree-put", path)

    # --- inside ------------------------------------------------------------------------------------

    def _start(
        self, sink: MemorySink | PullSink, words: tuple[str, ...], *, stdin: bool
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
        )
        return self._client.start(operation, sink)

    async def _records(self, path: str, *words: str) -> list[FileInfo]:
        sink = MemorySink(LISTING_BYTES_MAX)
        running = self._start(sink, words, stdin=False)
        try:
            outcome = await running.wait()
        finally:
            _finish(running)
        _check(outcome, sink.output(Stream.STDERR), path)
        if sink.truncated:
            raise FileRefused(f"{path}: too many entries", errno=_E2BIG, path=path)
        return parse_records(sink.output(Stream.STDOUT))

    async def _push(
        self, path: str, content: AsyncIterator[bytes], sink: MemorySink, *words: str
    ) -> None:
        running = self._start(sink, words, stdin=True)
        try:
            async for piece in content:
                if running.ended:
                    break
                await running.write_stdin(piece)
            await running.close_stdin()
            outcome = await running.wait()
        finally:
            _finish(running)
        _check(outcome, sink.output(Stream.STDERR), path)

    async def _pull(self, path: str, *words: str) -> AsyncIterator[bytes]:
        sink = PullSink()
        running = self._start(sink, words, stdin=False)
        try:
            running.on_ended(sink.tee.finish)
            async for _, piece in sink.tee:
                yield piece
            outcome = await running.wait()
        finally:
            sink.tee.close()
            _finish(running)
        _check(outcome, sink.errors(), path)


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
