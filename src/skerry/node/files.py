"""Files of a sandbox: names and bounds checked here, the work done inside as the target user."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from errno import EISDIR, ENOTDIR
from typing import Final

from skerry.errors import FileRefused, InvalidRequest, NotFound
from skerry.guest.files import GuestFiles
from skerry.node.clock import Clock
from skerry.node.life.lives import Lives
from skerry.node.life.sandbox import Sandbox
from skerry.spec.files import FileInfo, TreeUsage, WatchEvent
from skerry.spec.limits import PATH_BYTES_MAX
from skerry.wire.files import NAME_OPS, FileOp

MODE_MAX = 0o7777
SIZE_MAX: Final = 1 << 62
GLOB_BYTES_MAX: Final = 4096
TIME_S_MAX: Final = 9_000_000_000.0
_NEEDS: Final = {
    "rename": "to",
    "move": "to",
    "copy": "to",
    "symlink": "to",
    "link": "to",
    "chmod": "mode",
    "chown": "owner",
    "truncate": "size",
}
_TYPES: Final = frozenset("fdlpscb")


class Files:
    """File operations; each counts as activity from its start to its end."""

    def __init__(self, lives: Lives, clock: Clock) -> None:
        self._lives = lives
        self._handles = lives.handles
        self._clock = clock

    async def read(
        self,
        sandbox: Sandbox,
        path: str,
        user: str | None,
        offset: int = 0,
        length: int = -1,
        *,
        tail: int | None = None,
        sparse: bool = False,
    ) -> AsyncGenerator[bytes]:
        """Gives a file's content from `offset` on, `length` bytes or (-1) to its end.

        Or its last `tail` bytes, or, with `sparse`, a map of its pieces and the pieces.
        """
        path = check_path(path)
        files = await self._files(sandbox, user, path)
        if tail is not None:
            pieces = files.tail(path, tail)
        elif sparse:
            pieces = files.read_sparse(path)
        else:
            pieces = files.read(path, offset, length)
        with sandbox.active_while(self._clock):
            async with aclosing(pieces):
                async for piece in pieces:
                    yield piece

    async def write(
        self,
        sandbox: Sandbox,
        path: str,
        user: str | None,
        content: AsyncIterator[bytes],
        *,
        mode: int | None,
        parents: bool,
        append: bool,
        exclusive: bool,
        sparse: bool = False,
    ) -> FileInfo:
        """Writes a file as a whole; it is there, complete, when this returns.

        Without a mode one that is there keeps its own.
        """
        if sparse and append:
            raise InvalidRequest("a file with holes cannot be appended")
        check_file(path)
        files = await self._files(sandbox, user, path)
        with sandbox.active_while(self._clock):
            return await files.write(
                path,
                content,
                mode=None if mode is None else check_mode(mode),
                parents=parents,
                append=append,
                exclusive=exclusive,
                sparse=sparse,
            )

    async def put(
        self,
        sandbox: Sandbox,
        path: str,
        user: str | None,
        content: AsyncIterator[bytes],
        offset: int,
        *,
        parents: bool,
    ) -> FileInfo:
        """Writes over what is there from `offset` on, in place."""
        check_file(path)
        files = await self._files(sandbox, user, path)
        with sandbox.active_while(self._clock):
            return await files.put(path, content, offset, parents=parents)

    async def tree_get(
        self, sandbox: Sandbox, path: str, user: str | None
    ) -> AsyncGenerator[bytes]:
        """Gives a directory's content, or one file, as a pax tar."""
        files = await self._files(sandbox, user, path)
        pieces = files.tree_get(check_path(path))
        with sandbox.active_while(self._clock):
            async with aclosing(pieces):
                async for piece in pieces:
                    yield piece

    async def walk(
        self,
        sandbox: Sandbox,
        path: str,
        user: str | None,
        *,
        depth: int | None = None,
        types: str = "",
        glob: str = "",
    ) -> AsyncGenerator[list[FileInfo]]:
        """Gives what is below a directory, some entries at a time."""
        if set(types) - _TYPES:
            raise InvalidRequest(
                f"types: {types[:40]!r} holds others than {''.join(sorted(_TYPES))}"
            )
        if "\x00" in glob or len(os.fsencode(glob)) > GLOB_BYTES_MAX or glob.count("**") > 4:
            raise InvalidRequest("glob: too long, more than four times **, or with a NUL")
        files = await self._files(sandbox, user, path)
        found = files.walk(check_path(path), depth=depth, types=types, glob=glob)
        with sandbox.active_while(self._clock):
            async with aclosing(found):
                async for entries in found:
                    yield entries

    async def watch(
        self, sandbox: Sandbox, path: str, user: str | None, *, recursive: bool
    ) -> AsyncGenerator[WatchEvent]:
        """Gives what happens at and below a path. Looking on is no activity of the sandbox."""
        files = await self._files(sandbox, user, path)
        events = files.watch(check_path(path), recursive=recursive)
        async with aclosing(events):
            async for event in events:
                yield event

    async def usage(self, sandbox: Sandbox, path: str, user: str | None) -> TreeUsage:
        """Returns what a tree takes up."""
        files = await self._files(sandbox, user, path)
        with sandbox.active_while(self._clock):
            return await files.usage(check_path(path))

    async def tree_put(
        self, sandbox: Sandbox, path: str, user: str | None, content: AsyncIterator[bytes]
    ) -> None:
        """Unpacks a tar beneath a directory."""
        files = await self._files(sandbox, user, path)
        with sandbox.active_while(self._clock):
            await files.tree_put(check_path(path), content)

    async def apply(self, sandbox: Sandbox, op: FileOp) -> list[FileInfo]:
        """Does one operation on names; returns what stat, exists and list found, else nothing."""
        if op.op not in NAME_OPS:
            raise InvalidRequest(f"op: {op.op[:40]!r} is unknown")
        path, to = op.names()
        check_path(path)
        needed = _NEEDS.get(op.op)
        if needed == "to":
            check_path(to or "")
        elif needed is not None and getattr(op, needed) is None:
            raise InvalidRequest(f"{op.op} needs {needed!r}")
        check_mode(0 if op.mode is None else op.mode)
        # What a symbolic link says is text: it need not be there, nor be a path from here.
        paths = (path,) if to is None or op.op == "symlink" else (path, to)
        files = await self._files(sandbox, op.user, *paths)
        with sandbox.active_while(self._clock):
            if op.op in {"stat", "exists", "list"}:
                return await _look(files, op, path)
            if to is not None and needed == "to":
                await _relate(files, op, path, to)
            else:
                await _change(files, op, path)
        return []

    async def _files(self, sandbox: Sandbox, user: str | None, *paths: str) -> GuestFiles:
        """Returns the operations of a user, in the working directory if a path is relative to it.

        Else that directory must not matter: it may be closed to the user.
        """
        if user is not None and (not user or "\x00" in user or len(user) > PATH_BYTES_MAX):
            raise InvalidRequest("user is empty, too long or holds a NUL")
        link = await self._lives.ensure_running(sandbox)
        client = await link.ready()
        absolute = all(path.startswith("/") for path in paths)
        inside = sandbox.inside_spec
        place = "/" if absolute else inside.workdir
        return GuestFiles(
            client,
            lambda: (self._handles.new(sandbox), secrets.token_bytes(16)),
            user=os.fsencode(user or inside.user or "root"),
            cwd=os.fsencode(place) if place else None,
        )


