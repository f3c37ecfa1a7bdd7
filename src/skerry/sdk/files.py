"""Files of one sandbox."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

from skerry.sdk.transfer import Progress, file_chunks, pack_tree, unpack_tree
from skerry.sdk.transport import Transport
from skerry.spec.files import FileInfo, FileType
from skerry.wire.http import FileOp

Entries = list[FileInfo]  # inside the class, `list` is the method


class AsyncFiles:
    """File operations inside a sandbox, done with the rights of `user` (default: the sandbox's).

    Paths are absolute, or relative to the sandbox's working directory. Every method raises NotFound
    for a missing path and FileRefused (with `errno` in its fields) for what the sandbox refuses.
    """

    def __init__(self, transport: Transport, sandbox_id: str) -> None:
        self._transport = transport
        self._root = f"/v1/sandboxes/{sandbox_id}"

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None, user: str | None = None
    ) -> bytes:
        """Returns a file's bytes, or the part asked for."""
        return b"".join(
            [
                chunk
                async for chunk in self.read_chunks(path, offset=offset, length=length, user=user)
            ]
        )

    async def read_text(self, path: str, *, user: str | None = None) -> str:
        """Returns a file's content as UTF-8, undecodable bytes replaced."""
        return (await self.read(path, user=user)).decode("utf-8", "replace")

    async def read_chunks(
        self, path: str, *, offset: int = 0, length: int | None = None, user: str | None = None
    ) -> AsyncIterator[bytes]:
        """Yields a file's bytes as they come, in constant memory."""
        params = _params(path, user) | {"offset": str(offset)}
        if length is not None:
            params["length"] = str(length)
        async for chunk in self._transport.receive("GET", f"{self._root}/files", params=params):
            yield chunk

    async def write(
        self,
        path: str,
        content: bytes | str | AsyncIterator[bytes],
        *,
        mode: int = 0o644,
        parents: bool = True,
        append: bool = False,
        exclusive: bool = False,
        user: str | None = None,
    ) -> FileInfo:
        """Writes a file: readers see the old or the new content, and the new one when this returns."""
        params = _params(path, user) | {"mode": f"{mode:o}"}
        for name, value in (("parents", parents), ("append", append), ("exclusive", exclusive)):
            if value:
                params[name] = "1"
        chunks = _once(content) if isinstance(content, bytes | str) else content
        return await self._transport.send("PUT", f"{self._root}/files", chunks, FileInfo, params)

    async def stat(self, path: str, *, user: str | None = None) -> FileInfo:
        """Returns what a path is, without following a link."""
        return (await self._op(FileOp(op="stat", path=path, user=user)))[0]

    async def exists(self, path: str, *, user: str | None = None) -> bool:
        """Returns whether a path exists (a dangling link does)."""
        return bool(await self._op(FileOp(op="exists", path=path, user=user)))

    async def list(self, path: str, *, user: str | None = None) -> Entries:
        """Returns a directory's entries, sorted by name."""
        entries = await self._op(FileOp(op="list", path=path, user=user))
        return sorted(entries, key=lambda entry: entry.name)

    async def mkdir(
        self, path: str, *, mode: int = 0o755, parents: bool = False, user: str | None = None
    ) -> None:
        """Makes a directory."""
        await self._op(FileOp(op="mkdir", path=path, mode=mode, parents=parents, user=user))

    async def remove(self, path: str, *, recursive: bool = False, user: str | None = None) -> None:
        """Removes a file, a link, or with `recursive` a tree."""
        await self._op(FileOp(op="remove", path=path, recursive=recursive, user=user))

    async def rename(self, path: str, to: str, *, user: str | None = None) -> None:
        """Renames a path, replacing what `to` names."""
        await self._op(FileOp(op="rename", path=path, to=to, user=user))

    async def chmod(self, path: str, mode: int, *, user: str | None = None) -> None:
        """Sets a path's mode."""
        await self._op(FileOp(op="chmod", path=path, mode=mode, user=user))

    async def upload(
        self,
        local: str | os.PathLike[str],
        path: str,
        *,
        user: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Puts a local file at `path`, or a local directory's content beneath it."""
        source = Path(local)
        if source.is_dir():
            await self.put_tree(path, pack_tree(source, progress), user=user)
        else:
            await self.write(
                path, file_chunks(source, progress), mode=source.stat().st_mode & 0o777, user=user
            )

    async def download(
        self,
        path: str,
        local: str | os.PathLike[str],
        *,
        user: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Puts the file at `path` into a local file, or a directory's content beneath a local one.

        Nothing is written outside `local`, and no setuid bit is kept.
        """
        info = await self.stat(path, user=user)
        if info.type is FileType.DIRECTORY:
            await unpack_tree(self.get_tree(path, user=user), Path(local), progress)
            return
        target = Path(local)
        if target.is_dir():
            target /= path.rstrip("/").rpartition("/")[2]
        partial = target.with_name(f".{target.name}.part")
        try:
            with partial.open("wb") as file:
                async for chunk in self.read_chunks(path, user=user):
                    file.write(chunk)
                    if progress:
                        progress(len(chunk))
            partial.chmod(info.mode & 0o777)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)

    async def put_tree(
        self, path: str, tar: AsyncIterator[bytes], *, user: str | None = None
    ) -> None:
        """Unpacks a tar beneath `path` inside; members that would leave it are refused."""
        await self._transport.send("PUT", f"{self._root}/tree", tar, dict, _params(path, user))

    async def get_tree(self, path: str, *, user: str | None = None) -> AsyncIterator[bytes]:
        """Yields a tar of what is beneath `path`."""
        async for chunk in self._transport.receive(
            "GET", f"{self._root}/tree", params=_params(path, user)
        ):
            yield chunk

    async def _op(self, op: FileOp) -> Entries:
        return await self._transport.call("POST", f"{self._root}/files/op", Entries, body=op)


def _params(path: str, user: str | None) -> dict[str, str]:
    params = {"path": path}
    if user is not None:
        params["user"] = user
    return params


async def _once(content: bytes | str) -> AsyncIterator[bytes]:
    yield content.encode() if isinstance(content, str) else content
