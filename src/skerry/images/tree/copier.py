"""Copying files from a directory that may be hostile into a tree."""

from __future__ import annotations

import os
from collections.abc import Callable

from skerry.errors import ImageBroken
from skerry.images.scratch import Content
from skerry.images.tree.entry import OPAQUE, Node, Tree, show
from skerry.images.tree.files import file_type, inside_xattrs, read_link
from skerry.images.tree.notes import Notes
from skerry.images.tree.upper import Seen, UpperLimits
from skerry.spec.files import FileType

# From a file's attributes and path to its uid, gid and mode in the layer.
Owners = Callable[[os.stat_result, bytes], tuple[int, int, int]]
# From a regular file to where its content will be found.
Keep = Callable[[Seen, os.stat_result], Content]


class Copier:
    """Fills `tree` with what a walk shows, contents as `keep` has them; hard links stay such."""

    def __init__(
        self, uid_base: int, owners: Owners, keep: Keep, notes: Notes, limits: UpperLimits
    ) -> None:
        self.tree = Tree()
        self._uid_base = uid_base
        self._owners = owners
        self._keep = keep
        self._notes = notes
        self._bytes_left = limits.bytes_max
        self._attributes_left = limits.path_bytes_max
        self._linked: dict[tuple[int, int], Node] = {}

    def place(self, path: bytes, seen: Seen, info: os.stat_result) -> None:
        """Puts what was seen into the tree at `path`; sockets and devices are only noted.

        Raises ImageBroken if it changes meanwhile or the contents exceed the limit.
        """
        kind = file_type(info)
        if kind in (FileType.SOCKET, FileType.CHARACTER, FileType.BLOCK):
            self._notes.add("sockets and devices dropped", seen.path)
            return
        identity = (info.st_dev, info.st_ino)
        shared = info.st_nlink > 1 and kind is not FileType.DIRECTORY
        node = self._linked.get(identity) if shared else None
        if node is None:
            node = self._node(seen, info, kind)
            if shared:
                node.shared = True
                self._linked[identity] = node
        self.tree.put(path, node)

    def _node(self, seen: Seen, info: os.stat_result, kind: FileType) -> Node:
        uid, gid, mode = self._owners(info, seen.path)
        node = Node(kind, mode, uid, gid, max(0, info.st_mtime_ns))
        if kind is FileType.SYMLINK:
            node.mode = 0o777
            node.target = read_link(seen.parent, seen.name, seen.path)
        elif kind in (FileType.FILE, FileType.DIRECTORY):
            node.xattrs = inside_xattrs(seen.parent, seen.name, info, self._uid_base, seen.path)
            self._attributes_left -= sum(map(len, (*node.xattrs, *node.xattrs.values())))
            if self._attributes_left < 0:
                raise ImageBroken(f"{show(seen.path)}: too many attributes", limit="attributes")
        if kind is FileType.FILE:
            self._bytes_left -= info.st_size
            if self._bytes_left < 0:
                raise ImageBroken(f"{show(seen.path)}: too many bytes", limit="bytes")
            node.content = self._keep(seen, info)
        if seen.opaque:
            node.xattrs[OPAQUE] = b"y"
        return node
