"""File operations and looks at what a sandbox wrote, each on record with its request and its result.

Contents stand in the record as trajectory/shipping/contents.py says; entries of walks as JSON lines of
FileInfo. A watch changes nothing and has no end of its own: it is not on record.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec

from skerry.node.disk import Disk
from skerry.node.files import Files
from skerry.node.life.sandbox import Sandbox
from skerry.node.trail.acts import Act, Trail, as_recorded
from skerry.node.trail.intake import Intake
from skerry.spec.files import Change, FileInfo, TreeUsage, WatchEvent
from skerry.wire.asked import LOOKS, TYPES_MAX, named, of_op, of_path
from skerry.wire.files import FileOp, change_to_wire, info_to_wire
from skerry.wire.http import DiffBody

_json = msgspec.json.Encoder().encode


class RecordedFiles:
    """What `Files` and `Disk` do, on record before it is answered. `op` is an operation id.

    What only looks is done again when it is repeated; what changes something runs once (acts.py).
    """

    def __init__(self, trail: Trail, files: Files, disk: Disk) -> None:
        self._trail, self._files, self._disk = trail, files, disk

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
        op: str | None = None,
    ) -> AsyncGenerator[bytes]:
        """Gives a file's content; see `Files.read`."""
        request = of_path(
            path,
            user,
            offset=offset or None,
            length=None if length < 0 else length,
            tail=tail,
            sparse=sparse,
        )
        pieces = self._files.read(sandbox, path, user, offset, length, tail=tail, sparse=sparse)
        async with aclosing(self._give(sandbox, "file.read", request, pieces, op)) as given:
            async for piece in given:
                yield piece

    async def tree_get(
        self, sandbox: Sandbox, path: str, user: str | None, *, op: str | None = None
    ) -> AsyncGenerator[bytes]:
        """Gives a directory's content, or one file, as a pax tar."""
        pieces = self._files.tree_get(sandbox, path, user)
        request = of_path(path, user)
        async with aclosing(self._give(sandbox, "tree.get", request, pieces, op)) as given:
            async for piece in given:
                yield piece

    async def diff_tar(
        self, sandbox: Sandbox, under: str, *, op: str | None = None
    ) -> AsyncGenerator[bytes]:
        """Gives an archive of what was added or modified at and below a path."""
        pieces = self._disk.diff_tar(sandbox, under)
        request = {"under": named(under)}
        async with aclosing(self._give(sandbox, "disk.tar", request, pieces, op)) as given:
            async for piece in given:
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
        op: str | None = None,
    ) -> dict[str, Any]:
        """Writes a file as a whole; returns its FileInfo as it is sent."""
        request = of_path(
            path,
            user,
            mode=mode,
            parents=parents,
            append=append,
            exclusive=exclusive,
            sparse=sparse,
        )
        async with self._trail.act(sandbox, "file.write", request, op=op, changes=True) as act:
            act.whole = not append
            if act.known is not None:
                return await _same(act, content)
            intake = act.intake()
            info = await self._files.write(
                sandbox,
                path,
                user,
                intake.through(content),
                mode=mode,
                parents=parents,
                append=append,
                exclusive=exclusive,
                sparse=sparse,
            )
            return await _written(act, intake, info)

    async def put(
        self,
        sandbox: Sandbox,
        path: str,
        user: str | None,
        content: AsyncIterator[bytes],
        offset: int,
        *,
        parents: bool,
        op: str | None = None,
    ) -> dict[str, Any]:
        """Writes over what is there from `offset` on, in place."""
        request = of_path(path, user, offset=offset, parents=parents)
        async with self._trail.act(sandbox, "file.put", request, op=op, changes=True) as act:
            if act.known is not None:
                return await _same(act, content)
            intake = act.intake()
            info = await self._files.put(
                sandbox, path, user, intake.through(content), offset, parents=parents
            )
            return await _written(act, intake, info)

    async def tree_put(
        self,
        sandbox: Sandbox,
        path: str,
        user: str | None,
        content: AsyncIterator[bytes],
        *,
        op: str | None = None,
    ) -> dict[str, Any]:
        """Unpacks a tar beneath a directory; returns {}."""
        request = of_path(path, user)
        async with self._trail.act(sandbox, "tree.put", request, op=op, changes=True) as act:
            if act.known is not None:
                return await _same(act, content)
            intake = act.intake()
            await self._files.tree_put(sandbox, path, user, intake.through(content))
            return await _written(act, intake, None)

    async def walk(
        self,
        sandbox: Sandbox,
        path: str,
        user: str | None,
        *,
        depth: int | None = None,
        types: str = "",
        glob: str = "",
        op: str | None = None,
    ) -> AsyncGenerator[list[FileInfo]]:
        """Gives what is below a directory, some entries at a time."""
        request = of_path(path, user, depth=depth, types=types[:TYPES_MAX], glob=named(glob))
        async with self._trail.act(sandbox, "file.walk", request, op=op) as act:
            intake, count = act.intake(), 0
            found = self._files.walk(sandbox, path, user, depth=depth, types=types, glob=glob)
            async with aclosing(found):
                async for entries in found:
                    yield entries
                    count += len(entries)
                    await intake.add(b"".join(_json(info_to_wire(one)) + b"\n" for one in entries))
            act.result = {"count": count, "entries": await intake.end()}

    def watch(
        self, sandbox: Sandbox, path: str, user: str | None, *, recursive: bool
    ) -> AsyncGenerator[WatchEvent]:
        """Gives what happens at and below a path."""
        return self._files.watch(sandbox, path, user, recursive=recursive)

    async def usage(
        self, sandbox: Sandbox, path: str, user: str | None, *, op: str | None = None
    ) -> TreeUsage:
        """Returns what a tree takes up."""
        async with self._trail.act(sandbox, "file.usage", of_path(path, user), op=op) as act:
            found = await self._files.usage(sandbox, path, user)
            act.result = as_recorded(found)
            return found

    async def apply(
        self, sandbox: Sandbox, what: FileOp, *, op: str | None = None
    ) -> list[dict[str, Any]]:
        """Does one operation on names; returns what was found, as it is sent."""
        looks = what.op in LOOKS
        request = of_op(what)
        action = f"file.{what.op[:40]}"
        async with self._trail.act(sandbox, action, request, op=op, changes=not looks) as act:
            if act.known is not None:
                return []
            infos = await self._files.apply(sandbox, what)
            found = [as_recorded(info_to_wire(info)) for info in infos]
            if looks:
                lines = b"".join(_json(one) + b"\n" for one in found)
                short = len(lines) <= self._trail.contents.inline_bytes
                act.result = {"entries": found if short else await act.keep(lines)}
            return found

    async def diff(self, sandbox: Sandbox, *, op: str | None = None) -> DiffBody:
        """Returns what differs from the layers, by path."""
        async with self._trail.act(sandbox, "disk.diff", {}, op=op) as act:
            body = await self._disk.diff(sandbox)
            lines = b"".join(_json(_change(one)) + b"\n" for one in body.changes)
            act.result = {
                "count": len(body.changes),
                "changes": await act.keep(lines),
                "frozen_seconds": body.frozen_seconds,
            }
            return body

    async def _give(
        self,
        sandbox: Sandbox,
        action: str,
        request: dict[str, Any],
        pieces: AsyncIterator[bytes],
        op: str | None,
    ) -> AsyncGenerator[bytes]:
        """Gives pieces; the last one only when it is on record what all of them were."""
        async with self._trail.act(sandbox, action, request, op=op) as act:
            intake, held = act.intake(), None
            async with aclosing(pieces):  # type: ignore[type-var]
                async for piece in pieces:
                    if held is not None:
                        yield held
                    await intake.add(piece)
                    held = piece
            act.result = {"content": await intake.end()}
        if held is not None:
            yield held


def _change(change: Change) -> dict[str, Any]:
    """Returns a change as it is sent, and the bytes of its path if that is no UTF-8."""
    found: dict[str, Any] = as_recorded(change_to_wire(change))
    path = named(change.path)
    return found if isinstance(path, str) else found | {"path_bytes": path}


async def _written(act: Act, intake: Intake, info: FileInfo | None) -> dict[str, Any]:
    act.request["content"] = await intake.end()
    act.result = {} if info is None else as_recorded(info_to_wire(info))
    return act.result


async def _same(act: Act, content: AsyncIterator[bytes]) -> dict[str, Any]:
    """Reads the content of a repeat, which is compared with what is on record."""
    intake = act.intake()
    async for piece in content:
        await intake.add(piece)
    act.request["content"] = await intake.end()
    return act.known or {}
