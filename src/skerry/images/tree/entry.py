"""One file of a layer, and the tree that all sources of layers fill.

Names are bytes throughout. A tree lives in memory (about 0.5 KB a file, bounded by the importers'
limits on entries); contents lie in a spool. Nothing here touches the file system, so a tree can
hold what a hostile archive or sandbox made up without any danger.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from skerry.errors import Bug, ImageBroken
from skerry.images.scratch import Content, Contents
from skerry.spec.files import FileType

LAYER_IDS = 65_536  # ids that a layer may hold: those of a sandbox's user namespace
NAME_BYTES_MAX = 255
PATH_BYTES_MAX = 16_384  # mkfs.erofs takes longer paths only from some sources
# On a root: a digest of the parts of the same layer below, so that its own depends on them.
BELOW = b"trusted.skerry.below"
OPAQUE = b"trusted.overlay.opaque"
# On a directory: overlayfs filters whiteouts from its listing also where nothing is merged into
# it. Without it a whiteout that hides nothing shows as a name that cannot be looked at.
ORIGIN = b"trusted.overlay.origin"


@dataclass(slots=True)
class Node:
    """A file without its name; several names may share one (hard links).

    A node of type CHARACTER is always a whiteout (0:0): a layer holds no other device.
    """

    type: FileType
    mode: int
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    target: bytes = b""
    content: Content | None = None
    xattrs: dict[bytes, bytes] = field(default_factory=dict)
    children: dict[bytes, Node] | None = None
    shared: bool = False  # it may have several names
    implied: bool = False  # a directory that nobody described: only paths lead through it


@dataclass(slots=True)
class Entry:
    """A file with its path (relative, b"" is the root), as it goes into an archive or an image."""

    path: bytes
    node: Node
    size: int = 0
    hard_link: bytes | None = None  # path of the earlier entry that is the same file
    data: Callable[[], Iterator[bytes]] | None = None


def make_directory(mode: int = 0o755) -> Node:
    """Returns an empty directory of root's."""
    return Node(FileType.DIRECTORY, mode, children={})


def make_whiteout() -> Node:
    """Returns the mark that hides the same name in the layers below."""
    return Node(FileType.CHARACTER, 0)


def show(path: bytes) -> str:
    """Returns a path for messages: absolute, cut in the middle when long."""
    text = "/" + path.decode("utf-8", "backslashreplace")
    return text if len(text) <= 200 else f"{text[:120]}[...]{text[-60:]}"


class Tree:
    """The files of one layer. The root is always a directory.

    A later file replaces an earlier one of the same path; a directory that replaces a directory
    keeps what is in it. Missing parents are made (0755, root's). A path never leads through a
    symbolic link or any other file: ImageBroken.
    """

    def __init__(self) -> None:
        self.root = make_directory()
        self.root.implied = True
        self.made = 1  # nodes ever put, those since replaced included

    def find(self, path: bytes) -> Node | None:
        """Returns the node at a path, None if there is none; follows no links."""
        node = self.root
        for name in path.split(b"/") if path else ():
            child = node.children.get(name) if node.children is not None else None
            if child is None:
                return None
            node = child
        return node

    def directory(self, path: bytes) -> Node:
        """Returns the directory at a path, made if it is missing."""
        node = self.root
        for name in path.split(b"/") if path else ():
            children = _children(node)
            child = children.get(name)
            if child is None or child.type is FileType.CHARACTER:
                hidden = child is not None  # a directory over a whiteout hides what is below it
                child = children[name] = make_directory()
                child.implied = True
                self.made += 1
                if hidden:
                    child.xattrs[OPAQUE] = b"y"
            elif child.children is None:
                raise ImageBroken(f"{show(path)}: a part of this path is no directory")
            node = child
        return node

    def put(self, path: bytes, node: Node) -> None:
        """Places a node."""
        parent_path, _, name = path.rpartition(b"/")
        if not name:
            if node.type is not FileType.DIRECTORY:
                raise ImageBroken("the root is no directory")
            node.children = self.root.children
            self.root = node
            return
        siblings = _children(self.directory(parent_path))
        if node.type is FileType.DIRECTORY:
            old = siblings.get(name)
            node.children = old.children if old and old.children is not None else {}
            if old and (old.type is FileType.CHARACTER or OPAQUE in old.xattrs):
                node.xattrs[OPAQUE] = b"y"
        siblings[name] = node
        self.made += 1

    def entries(self, spool: Contents | None) -> Iterator[Entry]:
        """Gives all files in the order of their paths, parents first.

        Directories with whiteouts get the mark that makes overlayfs look for them.
        """
        _mark(self.root)
        first: dict[int, bytes] = {}  # by identity: where a file of several names came first
        yield Entry(b"", self.root)
        levels = [(b"", iter(sorted(_children(self.root).items())))]
        while levels:
            above, names = levels[-1]
            name, node = next(names, (b"", self.root))
            if not name:
                levels.pop()
                continue
            path = above + b"/" + name if above else name
            entry = Entry(path, node)
            if node.children is not None:
                _mark(node)
                levels.append((path, iter(sorted(node.children.items()))))
            elif node.shared and id(node) in first:
                entry.hard_link = first[id(node)]
            elif node.content is not None and spool is not None:
                entry.size = node.content.size
                entry.data = partial(spool.read, node.content)
            if node.shared:
                first.setdefault(id(node), path)
            yield entry

    def identity(self) -> uuid.UUID:
        """Returns a UUID that depends on everything in the tree and on nothing else."""
        total = hashlib.sha256(b"skerry layer 1\n")
        for entry in self.entries(None):
            node = entry.node
            fields: list[bytes] = [
                entry.path,
                f"{node.type} {node.mode:o} {node.uid} {node.gid} {node.mtime_ns}".encode(),
                node.target,
                entry.hard_link or b"",
                node.content.sha256 if node.content else b"",
            ]
            for key, value in sorted(node.xattrs.items()):
                fields += [key, value]
            for one in fields:
                total.update(len(one).to_bytes(8, "little"))
                total.update(one)
        return uuid.UUID(bytes=total.digest()[:16], version=4)

    def content_sizes(self) -> Iterator[int]:
        """Gives how many bytes each file holds, each file once however many names it has."""
        for entry in self.entries(None):
            if entry.hard_link is None and entry.node.content is not None:
                yield entry.node.content.size

    def content_bytes(self) -> int:
        """Returns how many bytes all files hold together."""
        return sum(self.content_sizes())

    def count(self) -> int:
        """Returns the number of names in the tree, the root's included."""
        return sum(1 for _ in self.entries(None))


def _mark(node: Node) -> None:
    if any(child.type is FileType.CHARACTER for child in _children(node).values()):
        node.xattrs[ORIGIN] = b""
    else:
        node.xattrs.pop(ORIGIN, None)  # trees that were merged may have lost their whiteouts


def _children(node: Node) -> dict[bytes, Node]:
    if node.children is None:
        raise Bug("a file was taken for a directory")
    return node.children