async def _look(files: GuestFiles, op: FileOp, path: str) -> list[FileInfo]:
    if op.op == "list":
        return await files.list_dir(path)
    look = files.follow if op.follow else files.stat
    if op.op == "stat":
        return [await look(path)]
    try:
        return [await look(path)]
    except NotFound:
        return []
    except FileRefused as error:
        if error.fields.get("errno") == ENOTDIR:  # above it lies a file
            return []
        raise


async def _relate(files: GuestFiles, op: FileOp, path: str, to: str) -> None:
    """Operations that need a second name."""
    match op.op:
        case "rename":
            await files.rename(path, to)
        case "move":
            await files.move(path, to, parents=op.parents, exclusive=op.exclusive)
        case "copy":
            await files.copy(
                path, to, recursive=op.recursive, parents=op.parents, exclusive=op.exclusive
            )
        case "symlink":
            await files.symlink(path, to, parents=op.parents, replace=op.replace)
        case _:
            await files.link(to, path, parents=op.parents)


async def _change(files: GuestFiles, op: FileOp, path: str) -> None:
    """Operations on one name."""
    match op.op:
        case "mkdir":
            mode = 0o755 if op.mode is None else op.mode
            await files.mkdir(path, mode, parents=op.parents)
        case "remove":
            await files.remove(path, recursive=op.recursive)
        case "chmod":
            await files.chmod(path, op.mode or 0)
        case "chown":
            owner = check_owner(op.owner or "")
            await files.chown(path, owner, recursive=op.recursive, follow=op.follow)
        case "truncate":
            await files.truncate(path, check_size(op.size or 0))
        case _:
            await files.utime(path, _time_ns(op.atime), _time_ns(op.mtime))


def check_path(path: str) -> str:
    """Returns a path that can be sent; whether it leads anywhere is found out inside."""
    if not path or "\x00" in path:
        raise InvalidRequest("path is empty or holds a NUL")
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise InvalidRequest(f"path: at most {PATH_BYTES_MAX} bytes")
    return path


def check_file(path: str) -> str:
    """Returns a path that can be a file's: one that ends with a slash means a directory."""
    if check_path(path).endswith("/"):
        raise FileRefused(f"{path}: {os.strerror(EISDIR)}", errno=EISDIR, path=path)
    return path


def check_mode(mode: int) -> int:
    """Returns permission bits; InvalidRequest if there are others."""
    if not 0 <= mode <= MODE_MAX:
        raise InvalidRequest(f"mode: {mode} is not between 0 and 0o7777")
    return mode


def check_owner(owner: str) -> str:
    """Returns an owner that can be sent; whether it exists is found out inside."""
    if not owner.strip(":") or "\x00" in owner or len(owner) > PATH_BYTES_MAX:
        raise InvalidRequest("owner is empty, too long or holds a NUL")
    return owner


def check_size(size: int) -> int:
    """Returns a size of a file; InvalidRequest if none can have it."""
    if not 0 <= size <= SIZE_MAX:
        raise InvalidRequest(f"size: {size} is not between 0 and {SIZE_MAX}")
    return size


def _time_ns(seconds: float | None) -> int | None:
    if seconds is None:
        return None
    if not -TIME_S_MAX <= seconds <= TIME_S_MAX:
        raise InvalidRequest(f"time: {seconds} is out of bounds")
    return round(seconds * 1e9)
