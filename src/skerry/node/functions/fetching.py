"""Files of a call that were asked for, read out of its cell when it has ended.

What is inside is the call's own: names and contents are hostile, links are not followed out of it,
and what cannot be read is left out with the reason, never an error of the call.
"""

from __future__ import annotations

import asyncio
import os
import re
import tarfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final

from skerry.errors import FileRefused, NotFound, SkerryError
from skerry.node.functions.cellrun import FILES_WITHIN_S, HOME, CellRun
from skerry.spec.files import FileInfo, FileType
from skerry.spec.function_result import FETCHED_BYTES_MAX

MATCHES_MAX: Final = 4096  # files by patterns
WALKED_MAX: Final = 100_000  # names that are looked at
LEFT_OUT_MAX: Final = 256
_GLOB: Final = re.compile(r"[*?\[]")


class Found:
    """What of a call is to be read: sizes by relative path, and what is left out, with why."""

    def __init__(self) -> None:
        self.files: dict[str, FileInfo] = {}
        self.left_out: dict[str, str] = {}

    def leave_out(self, name: str, why: str) -> None:
        """It is not read."""
        if len(self.left_out) < LEFT_OUT_MAX:
            self.left_out[_said(name)] = _said(why)


def _said(text: str) -> str:
    r"""Returns it as UTF-8 can say it: other bytes of a name as \xff."""
    return os.fsencode(text).decode("utf-8", "backslashreplace")


async def find(run: CellRun, patterns: tuple[str, ...]) -> Found:
    """Returns the files that the patterns name."""
    found, files = Found(), run.files
    globs = [pattern for pattern in patterns if _GLOB.search(pattern)]
    for name in patterns:
        if name in globs:
            continue
        try:
            await _take(found, name, await files.stat(f"{HOME}/{name}"))
        except NotFound:
            found.leave_out(name, "no such file")
        except FileRefused as error:
            found.leave_out(name, error.message)
    if globs:
        await _walk(found, run, globs)
    return found


async def _walk(found: Found, run: CellRun, globs: list[str]) -> None:
    patterns = [(glob, re.compile(to_regex(glob), re.DOTALL)) for glob in globs]
    matched: set[str] = set()
    walked = 0
    try:
        async with aclosing(run.files.walk(HOME, types="f")) as pieces:
            async for entries in pieces:
                walked += len(entries)
                for entry in entries:
                    if entry.name == run.own:
                        continue
                    hits = [glob for glob, pattern in patterns if pattern.fullmatch(entry.name)]
                    matched.update(hits)
                    if hits and len(found.files) < MATCHES_MAX:
                        await _take(found, entry.name, entry)
                if walked > WALKED_MAX or len(found.files) >= MATCHES_MAX:
                    found.leave_out("", "too many files: not all were looked at")
                    break
    except FileRefused as error:
        found.leave_out("", error.message)
    for glob in globs:
        if glob not in matched:
            found.leave_out(glob, "no such file")


async def _take(found: Found, name: str, info: FileInfo) -> None:
    if info.type is FileType.FILE:
        found.files[name] = info
    else:
        found.leave_out(name, f"no file: a {info.type.name.lower()}")


async def read_all(
    run: CellRun, patterns: tuple[str, ...]
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Returns contents by relative path, FETCHED_BYTES_MAX of them at most, and what is left out."""
    contents: dict[str, bytes] = {}
    found = Found()
    total = 0
    try:
        async with asyncio.timeout(FILES_WITHIN_S):
            found = await find(run, patterns)
            for name, info in found.files.items():
                if _said(name) != name:
                    found.leave_out(name, "its name is not UTF-8: stream it")
                    continue
                if total + info.size > FETCHED_BYTES_MAX:
                    found.leave_out(name, f"{info.size} bytes: more than is returned; stream it")
                    continue
                try:
                    pieces = [
                        piece async for piece in run.files.read(f"{HOME}/{name}", 0, info.size)
                    ]
                except (FileRefused, NotFound) as error:
                    found.leave_out(name, error.message)
                    continue
                contents[name] = b"".join(pieces)
                total += len(contents[name])
    except TimeoutError:
        found.leave_out("", f"not read within {FILES_WITHIN_S:g} s")
    except SkerryError as error:
        found.leave_out("", f"its container was lost: {error.message}")
    return contents, found.left_out


async def tar_of(run: CellRun, found: Found) -> AsyncGenerator[bytes]:
    """Yields an archive of them in constant memory; one that became shorter is filled up with zeros."""
    for name, info in list(found.files.items()):
        header = tarfile.TarInfo(name)
        header.size, header.mode, header.mtime = info.size, info.mode & 0o777, int(info.mtime)
        content = _content(run, found, name, info.size)
        yield header.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        async with aclosing(content):
            async for piece in content:
                yield piece
        yield bytes(-info.size % 512)
    yield bytes(1024)


async def _content(run: CellRun, found: Found, name: str, size: int) -> AsyncGenerator[bytes]:
    left = size
    try:
        pieces: AsyncIterator[bytes] = run.files.read(f"{HOME}/{name}", 0, size)
        async for piece in pieces:
            yield piece[:left]
            left -= min(left, len(piece))
    except (FileRefused, NotFound) as error:
        found.leave_out(name, error.message)
    while left:
        yield bytes(min(left, 65_536))
        left -= min(left, 65_536)


def to_regex(pattern: str) -> str:
    """Returns a glob as a regular expression: * ? and [] within a name, ** any directories."""
    out, at = [], 0
    while at < len(pattern):
        rest = pattern[at:]
        if rest.startswith("**/"):
            out.append("(?:[^/]+/)*")
            at += 3
        elif rest.startswith("**"):
            out.append(".*")
            at += 2
        elif rest[0] == "*":
            out.append("[^/]*")
            at += 1
        elif rest[0] == "?":
            out.append("[^/]")
            at += 1
        elif rest[0] == "[" and (end := rest.find("]", 2)) > 0:
            inside = rest[1:end]
            negated = inside[0] in "!^"
            body = inside[1:] if negated else inside
            body = body.replace("\\", r"\\").replace("[", r"\[").replace("^", r"\^")
            out.append(f"(?!/)[{'^' if negated else ''}{body}]")
            at += end + 1
        else:
            out.append(re.escape(rest[0]))
            at += 1
    return "".join(out)
