"""What is in the files of one sandbox: read and written, whole, in parts or as a stream."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator

from skerry.errors import InvalidRequest
from skerry.sdk.transport import Transport
from skerry.spec.files import FileInfo
from skerry.wire.files import info_from_wire


class FileContents:
    """The part of a sandbox's files that is about their bytes."""

    def __init__(self, transport: Transport, sandbox_id: str) -> None:
        self._transport = transport
        self._root = f"/v1/sandboxes/{sandbox_id}"

    async def read(
        self,
        path: str,
        *,
        offset: int = 0,
        length: int | None = None,
        tail: int | None = None,
        user: str | None = None,
    ) -> bytes:
        """Returns a file's bytes, the part asked for, or the last `tail` bytes."""
        chunks = self.read_chunks(path, offset=offset, length=length, tail=tail, user=user)
        return b"".join([chunk async for chunk in chunks])

    async def read_text(self, path: str, *, user: str | None = None) -> str:
        """Returns a file's content as UTF-8, undecodable bytes replaced."""
        return (await self.read(path, user=user)).decode("utf-8", "replace")

    async def read_chunks(
        self,
        path: str,
        *,
        offset: int = 0,
        length: int | None = None,
        tail: int | None = None,
        user: str | None = None,
    ) -> AsyncIterator[bytes]:
        """Yields a file's bytes as they come, in constant memory.

        Without a length, up to where the file ended when it was opened: one that grows has an end too.
        """
        params = params_of(path, user) | {"offset": str(offset)}
        if length is not None:
            params["length"] = str(length)
        if tail is not None:
            params["tail"] = str(tail)
        async for chunk in self._transport.fetch(f"{self._root}/files", params):
            yield chunk

    async def write(
        self,
        path: str,
        content: bytes | str | AsyncIterator[bytes],
        *,
        mode: int | None = None,
        parents: bool = True,
        append: bool = False,
        exclusive: bool = False,
        user: str | None = None,
    ) -> FileInfo:
        """Writes a file: readers see the old or the new content, and the new one when this returns.

        Without `mode` a file that is there keeps its own (not its set-id bits), and a new one has 0o644.
        """
        params = params_of(path, user, parents=parents, append=append, exclusive=exclusive)
        if mode is not None:
            params["mode"] = f"{mode:o}"
        return await self._put(params, content)

    async def append(
        self, path: str, content: bytes | str | AsyncIterator[bytes], *, user: str | None = None
    ) -> FileInfo:
        """Adds to the end of a file, which is made if it is missing. In place: a reader may see half."""
        return await self._put(params_of(path, user, parents=True, append=True), content)

    async def write_at(
        self,
        path: str,
        offset: int,
        content: bytes | str | AsyncIterator[bytes],
        *,
        user: str | None = None,
    ) -> FileInfo:
        """Writes over what is there from `offset` on; a file that is missing or shorter grows.

        In place: a reader may see half of it.
        """
        return await self._put(params_of(path, user) | {"offset": str(offset)}, content)

    async def _put(
        self, params: dict[str, str], content: bytes | str | AsyncIterator[bytes]
    ) -> FileInfo:
        if isinstance(content, bytearray | memoryview):
            content = bytes(content)
        chunks = _once(content) if isinstance(content, bytes | str) else content
        if not isinstance(chunks, AsyncIterable):
            raise InvalidRequest("content is bytes, a text, or an iterator of bytes")
        info = await self._transport.send("PUT", f"{self._root}/files", chunks, FileInfo, params)
        return info_from_wire(info)


def params_of(path: str, user: str | None, **flags: bool) -> dict[str, str]:
    """Returns the query fields of a request about a path."""
    params = {"path": path} | {name: "1" for name, given in flags.items() if given}
    if user is not None:
        params["user"] = user
    return params


async def _once(content: bytes | str) -> AsyncIterator[bytes]:
    yield content.encode() if isinstance(content, str) else content
