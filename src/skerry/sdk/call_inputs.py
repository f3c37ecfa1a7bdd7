"""What a function call brings along from here: small in its spec, long as streams."""

from __future__ import annotations

import os
import tarfile
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec

from skerry.errors import InvalidRequest
from skerry.sdk.function_options import InputFiles, files_of
from skerry.sdk.pack import Packer, opened
from skerry.sdk.transfer import file_chunks, in_thread, pack_tree
from skerry.spec.function import CallSpec, InputFile, check_inside

INLINE_MAX = 4 << 20  # of all files and input together; more is streamed

StdIn = bytes | str | os.PathLike[str] | AsyncIterator[bytes]
Open = Callable[[], AsyncGenerator[bytes]]


class CallInputs:
    """Input of one call. What a stream is made of is opened when it is asked for, again too.

    `once` is set if it cannot be opened twice: it comes from an iterator of the caller's.
    """

    def __init__(self) -> None:
        self.files: Open | None = None
        self.stdin: Open | None = None
        self.once = False

    @property
    def streamed(self) -> bool:
        """Whether there is anything that is not in the spec."""
        return self.files is not None or self.stdin is not None


def with_inputs(
    spec: CallSpec, stdin: StdIn, files: InputFiles | None
) -> tuple[CallSpec, CallInputs]:
    """Returns the spec with what is small in it, and the rest.

    Raises InvalidRequest for what is no content, OSError for a local path that cannot be read.
    """
    contents, paths = files_of(files)
    found = CallInputs()
    data = _small_input(stdin, found)
    small = all(path.is_file() for path in paths.values())
    size = len(data) + sum(len(one.content()) for one in contents.values())
    size += sum(path.stat().st_size for path in paths.values()) if small else 0
    if small and size <= INLINE_MAX:
        contents |= {name: _read(path) for name, path in paths.items()}
    elif contents or paths:
        for name in (*contents, *paths):
            if name:
                check_inside(name, "files")
        listed = dict(contents)
        found.files = lambda: _packed(listed, paths)
        contents = {}
    if len(data) > INLINE_MAX:
        whole, data = data, b""
        found.stdin = lambda: _cut(whole)
    more = {**spec.files, **contents}
    return msgspec.structs.replace(spec, stdin=data or spec.stdin, files=more), found


def _small_input(stdin: StdIn, found: CallInputs) -> bytes:
    """Returns input that is here; other input is left to be streamed."""
    if isinstance(stdin, str):
        return stdin.encode()
    if isinstance(stdin, bytes | bytearray | memoryview):
        return bytes(stdin)
    if isinstance(stdin, os.PathLike):
        path = Path(stdin)
        if path.is_file() and path.stat().st_size <= INLINE_MAX:
            return path.read_bytes()
        found.stdin = lambda: _of_path(path)
        return b""
    if not isinstance(stdin, AsyncIterable):
        raise InvalidRequest("stdin is bytes, a text, a path, or an iterator of bytes")
    found.once = True
    found.stdin = lambda: _passed(stdin)
    return b""


async def _of_path(path: Path) -> AsyncGenerator[bytes]:
    async for piece in file_chunks(path):
        yield piece


async def _passed(pieces: AsyncIterable[bytes]) -> AsyncGenerator[bytes]:
    async for piece in pieces:
        if not isinstance(piece, bytes | bytearray | memoryview):
            raise InvalidRequest("stdin gives something else than bytes")
        yield bytes(piece)


async def _cut(data: bytes) -> AsyncGenerator[bytes]:
    for at in range(0, len(data), 1 << 20):
        yield data[at : at + (1 << 20)]


def _read(path: Path) -> InputFile:
    with opened(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY) as fd:
        executable = bool(os.fstat(fd).st_mode & 0o100)
        with open(fd, "rb", closefd=False) as file:
            return InputFile(data=file.read(), executable=executable)


async def _packed(contents: dict[str, InputFile], paths: dict[str, Path]) -> AsyncGenerator[bytes]:
    """Yields one tar of all: trees as they are, without owners; contents as plain files."""
    if set(paths) == {""}:
        async for piece in pack_tree(paths[""]):
            yield piece
        return

    def pieces() -> Iterator[bytes]:
        packer = Packer([])
        for name, one in contents.items():
            content = one.content()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            packer.add(info, tarfile.REGTYPE, 0o755 if one.executable else 0o644)
            packer.buffer += content + bytes(-len(content) % tarfile.BLOCKSIZE)
        for name, path in paths.items():
            yield from _member(packer, name, path)
        yield packer.end()

    async for piece in in_thread(pieces):
        yield piece


def _member(packer: Packer, name: str, path: Path) -> Iterator[bytes]:
    if path.is_dir():
        packer.add(tarfile.TarInfo(f"{name}/"), tarfile.DIRTYPE, 0o755)
        with opened(path, os.O_RDONLY | os.O_DIRECTORY) as root:
            yield from packer.below(root, f"{name}/")
        return
    real = path.resolve(strict=True)  # what is named by a link is meant, not the link
    with opened(real.parent, os.O_RDONLY | os.O_DIRECTORY) as above:
        status = os.stat(real.name, dir_fd=above, follow_symlinks=False)
        yield from packer.member(above, real.name, name, status)
