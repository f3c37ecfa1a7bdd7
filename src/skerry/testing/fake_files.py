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
from dataclasses import dataclass

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
        node = Node("f", mode, uid, uid, before + content, mtime_ns=self.now_ns)
        self.nodes[path] = node
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

    def remove(self, path: str, flags: str) -> None:
        """Removes; ENOTEMPTY for a directory with content unless `r`."""
        path, node = self.find(path, follow=False)
        if node.type == "d" and self.children(path):
            if "r" not in flags:
                raise refused(errno.ENOTEMPTY, path)
            for child in self.children(path):
                self.remove(child, "r")
        del self.nodes[path]

    def rename(self, source: str, target: str) -> None:
        """Moves a file or tree."""
        source, _ = self.find(source, follow=False)
        target = posixpath.normpath(target)
        self.parent(target)
        moved = [p for p in self.nodes if p == source or p.startswith(source + "/")]
        for path in moved:
            self.nodes[target + path[len(source) :]] = self.nodes.pop(path)

    def chmod(self, path: str, mode: int) -> None:
        """Changes the mode."""
        self.find(path)[1].mode = mode

    def record(self, name: str, node: Node) -> bytes:
        """Returns the record of native/PROTOCOL.md for a node."""
        text, link = os.fsencode(name), os.fsencode(node.target)
        size = len(node.content) if node.type == "f" else 0
        head = f"{node.type} {node.mode:o} {node.uid} {node.gid} {size} {node.mtime_ns}"
        return f"{head} {len(text)} {len(link)}\n".encode() + text + link

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


def _stat(files: FakeFiles, path: str) -> bytes:
    where, node = files.find(path, follow=False)
    return files.record(posixpath.basename(where), node)


def _list(files: FakeFiles, path: str) -> bytes:
    where, node = files.find(path)
    if node.type != "d":
        raise refused(errno.ENOTDIR, path)
    found = files.children(where)
    return b"".join(files.record(posixpath.basename(p), files.nodes[p]) for p in found)


def _read(files: FakeFiles, path: str, offset: int, length: int) -> bytes:
    _, node = files.find(path)
    if node.type == "d":
        raise refused(errno.EISDIR, path)
    return node.content[offset:] if length < 0 else node.content[offset : offset + length]


def run_words(files: FakeFiles, words: list[str], stdin: bytes, cwd: str) -> bytes:
    """Returns the stdout of one file-helper call; raises OSError as the helper would fail."""
    verb, rest = words[0], words[1:]
    path = posixpath.join(cwd, rest[0]) if rest else cwd
    if verb == "read":
        return _read(files, path, int(rest[1]), int(rest[2]))
    if verb == "write":
        node = files.write(path, int(rest[1], 8), rest[2], stdin)
        return files.record(posixpath.basename(path), node)
    if verb == "stat":
        return _stat(files, path)
    if verb == "list":
        return _list(files, path)
    if verb == "tree-get":
        return files.tree_get(path)
    if verb == "mkdir":
        files.mkdir(path, int(rest[1], 8), rest[2])
    elif verb == "remove":
        files.remove(path, rest[1])
    elif verb == "rename":
        files.rename(path, posixpath.join(cwd, rest[1]))
    elif verb == "chmod":
        files.chmod(path, int(rest[1], 8))
    elif verb == "tree-put":
        files.tree_put(path, stdin)
    else:
        raise refused(errno.EINVAL, verb)
    return b""
