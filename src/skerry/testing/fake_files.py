"""The fake guest's file system: a tree in memory that answers the file helper's words.

Modes, owners and times are kept; permissions are not enforced. Errors are OSErrors, as a real
helper would see them. Symbolic links are stored and followed in the last component only.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace

_MAX_LINKS = 8


@dataclass
class Node:
    """One file; `type` is the letter of a record."""

    type: str
    mode: int
    uid: int = 0
    gid: int = 0
    content: bytes = b""
    target: str = ""
    mtime_ns: int = 0


def refused(number: int, path: str) -> OSError:
    """Returns the OSError of that number for a path."""
    return OSError(number, os.strerror(number), path)


class FakeFiles:
    """Absolute path -> node. Invariant: every node's parent exists and is a directory."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {"/": Node("d", 0o755)}
        for path in ("/root", "/home", "/etc", "/dev", "/usr"):
            self.nodes[path] = Node("d", 0o755)
        self.nodes["/tmp"] = Node("d", 0o1777)  # noqa: S108
        self.initial = frozenset(self.nodes)
        self.now_ns = 1
        self.watchers: list[Callable[[str, str, str], None]] = []  # (kind, path, path before)

    def duplicate(self) -> FakeFiles:
        """Returns the tree as it is now, apart from this one."""
        copied = FakeFiles()
        copied.nodes = {path: replace(node) for path, node in self.nodes.items()}
        return copied

    def tell(self, kind: str, path: str, before: str = "") -> None:
        """Tells every watcher what happened, by the letter of a watch record."""
        for watcher in list(self.watchers):
            watcher(kind, path, before)

    def check_invariants(self) -> None:
        """Raises AssertionError if a node hangs in the air."""
        for path in self.nodes:
            if path != "/" and self.nodes[posixpath.dirname(path)].type != "d":
                raise AssertionError(f"{path} has no parent directory")

    def find(self, path: str, *, follow: bool = True) -> tuple[str, Node]:
        """Returns the path after links, and its node; ENOENT, ENOTDIR, ELOOP."""
        path = posixpath.normpath(path)
        for _ in range(_MAX_LINKS):
            node = self.nodes.get(path)
            if node is None:
                parent = self.nodes.get(posixpath.dirname(path))
                missing = parent is None or parent.type == "d"
                raise refused(errno.ENOENT if missing else errno.ENOTDIR, path)
            if node.type != "l" or not follow:
                return path, node
            path = posixpath.normpath(posixpath.join(posixpath.dirname(path), node.target))
        raise refused(errno.ELOOP, path)

    def parent(self, path: str, *, make: bool = False) -> None:
        """Checks (or makes) the directory that a path would live in."""
        above = posixpath.dirname(path)
        node = self.nodes.get(above)
        if node is None and make:
            self.parent(above, make=True)
            self.nodes[above] = Node("d", 0o755, mtime_ns=self.now_ns)
        elif node is None:
            raise refused(errno.ENOENT, path)
        elif node.type != "d":
            raise refused(errno.ENOTDIR, path)

    def children(self, path: str) -> list[str]:
        """Returns the paths right below a directory, sorted."""
        return sorted(p for p in self.nodes if p != "/" and posixpath.dirname(p) == path)

    def write(self, path: str, mode: int, flags: str, content: bytes, uid: int = 0) -> Node:
        """Writes or appends; EEXIST with `x`, EISDIR on a directory."""
        path = posixpath.normpath(path)
        old = self.nodes.get(path)
        if old is not None and "x" in flags:
            raise refused(errno.EEXIST, path)
        if old is not None and old.type == "l":
            path, old = self.find(path)
        if old is not None and old.type == "d":
            raise refused(errno.EISDIR, path)
        self.parent(path, make="p" in flags)
        before = old.content if old is not None and "a" in flags else b""
        if old is not None and ("k" in flags or "a" in flags):
            mode = old.mode & 0o1777
        node = Node("f", mode, uid, uid, before + content, mtime_ns=self.now_ns)
        self.nodes[path] = node
        self.tell("m" if old is not None else "c", path)
        return node

    def put(self, path: str, offset: int, flags: str, content: bytes, uid: int = 0) -> Node:
        """Writes over what is there from `offset` on (-1: from the end)."""
        path = posixpath.normpath(path)
        if path not in self.nodes and "c" in flags:
            self.write(path, 0o644, "p" if "p" in flags else "-", b"", uid)
        path, node = self.find(path)
        if node.type != "f":
            raise refused(errno.EISDIR if node.type == "d" else errno.EINVAL, path)
        start = len(node.content) if offset < 0 else offset
        old = node.content.ljust(start, b"\0")
        node.content = old[:start] + content + old[start + len(content) :]
        self.tell("m", path)
        return node

    def mkdir(self, path: str, mode: int, flags: str) -> None:
        """Makes a directory; EEXIST unless `p` and it is one."""
        path = posixpath.normpath(path)
        old = self.nodes.get(path)
        if old is not None:
            if "p" in flags and old.type == "d":
                return
            raise refused(errno.EEXIST, path)
        self.parent(path, make="p" in flags)
        self.nodes[path] = Node("d", mode, mtime_ns=self.now_ns)
        self.tell("c", path)

    def remove(self, path: str, flags: str) -> None:
        """Removes; ENOTEMPTY for a directory with content unless `r`."""
        path, node = self.find(path, follow=False)
        if node.type == "d" and self.children(path):
            if "r" not in flags:
                raise refused(errno.ENOTEMPTY, path)
            for child in self.children(path):
                self.remove(child, "r")
        del self.nodes[path]
        self.tell("d", path)

    def rename(self, source: str, target: str, flags: str = "-") -> None:
        """Moves a file or tree; EEXIST with `x`."""
        source, _ = self.find(source, follow=False)
        target = posixpath.normpath(target)
        if "x" in flags and target in self.nodes:
            raise refused(errno.EEXIST, target)
        self.parent(target, make="p" in flags)
        moved = [p for p in self.nodes if p == source or p.startswith(source + "/")]
        for path in moved:
            self.nodes[target + path[len(source) :]] = self.nodes.pop(path)
        self.tell("v", target, source)

    def copy(self, source: str, target: str, flags: str) -> None:
        """Copies a file, or with `r` a tree; EEXIST with `x`."""
        source, node = self.find(source)
        target = posixpath.normpath(target)
        if "x" in flags and target in self.nodes:
            raise refused(errno.EEXIST, target)
        if node.type == "d" and "r" not in flags:
            raise refused(errno.EISDIR, source)
        self.parent(target, make="p" in flags)
        below = [p for p in self.nodes if p == source or p.startswith(source + "/")]
        for path in below:
            self.nodes[target + path[len(source) :]] = replace(self.nodes[path])
        self.tell("c", target)

    def chmod(self, path: str, mode: int) -> None:
        """Changes the mode."""
        path, node = self.find(path)
        node.mode = mode
        self.tell("a", path)

    def chown(self, path: str, owner: str, flags: str) -> None:
        """Changes owners; names are not known here, but for root."""
        path, _ = self.find(path, follow="h" not in flags)
        user, _, group = owner.replace("root", "0").partition(":")
        if not (user or "0").isdigit() or not (group or "0").isdigit():
            raise refused(errno.EINVAL, owner)
        below = [p for p in self.nodes if p == path or ("r" in flags and p.startswith(path + "/"))]
        for name in below:
            node = self.nodes[name]
            node.uid = int(user) if user else node.uid
            node.gid = int(group) if group else node.gid
            self.tell("a", name)

    def symlink(self, path: str, target: str, flags: str) -> None:
        """Makes a symbolic link; EEXIST unless `f`."""
        path = posixpath.normpath(path)
        if path in self.nodes and ("f" not in flags or self.nodes[path].type == "d"):
            raise refused(errno.EEXIST, path)
        self.parent(path, make="p" in flags)
        self.nodes[path] = Node("l", 0o777, target=target, mtime_ns=self.now_ns)
        self.tell("c", path)

    def link(self, path: str, target: str, flags: str) -> None:
        """Gives a file another name."""
        path = posixpath.normpath(path)
        _, node = self.find(target, follow=False)
        if path in self.nodes:
            raise refused(errno.EEXIST, path)
        self.parent(path, make="p" in flags)
        self.nodes[path] = node
        self.tell("c", path)

    def truncate(self, path: str, size: int) -> None:
        """Cuts or lengthens a file."""
        path, node = self.find(path)
        if node.type != "f":
            raise refused(errno.EISDIR, path)
        node.content = node.content[:size].ljust(size, b"\0")
        self.tell("m", path)

    def utime(self, path: str, mtime: str) -> None:
        """Sets the time of the last change."""
        path, node = self.find(path, follow=False)
        if mtime != "keep":
            node.mtime_ns = self.now_ns if mtime == "now" else int(mtime)
        self.tell("a", path)

    def record(self, name: str, node: Node) -> bytes:
        """Returns the record of native/PROTOCOL.md for a node."""
        text, link = os.fsencode(name), os.fsencode(node.target)
        size = len(node.content) if node.type == "f" else 0
        head = f"{node.type} {node.mode:o} {node.uid} {node.gid} {size} {node.mtime_ns}"
        return f"{head} {len(text)} {len(link)} {size}\n".encode() + text + link

    def tree_get(self, path: str) -> bytes:
        """Returns a tar of the content below a directory, names relative to it."""
        path, node = self.find(path)
        if node.type != "d":
            raise refused(errno.ENOTDIR, path)
        out = io.BytesIO()
        prefix = path.rstrip("/") + "/"
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for name in sorted(p for p in self.nodes if p.startswith(prefix) and p != path):
                self._tar_add(tar, name[len(prefix) :], self.nodes[name])
        return out.getvalue()

    def _tar_add(self, tar: tarfile.TarFile, name: str, node: Node) -> None:
        member = tarfile.TarInfo(name)
        member.mode, member.uid, member.gid = node.mode, node.uid, node.gid
        member.mtime = node.mtime_ns // 10**9
        member.type = {"d": tarfile.DIRTYPE, "l": tarfile.SYMTYPE}.get(node.type, tarfile.REGTYPE)
        member.linkname = node.target
        member.size = len(node.content) if node.type == "f" else 0
        tar.addfile(member, io.BytesIO(node.content))

    def tree_put(self, path: str, content: bytes) -> None:
        """Unpacks a tar; EINVAL if it is none, EPERM if a name would leave the target."""
        try:
            tar = tarfile.open(fileobj=io.BytesIO(content))  # noqa: SIM115
        except tarfile.TarError as error:
            raise refused(errno.EINVAL, path) from error
        self.mkdir(path, 0o755, "p")
        with tar:
            for member in tar:
                if member.name.startswith("/") or ".." in member.name.split("/"):
                    raise refused(errno.EPERM, member.name)
                where = posixpath.normpath(posixpath.join(path, member.name))
                self.parent(where, make=True)
                if member.isdir():
                    self.nodes.setdefault(where, Node("d", member.mode)).mode = member.mode
                elif member.issym():
                    self.nodes[where] = Node("l", 0o777, target=member.linkname)
                elif member.isreg():
                    reader = tar.extractfile(member)
                    data = reader.read() if reader is not None else b""
                    self.nodes[where] = Node("f", member.mode, content=data)
