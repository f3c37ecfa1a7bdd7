"""The words of the file helper, answered from a fake file system."""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
from collections.abc import Awaitable, Callable
from fnmatch import fnmatchcase

from skerry.testing.fake_files import FakeFiles, refused

_BLOCK = 512


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


def _usage(files: FakeFiles, path: str) -> bytes:
    where, node = files.find(path, follow=False)
    below = [p for p in files.nodes if p == where or p.startswith(where.rstrip("/") + "/")]
    nodes = [node, *(files.nodes[p] for p in below if p != where)]
    size = sum(len(node.content) for node in nodes if node.type == "f")
    directories = sum(node.type == "d" for node in nodes)
    return f"{size} {size} {len(nodes) - directories} {directories} 0\n".encode()


def _walk(files: FakeFiles, path: str, depth: int, types: str, glob: str) -> bytes:
    """Records of what is below; `**` matches across parts."""
    where, node = files.find(path)
    if node.type != "d":
        raise refused(errno.ENOTDIR, path)
    prefix = where.rstrip("/") + "/"
    out = b""
    for found in sorted(p for p in files.nodes if p.startswith(prefix) and p != where):
        name = found[len(prefix) :]
        if depth >= 0 and name.count("/") >= depth:
            continue
        if types.strip("-") and files.nodes[found].type not in types:
            continue
        if glob and not _matches(glob, name):
            continue
        out += files.record(name, files.nodes[found])
    return out


def _matches(glob: str, name: str) -> bool:
    if "/" not in glob:
        return fnmatchcase(posixpath.basename(name), glob)
    return _parts_match(glob.split("/"), name.split("/"))


def _parts_match(glob: list[str], parts: list[str]) -> bool:
    if not glob:
        return not parts
    if glob[0] == "**":
        return len(glob) == 1 or any(
            _parts_match(glob[1:], parts[skip:]) for skip in range(len(parts))
        )
    return bool(parts) and fnmatchcase(parts[0], glob[0]) and _parts_match(glob[1:], parts[1:])


def _sparse(content: bytes) -> bytes:
    """One piece of all the content, and the empty one at its end."""
    text = f"2\n0\n{len(content)}\n{len(content)}\n0\n".encode()
    return text + bytes(-len(text) % _BLOCK) + content


def _from_sparse(stream: bytes) -> bytes:
    """The content that a map and its pieces stand for."""
    count, _, rest = stream.partition(b"\n")
    numbers = [int(line) for line in rest.split(b"\n", 2 * int(count))[: 2 * int(count)]]
    used = len(b"\n".join([count, *(b"%d" % number for number in numbers)])) + 1
    at = used + -used % _BLOCK
    content = bytearray()
    for offset, size in zip(numbers[::2], numbers[1::2], strict=True):
        content = content.ljust(offset, b"\0") + stream[at : at + size]
        at += size
    return bytes(content)


def _written(files: FakeFiles, words: list[str], path: str, stdin: bytes, uid: int) -> bytes:
    if words[0] == "put":
        node = files.put(path, int(words[2]), words[3], stdin, uid)
    else:
        content = _from_sparse(stdin) if "s" in words[3] else stdin
        node = files.write(path, int(words[2], 8), words[3], content, uid)
    return files.record(posixpath.basename(path), node)


def _told(files: FakeFiles, words: list[str], path: str, stdin: bytes) -> bytes | None:
    """Returns the answer of a word that only looks, None if it is none of these."""
    match words[0]:
        case "read":
            return _read(files, path, int(words[2]), int(words[3]))
        case "tail":
            return _read(files, path, max(0, len(_read(files, path, 0, -1)) - int(words[2])), -1)
        case "sparse":
            return _sparse(_read(files, path, 0, -1))
        case "write" | "put":
            return _written(files, words, path, stdin, 0)
        case "stat":
            return _stat(files, path)
        case "follow":
            where, node = files.find(path)
            return files.record(posixpath.basename(where) or "/", node)
        case "list":
            return _list(files, path)
        case "walk":
            return _walk(files, path, int(words[2]), words[3], words[4])
        case "usage":
            return _usage(files, path)
        case "tree-get":
            return files.tree_get(path)
    return None


def run_words(files: FakeFiles, words: list[str], stdin: bytes, cwd: str) -> bytes:
    """Returns the stdout of one file-helper call; raises OSError as the helper would fail."""
    path = posixpath.join(cwd, words[1]) if len(words) > 1 else cwd
    answer = _told(files, words, path, stdin)
    if answer is not None:
        return answer
    changes: dict[str, Callable[[], None]] = {
        "mkdir": lambda: files.mkdir(path, int(words[2], 8), words[3]),
        "remove": lambda: files.remove(path, words[2]),
        "rename": lambda: files.rename(path, posixpath.join(cwd, words[2])),
        "move": lambda: files.rename(path, posixpath.join(cwd, words[2]), words[3]),
        "copy": lambda: files.copy(path, posixpath.join(cwd, words[2]), words[3]),
        "chmod": lambda: files.chmod(path, int(words[2], 8)),
        "chown": lambda: files.chown(path, words[2], words[3]),
        "symlink": lambda: files.symlink(path, words[2], words[3]),
        "link": lambda: files.link(path, posixpath.join(cwd, words[2]), words[3]),
        "truncate": lambda: files.truncate(path, int(words[2])),
        "utime": lambda: files.utime(path, words[3]),
        "tree-put": lambda: files.tree_put(path, stdin),
    }
    if words[0] not in changes:
        raise refused(errno.EINVAL, words[0])
    changes[words[0]]()
    return b""


async def watch_words(
    files: FakeFiles, words: list[str], cwd: str, write: Callable[[bytes], Awaitable[None]]
) -> None:
    """Writes watch records until the watched path is gone."""
    top, _ = files.find(posixpath.join(cwd, words[1]))
    queue: asyncio.Queue[tuple[str, str, str]] = asyncio.Queue()

    def tell(kind: str, path: str, before: str) -> None:
        queue.put_nowait((kind, path, before))

    files.watchers.append(tell)
    try:
        await write(b"r d 0 0\n")
        while True:
            kind, path, before = await queue.get()
            name = path.removeprefix(top.rstrip("/") + "/")
            if path != top and (name == path or ("/" in name and "r" not in words[2])):
                continue
            what = b"" if path == top else os.fsencode(name)
            source = os.fsencode(before.removeprefix(top.rstrip("/") + "/"))
            node = files.nodes.get(path)
            letter = "d" if node is not None and node.type == "d" else "f"
            await write(f"{kind} {letter} {len(what)} {len(source)}\n".encode() + what + source)
            if path == top and kind == "d":
                return
    finally:
        files.watchers.remove(tell)
