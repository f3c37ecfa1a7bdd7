"""Reads files of a sandbox, of which no length is to be trusted, into memory."""

from __future__ import annotations

from errno import EFBIG

from skerry.aio import Sandbox
from skerry.errors import FileRefused


class FileTooLong(FileRefused):
    """A file has more bytes than are read of one; `errno` and `path` are in the fields."""


async def read_within(sandbox: Sandbox, path: str, limit: int, *, user: str | None = None) -> bytes:
    """Returns a file's content, FileTooLong beyond the limit; and what `files.read` raises."""
    content = await sandbox.files.read(path, length=limit + 1, user=user)
    if len(content) > limit:
        raise FileTooLong(f"{path}: more than {limit} bytes", errno=EFBIG, path=path)
    return content
