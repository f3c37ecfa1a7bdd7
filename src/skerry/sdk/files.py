"""Files of one sandbox."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from errno import EINVAL
from pathlib import Path

import msgspec

from skerry.errors import FileRefused, InvalidRequest
from skerry.sdk.contents import FileContents, params_of
from skerry.sdk.file_events import receive_events, watch_events
from skerry.sdk.holes import WORTH, may_have_holes
from skerry.sdk.transfer import (
    Counter,
    Progress,
    Transfer,
    file_chunks,
    pack_tree,
    save_file,
    unpack_tree,
)
from skerry.sdk.typed import wrong_type
from skerry.spec.files import FileInfo, FileType, TreeUsage, WatchEvent
from skerry.wire.files import file_op, info_from_wire

LOOKS = frozenset({"stat", "exists", "list"})
Entries = list[FileInfo]  # inside the class, `list` is the method


class AsyncFiles(FileContents):
    """File operations inside a sandbox, done with the rights of `user` (default: the sandbox's).

    Paths are absolute, or relative to the sandbox's working directory. Every method raises NotFound
    for a missing path, FileDenied for what the user has no right to, DiskFull, and FileRefused (with
    `errno` in its fields) for what else the sandbox refuses.
    """

    async def stat(self, path: str, *, follow: bool = False, user: str | None = None) -> FileInfo:
        """Returns what a path is; with `follow` what a link leads to."""
        return (await self._op("stat", path, follow=follow, user=user))[0]

    async def lstat(self, path: str, *, user: str | None = None) -> FileInfo:
        """Returns what a path is, a link being a link."""
        return await self.stat(path, user=user)

    async def exists(self, path: str, *, follow: bool = False, user: str | None = None) -> bool:
        """Returns whether a path exists (a dangling link does, unless followed)."""
        return bool(await self._op("exists", path, follow=follow, user=user))

    async def list(self, path: str, *, user: str | None = None) -> Entries:
        """Returns a directory's entries, sorted by name; `walk` has no bound on their number."""
        entries = await self._op("list", path, user=user)
        return sorted(entries, key=lambda entry: entry.name)

    async def walk(
        self,
        path: str,
        *,
        depth: int | None = None,
        glob: str = "",
        types: str = "",
        user: str | None = None,
    ) -> AsyncIterator[FileInfo]:
        """Yields what is below a directory as it is found, in constant memory.

        Names are relative to `path`; parents come before what is in them; links are
        not followed. `depth` 1 is the directory's own entries. `glob` is matched with the last
        part of a name, or, if it holds a slash, with the whole: `*` and `?` stop at slashes, `**` is
        any number of parts; dotfiles match. `types` are letters of FileType. A directory that the user
        may not look into has `unreadable` set. Leaving the loop ends the search.
        """
        params = params_of(path, user)
        given = (("depth", "" if depth is None else str(depth)), ("glob", glob), ("types", types))
        params |= {name: value for name, value in given if value}
        events = receive_events(self._transport, f"{self._root}/files/walk", params)
        async for event in events:
            for info in event.entries or ():
                yield info_from_wire(info)

    async def find(
        self,
        path: str,
        glob: str = "",
        *,
        depth: int | None = None,
        types: str = "",
        limit: int = 10_000,
        user: str | None = None,
    ) -> Entries:
        """Returns what `walk` finds, sorted by name. InvalidRequest beyond `limit` entries."""
        found: Entries = []
        async for info in self.walk(path, depth=depth, glob=glob, types=types, user=user):
            if len(found) >= limit:
                raise InvalidRequest(f"{path}: more than {limit} entries; use walk")
            found.append(info)
        return sorted(found, key=lambda info: info.name)

    async def usage(self, path: str, *, user: str | None = None) -> TreeUsage:
        """Returns what a file or tree takes up."""
        url = f"{self._root}/files/usage"
        return await self._transport.call("GET", url, TreeUsage, params=params_of(path, user))

    async def watch(
        self, path: str, *, recursive: bool = False, user: str | None = None
    ) -> AsyncGenerator[WatchEvent]:
        """Yields what happens at and below a path, until it is gone (its removal is the last event).

        READY comes first: what happens after it is not missed. With `recursive` new directories are
        watched too; what was made in them before the watch is told, perhaps twice. OVERFLOW says that
        events were lost (too many at once, or the connection broke and was made again): look at the
        tree. Leaving the loop ends the watch. Watching is no activity of the sandbox. FileRefused with
        step `watches` when there are more than 16,384 directories, or the system's bound is reached.
        """
        params = params_of(path, user, recursive=recursive)
        async for event in watch_events(self._transport, f"{self._root}/files/watch", params, path):
            yield event

    async def mkdir(
        self, path: str, *, mode: int = 0o755, parents: bool = False, user: str | None = None
    ) -> None:
        """Makes a directory; with `parents` also those above it, and one that is there is fine."""
        await self._op("mkdir", path, mode=mode, parents=parents, user=user)

    async def remove(self, path: str, *, recursive: bool = False, user: str | None = None) -> None:
        """Removes a file, a link, or with `recursive` a tree."""
        await self._op("remove", path, recursive=recursive, user=user)

    async def rename(self, path: str, to: str, *, user: str | None = None) -> None:
        """Renames a path within one file system, replacing what `to` names."""
        await self._op("rename", path, to, user=user)

    async def move(
        self,
        path: str,
        to: str,
        *,
        parents: bool = False,
        exclusive: bool = False,
        user: str | None = None,
    ) -> None:
        """Moves a path, also onto another file system, replacing what `to` names unless `exclusive`."""
        await self._op("move", path, to, parents=parents, exclusive=exclusive, user=user)

    async def copy(
        self,
        path: str,
        to: str,
        *,
        recursive: bool = False,
        parents: bool = False,
        exclusive: bool = False,
        user: str | None = None,
    ) -> None:
        """Copies a file, or with `recursive` a tree, inside: `to` is the new name.

        Modes (without set-id bits), times and holes are kept, owners too if root does it; each file
        appears whole; links are copied as links, sockets and devices left out. A tree is added to a
        directory that is there.
        """
        fields = {"recursive": recursive, "parents": parents, "exclusive": exclusive}
        await self._op("copy", path, to, **fields, user=user)

    async def chmod(self, path: str, mode: int, *, user: str | None = None) -> None:
        """Sets a path's mode."""
        await self._op("chmod", path, mode=mode, user=user)

    async def chown(
        self,
        path: str,
        owner: str,
        *,
        recursive: bool = False,
        follow: bool = True,
        user: str | None = None,
    ) -> None:
        """Gives a path to "USER", "USER:GROUP" or ":GROUP", names or numbers; only root may.

        With `recursive` all that is below it, and never what a link names.
        """
        await self._op("chown", path, owner=owner, recursive=recursive, follow=follow, user=user)

    async def symlink(
        self,
        target: str,
        path: str,
        *,
        parents: bool = False,
        replace: bool = False,
        user: str | None = None,
    ) -> None:
        """Makes a symbolic link at `path` that says `target`."""
        await self._op("symlink", path, target, parents=parents, replace=replace, user=user)

    async def readlink(self, path: str, *, user: str | None = None) -> str:
        """Returns what a symbolic link says; FileRefused (EINVAL) if it is none."""
        target = (await self.stat(path, user=user)).target
        if target is None:
            raise FileRefused(f"{path} is no symbolic link", errno=EINVAL, path=path)
        return target

    async def link(
        self, path: str, to: str, *, parents: bool = False, user: str | None = None
    ) -> None:
        """Gives the file `path` the further name `to`."""
        await self._op("link", path, to, parents=parents, user=user)

    async def truncate(self, path: str, size: int = 0, *, user: str | None = None) -> None:
        """Cuts a file, or lengthens it by a hole."""
        await self._op("truncate", path, size=size, user=user)

    async def utime(
        self,
        path: str,
        *,
        atime: float | None = None,
        mtime: float | None = None,
        user: str | None = None,
    ) -> None:
        """Sets a path's times in seconds since 1970; what is not given stays, without both it is now."""
        await self._op("utime", path, atime=atime, mtime=mtime, user=user)

    async def upload(
        self,
        local: str | os.PathLike[str],
        path: str,
        *,
        user: str | None = None,
        progress: Progress | None = None,
    ) -> Transfer:
        """Puts a local file at `path`, or a local directory's content beneath it.

        A `path` that ends with a slash is a directory, in which a file keeps its name. Holes are
        not sent. A file appears whole or not at all, however the transfer ends. What was left out or
        changed meanwhile stands in the answer's notes.
        """
        source = Path(local)
        notes: list[str] = []
        counter = Counter(progress)
        if source.is_dir():
            async with aclosing(pack_tree(source, counter, notes=notes)) as tar:
                await self.put_tree(path, tar, user=user)
            return Transfer(counter.count, tuple(notes))
        status = source.stat()
        if not stat.S_ISREG(status.st_mode):  # a socket cannot even be opened
            raise InvalidRequest(f"{source} is no regular file")
        if path.endswith("/"):
            path += source.name
        sparse = may_have_holes(status)
        params = params_of(path, user, parents=True, sparse=sparse)
        params["mode"] = f"{status.st_mode & 0o777:o}"
        content = file_chunks(source, counter, sparse=sparse, notes=notes)
        async with aclosing(content) as chunks:
            await self._put(params, chunks)
        return Transfer(counter.count, tuple(notes))

    async def download(
        self,
        path: str,
        local: str | os.PathLike[str],
        *,
        user: str | None = None,
        progress: Progress | None = None,
    ) -> Transfer:
        """Puts the file at `path` into a local file, or a directory's content beneath a local one.

        Missing local directories are made. Nothing is written outside `local`, no set-id bit is kept,
        holes stay holes, a file appears whole or not at all. What was left out or changed meanwhile
        stands in the answer's notes.
        """
        info = await self.stat(path, follow=True, user=user)
        if info.type is FileType.DIRECTORY:
            async with aclosing(self.get_tree(path, user=user)) as tar:
                return await unpack_tree(tar, Path(local), progress)
        target = Path(local)
        if target.is_dir():
            target /= path.rstrip("/").rpartition("/")[2]
        sparse = info.allocated is not None and info.allocated + WORTH <= info.size
        params = params_of(path, user, sparse=sparse)
        chunks = self._transport.fetch(f"{self._root}/files", params)
        async with aclosing(chunks):
            total = await save_file(chunks, target, info.mode, info.mtime, progress, sparse=sparse)
        whole = sparse or info.size in {0, total}
        return Transfer(total, () if whole else (f"changed {path}",))

    async def put_tree(
        self, path: str, tar: AsyncIterator[bytes], *, user: str | None = None
    ) -> None:
        """Unpacks a tar beneath `path` inside; members that would leave it are refused."""
        await self._transport.send("PUT", f"{self._root}/tree", tar, dict, params_of(path, user))

    async def get_tree(self, path: str, *, user: str | None = None) -> AsyncGenerator[bytes]:
        """Yields a tar of what is beneath `path`, or of that one file.

        Holes come in the sparse format 1.0 of GNU tar. If something was left out or changed while it
        was read, a last member "./" has a pax `comment` with a line for each.
        """
        async for chunk in self._transport.fetch(f"{self._root}/tree", params_of(path, user)):
            yield chunk

    async def _op(self, op: str, path: str, to: str | None = None, **fields: object) -> Entries:
        given = {name: value for name, value in fields.items() if value is not None}
        try:
            body = file_op(op, path, to, **given)
        except msgspec.ValidationError as error:
            raise wrong_type(error) from None
        # With an id it happens once, also if the answer is lost and it is asked for again.
        once = {} if op in LOOKS else {"op": secrets.token_hex(16)}
        found = await self._transport.call(
            "POST", f"{self._root}/files/op", Entries, body=body, params=once, repeatable=True
        )
        return [info_from_wire(info) for info in found]
