"""Files of a sandbox: names and bounds checked here, the work done inside as the target user."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator
from errno import ENOTDIR

from skerry.errors import FileRefused, InvalidRequest, NotFound
from skerry.guest.files import GuestFiles
from skerry.node.clock import Clock
from skerry.node.handles import Handles
from skerry.node.lives import Lives
from skerry.node.sandbox import Sandbox
from skerry.spec.files import FileInfo
from skerry.spec.limits import PATH_BYTES_MAX
from skerry.wire.http import FileOp

MODE_MAX = 0o7777
_NEEDS = {"rename": "to", "chmod": "mode"}


class Files:
    """File operations; each counts as activity from its start to its end."""

    def __init__(self, lives: Lives, handles: Handles, clock: Clock) -> None:
        self._lives = lives
        self._handles = handles
        self._clock = clock

    async def read(
        self, sandbox: Sandbox, path: str, user: str | None, offset: int, length: int
    ) -> AsyncIterator[bytes]:
        """Gives a file's content from `offset` on, `length` bytes or (-1) to its end."""
        files = await self._files(sandbox, user, path)
        with sandbox.active_while(self._clock):
            async for piece in files.read(check_path(path), offset, length):
                yield piece

    async def write(
        self,
        sandbox: Sandbox,
        path: str,
        user: str | None,
        content: AsyncIterator[bytes],
        *,
        mode: int,
        parents: bool,
        append: bool,
        exclusive: bool,
    ) -> FileInfo:
        """Writes a file as a whole; it is there, complete, when this returns."""
        files = await self._files(sandbox, user, path)
        with sandbox.active_while(self._clock):
            return await files.write(
                check_path(path),
                content,
                mode=check_mode(mode),
                parents=parents,
                append=append,
                exclusive=exclusive,
            )

    async def tree_get(self, sandbox: Sandbox, path: str, user: str | None) -> AsyncIterator[bytes]:
        """Gives a directory's content as a pax tar."""
        files = await self._files(sandbox, user, path)
        with sandbox.active_while(self._clock):
            async for piece in files.tree_get(check_path(path)):
                yield piece

    async def tree_put(
        self, sandbox: Sandbox, path: str, user: str | None, content: AsyncIterator[bytes]
    ) -> None:
        """Unpacks a tar beneath a directory."""
        files = await self._files(sandbox, user, path)
        with sandbox.active_while(self._clock):
            await files.tree_put(check_path(path), content)

    async def apply(self, sandbox: Sandbox, op: FileOp) -> list[FileInfo]:
        """Does one operation on names; returns what stat and list found, else nothing."""
        path = check_path(op.path)
        needed = _NEEDS.get(op.op)
        if needed is not None and getattr(op, needed) is None:
            raise InvalidRequest(f"{op.op} needs {needed!r}")
        mode = check_mode(0o755 if op.mode is None else op.mode)
        if op.op not in {"stat", "exists", "list", "mkdir", "remove", "rename", "chmod"}:
            raise InvalidRequest(f"op: {op.op[:40]!r} is unknown")
        to = check_path(op.to) if op.to is not None else path
        files = await self._files(sandbox, op.user, path, to)
        with sandbox.active_while(self._clock):
            match op.op:
                case "stat":
                    return [await files.stat(path)]
                case "exists":
                    return await _stat_if_there(files, path)
                case "list":
                    return await files.list_dir(path)
                case "mkdir":
                    await files.mkdir(path, mode, parents=op.parents)
                case "remove":
                    await files.remove(path, recursive=op.recursive)
                case "rename":
                    await files.rename(path, to)
                case _:
                    await files.chmod(path, mode)
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
        place = "/" if absolute else sandbox.spec.workdir
        return GuestFiles(
            client,
            lambda: (self._handles.new(sandbox), secrets.token_bytes(16)),
            user=os.fsencode(user or sandbox.spec.user),
            cwd=os.fsencode(place) if place else None,
        )


async def _stat_if_there(files: GuestFiles, path: str) -> list[FileInfo]:
    try:
        return [await files.stat(path)]
    except NotFound:
        return []
    except FileRefused as error:
        if error.fields.get("errno") == ENOTDIR:  # above it lies a file
            return []
        raise


def check_path(path: str) -> str:
    """Returns a path that can be sent; whether it leads anywhere is found out inside."""
    if not path or "\x00" in path:
        raise InvalidRequest("path is empty or holds a NUL")
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise InvalidRequest(f"path: at most {PATH_BYTES_MAX} bytes")
    return path


def check_mode(mode: int) -> int:
    """Returns permission bits; InvalidRequest if there are others."""
    if not 0 <= mode <= MODE_MAX:
        raise InvalidRequest(f"mode: {mode} is not between 0 and 0o7777")
    return mode
