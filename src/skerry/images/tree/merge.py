"""Laying trees over each other as overlayfs does with layers: many become one, or a few.

Whiteouts and opaque marks are kept, so that a merge means on any lowers what its layers meant
there. Nothing here reads a file; contents stay in their spool.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from skerry.errors import Bug
from skerry.images.tree.entry import OPAQUE, ORIGIN, Node, Tree
from skerry.spec.files import FileType

COLLAPSE_BYTES = 3 << 30  # as the paper has it: below that, a layer less is worth more than sharing


def merge(lower: Tree, upper: Tree) -> None:
    """Makes `lower` what both show together; `upper` must not be used afterwards."""
    if not upper.root.implied:
        _describe(lower.root, upper.root)
    pairs = [(lower.root, upper.root)]
    while pairs:
        old, new = pairs.pop()
        theirs = _children(old)
        for name, node in _children(new).items():
            below = theirs.get(name)
            if below is None or node.children is None:
                theirs[name] = node
            elif below.children is None or OPAQUE in node.xattrs:
                # What a file or a whiteout hid below must stay hidden behind the directory too.
                node.xattrs[OPAQUE] = b"y"
                theirs[name] = node
            else:
                _describe(below, node)
                pairs.append((below, node))
    lower.made += upper.made


def strip(tree: Tree) -> None:
    """Removes whiteouts and opaque marks, which mean nothing where no layer lies below."""
    directories = [tree.root]
    while directories:
        node = directories.pop()
        node.xattrs.pop(OPAQUE, None)
        node.xattrs.pop(ORIGIN, None)
        children = _children(node)
        for name in [name for name, child in children.items() if _is_whiteout(child)]:
            del children[name]
        directories += [child for child in children.values() if child.children is not None]


def find_merged(trees: Iterable[Tree], path: bytes) -> Node | None:
    """Returns what trees, given topmost first, show together at a path; None if nothing."""
    names = path.split(b"/") if path else []
    for tree in trees:
        node, ends = _find(tree.root, names)
        if node is not None or ends:
            return node
    return None


class Collapse:
    """Layers added lowest first, merged as long as a merge's contents stay below a threshold.

    `trees` are the results, lowest first. A layer that is larger alone stays alone.
    """

    def __init__(self, threshold: int = COLLAPSE_BYTES) -> None:
        self._threshold = threshold
        self._bytes = 0
        self.trees: list[Tree] = []

    def add(self, tree: Tree) -> None:
        """Adds the next layer above; the tree must not be used afterwards.

        Directories that its archive did not describe stay what they are below.
        """
        self._describe_implied(tree)
        size = tree.content_bytes()
        if self.trees and self._bytes + size <= self._threshold:
            merge(self.trees[-1], tree)
            self._bytes += size
        else:
            self.trees.append(tree)
            self._bytes = size

    def put_on_top(self, path: bytes, node: Node) -> None:
        """Places a node in the topmost layer."""
        if not self.trees:
            self.trees.append(Tree())
        top = Tree()
        top.put(path, node)
        self._describe_implied(top)
        merge(self.trees[-1], top)

    def find(self, path: bytes) -> Node | None:
        """Returns what the layers so far show at a path."""
        return find_merged(reversed(self.trees), path)

    def files(self) -> int:
        """Returns how many nodes were ever put, for bounds."""
        return sum(tree.made for tree in self.trees)

    def _describe_implied(self, tree: Tree) -> None:
        for path, node in _implied(tree):
            there = self.find(path)
            if there is not None and there.children is not None:
                opaque = OPAQUE in node.xattrs
                _describe(node, there)
                node.xattrs.pop(OPAQUE, None)
                if opaque:
                    node.xattrs[OPAQUE] = b"y"


def _find(root: Node, names: Sequence[bytes]) -> tuple[Node | None, bool]:
    """Returns what one tree has, and whether it hides what lies below."""
    node, hides = root, OPAQUE in root.xattrs
    for name in names:
        child = node.children.get(name) if node.children is not None else None
        if child is None:
            return None, hides or node.children is None
        node = child
        if _is_whiteout(node):
            return None, True
        hides = hides or OPAQUE in node.xattrs
    return node, True


def _describe(node: Node, by: Node) -> None:
    """Gives a directory the attributes of another; a mark that it is opaque stays."""
    node.mode, node.uid, node.gid, node.mtime_ns = by.mode, by.uid, by.gid, by.mtime_ns
    opaque = node.xattrs.get(OPAQUE)
    node.xattrs = dict(by.xattrs)
    if opaque is not None:
        node.xattrs[OPAQUE] = opaque
    node.implied = by.implied


def _implied(tree: Tree) -> Iterator[tuple[bytes, Node]]:
    directories = [(b"", tree.root)]
    while directories:
        above, node = directories.pop()
        for name, child in _children(node).items():
            if child.children is not None:
                path = above + b"/" + name if above else name
                directories.append((path, child))
                if child.implied:
                    yield path, child


def _is_whiteout(node: Node) -> bool:
    return node.type is FileType.CHARACTER


def _children(node: Node) -> dict[bytes, Node]:
    if node.children is None:
        raise Bug("a file was taken for a directory")
    return node.children
