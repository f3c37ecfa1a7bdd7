"""The COPY of a recipe: files of the context, of another image, or of the recipe, into a sandbox."""

from __future__ import annotations

import fnmatch
import io
import posixpath
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing

from skerry.errors import InvalidRequest, NotFound
from skerry.sdk.context import Context
from skerry.sdk.pack import Look
from skerry.sdk.sandbox import AsyncSandbox
from skerry.sdk.transfer import in_thread
from skerry.spec.files import FileInfo, FileType
from skerry.spec.recipe import CopyStep

USERS_BYTES_MAX = 1 << 20
ROOT = "root"


def context_of(context: Context | None, step: CopyStep) -> Context:
    """Returns the context; raises InvalidRequest where a COPY has none."""
    if context is None:
        raise InvalidRequest(f"recipe, line {step.line}: COPY needs a context directory")
    return context


async def copy(sandbox: AsyncSandbox, step: CopyStep, context: Context | None) -> None:
    """Puts files where the step says, root's unless it says otherwise."""
    look = await _look(sandbox, step)
    picked = []
    if step.sources:
        found = context_of(context, step)
        picked = [one for source in step.sources for one in found.pick(source)]
    several = len(picked) + len(step.files) > 1
    into = step.target.endswith("/") or several or any(one.directory for one in picked)
    target = step.target.rstrip("/") or "/"
    if not into and await _is_directory(sandbox, target):
        into = True
    place = target if into else posixpath.dirname(target)
    await sandbox.files.mkdir(place, parents=True, user=ROOT)
    alone = posixpath.basename(target)
    if picked:
        placed = [
            (one, "" if one.directory else posixpath.basename(one.path) if into else alone)
            for one in picked
        ]
        found = context_of(context, step)
        await _put(sandbox, place, lambda: found.tar(placed, [], look))
    if step.files:
        texts = [(name if into else alone, content) for name, content in step.files]
        await _put(sandbox, place, lambda: iter((_documents(texts, look),)))


async def _put(sandbox: AsyncSandbox, place: str, make: Callable[[], Iterator[bytes]]) -> None:
    pieces: AsyncIterator[bytes]
    async with aclosing(in_thread(make)) as pieces:
        await sandbox.files.put_tree(place, pieces, user=ROOT)


def _documents(texts: Sequence[tuple[str, str]], look: Look) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in texts:
            data = content.encode("utf-8", "surrogateescape")
            info = tarfile.TarInfo(name)
            info.size, info.uid, info.gid = len(data), look.uid, look.gid
            info.mode = 0o644 if look.mode is None else look.mode
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


async def _is_directory(sandbox: AsyncSandbox, path: str) -> bool:
    try:
        return (await sandbox.files.stat(path, follow=True, user=ROOT)).type is FileType.DIRECTORY
    except NotFound:
        return False


async def _look(sandbox: AsyncSandbox, step: CopyStep) -> Look:
    mode = None if step.mode is None else int(step.mode, 8)
    if step.owner is None:
        return Look(mode=mode)
    user, _, group = step.owner.partition(":")
    uid, own_gid = await _id_of(sandbox, user, "/etc/passwd", step.line)
    gid = (await _id_of(sandbox, group, "/etc/group", step.line))[0] if group else own_gid
    return Look(uid, gid, mode)


async def _id_of(sandbox: AsyncSandbox, name: str, path: str, line: int) -> tuple[int, int]:
    """Returns a name's number in the image, and in passwd its group's; a number stands for itself."""
    if name.isascii() and name.isdecimal():
        return int(name), int(name)
    try:
        text = await sandbox.files.read(path, length=USERS_BYTES_MAX, user=ROOT)
    except NotFound:
        text = b""
    for entry in text.decode("utf-8", "surrogateescape").splitlines():
        fields = entry.split(":")
        if len(fields) > 3 and fields[0] == name and fields[2].isdecimal():
            return int(fields[2]), int(fields[3]) if fields[3].isdecimal() else int(fields[2])
    raise InvalidRequest(f"recipe, line {line}: --chown: the image knows no {name!r} in {path}")


# --- from another image ---


async def copy_from(source: AsyncSandbox, sandbox: AsyncSandbox, step: CopyStep) -> None:
    """Puts files of another image where the step says; unless it says so, they keep their owners."""
    found = [one for pattern in step.sources for one in await _found(source, pattern, step)]
    directories = any(info.type is FileType.DIRECTORY for _, info in found)
    into = step.target.endswith("/") or len(found) > 1 or directories
    target = step.target.rstrip("/") or "/"
    if not into and await _is_directory(sandbox, target):
        into = True
    if directories and step.mode is not None:
        raise InvalidRequest(
            f"recipe, line {step.line}: --chmod with --from is for files, not directories: RUN chmod"
        )
    look = await _look(sandbox, step)
    owner = None if step.owner is None else f"{look.uid}:{look.gid}"
    place = target if into else posixpath.dirname(target)
    await sandbox.files.mkdir(place, parents=True, user=ROOT)
    for path, info in found:
        if info.type is FileType.DIRECTORY:
            async with aclosing(source.files.get_tree(path, user=ROOT)) as tar:
                await sandbox.files.put_tree(target, tar, user=ROOT)
            if owner is not None:
                async for one in source.files.walk(path, user=ROOT):
                    await sandbox.files.chown(posixpath.join(target, one.name), owner, user=ROOT)
            continue
        end = posixpath.join(target, posixpath.basename(path)) if into else target
        mode = info.mode & 0o7777 if look.mode is None else look.mode
        content = source.files.read_chunks(path, user=ROOT)
        await sandbox.files.write(end, content, mode=mode, user=ROOT)
        await sandbox.files.chown(end, owner or f"{info.uid}:{info.gid}", user=ROOT)


async def _found(source: AsyncSandbox, pattern: str, step: CopyStep) -> list[tuple[str, FileInfo]]:
    """Returns what a source stands for in the other image, sorted; a link is what it leads to."""
    path = posixpath.join("/", "" if pattern == "." else pattern)
    above, last = posixpath.split(path)
    paths = [path]
    try:
        if any(char in last for char in "*?["):
            names = [info.name for info in await source.files.list(above, user=ROOT)]
            paths = [posixpath.join(above, name) for name in fnmatch.filter(sorted(names), last)]
        found = [(one, await source.files.stat(one, follow=True, user=ROOT)) for one in paths]
    except NotFound:
        found = []
    if not found:
        raise NotFound(f"recipe, line {step.line}: there is no {path} in {step.origin}")
    return found
