"""How a workspace is kept: the name of a commit, in a form that no tar has; or a tar."""

from __future__ import annotations

import io
import json
import re
import tempfile
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from agents.sandbox.errors import WorkspaceArchiveReadError

from skerry import aio
from skerry.errors import InvalidRequest

_MAGIC = b"SKERRY_COMMIT_V1\n"
_NAME = re.compile(r"workspace/[a-z0-9._-]{1,80}:[a-z0-9._-]{1,80}")
_CHUNK = 1 << 20
_HEAD_MAX = len(_MAGIC) + 1000


def reference(name: str) -> io.BytesIO:
    """Returns what a snapshot holds of a commit."""
    return io.BytesIO(_MAGIC + json.dumps({"commit": name}).encode())


def referenced(head: bytes) -> str | None:
    """Returns the commit that an archive names; None if it is a tar. InvalidRequest if it is neither."""
    if not head.startswith(_MAGIC):
        return None
    try:
        name = json.loads(head.removeprefix(_MAGIC))["commit"]
    except (ValueError, KeyError, TypeError):
        name = None
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidRequest("the snapshot names no commit of an agent's workspace")
    return name


async def tar_of(sandbox: aio.Sandbox, root: Path, skipped: Iterable[Path]) -> io.IOBase:
    """Returns a tar of the workspace, without what is to be left out, in a file of its own."""
    argv = ["tar", "-C", root.as_posix(), "--no-wildcards"]
    argv += [f"--exclude=./{path.as_posix()}" for path in sorted(skipped)]
    kept = tempfile.TemporaryFile(prefix="skerry-workspace-")  # noqa: SIM115 - the caller closes it
    why = ""
    try:
        async for event in sandbox.stream([*argv, "-cf", "-", "."]):
            if event.stdout:
                kept.write(event.stdout)
            if event.result is not None and not event.result.ok:
                why = event.result.start_error or event.result.error_text[-2000:] or "it failed"
    except BaseException:
        kept.close()
        raise
    if why:
        kept.close()
        raise WorkspaceArchiveReadError(path=root, context={"detail": why})
    kept.seek(0)
    return kept


async def chunks_of(head: bytes, data: io.IOBase) -> AsyncIterator[bytes]:
    """Yields an archive piece by piece, the bytes that were looked at first."""
    chunk = head
    while chunk:
        yield chunk
        chunk = data.read(_CHUNK)


def head_of(data: io.IOBase) -> bytes:
    """Returns the first bytes of an archive, all of a reference; TypeError if they are no bytes."""
    head = data.read(_HEAD_MAX)
    if not isinstance(head, bytes | bytearray):
        raise TypeError(type(head).__name__)
    return bytes(head)
