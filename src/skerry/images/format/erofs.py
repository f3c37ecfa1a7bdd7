"""Finding mkfs.erofs and driving it: from a tree to an image, the same bytes each time.

1.8 and newer read the tree as an archive on standard input. Older ones (Debian 12 has 1.5) get it
unpacked in a scratch directory, which needs root. Images are uncompressed unless asked otherwise:
on the Debian 12 base a cold 4 KiB read took 58 us plain and 177 us with lz4, a cold start of
python3 209 and 444 ms; lz4 saves 37 % of the space (222 to 139 MiB).
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO, cast

import msgspec

from skerry.errors import ImageBroken, StorageFailed, Unavailable
from skerry.images.archives.tarwrite import write_tar
from skerry.images.format.unpack import unpack
from skerry.images.scratch import Contents, scratch_directory, storage_errors
from skerry.images.tree.entry import Tree

Log = Callable[[str], None]

COMPRESSIONS = {"none": (), "lz4": ("-zlz4",), "zstd": ("-zzstd,level=3", "-C65536")}
_TIME_LIMIT_S = 3600.0
_PROGRESS_S = 5.0
MAGIC = 0xE0F5E1E2
_VERSION = re.compile(r"(?:mkfs\.erofs|erofs-utils\)) (\d+)\.(\d+)(?:\.(\d+))?")
_NO_SPACE = ("No space left on device", "Disk quota exceeded", "[Error 28]", "[Error 122]")


class Mkfs(msgspec.Struct, frozen=True):
    """A mkfs.erofs that works."""

    path: str
    version: tuple[int, int, int]
    compressors: tuple[str, ...]

    @property
    def reads_tar(self) -> bool:
        """Whether it takes an archive instead of a directory."""
        return self.version >= (1, 8, 0)


class Tools:
    """Programs that the library drives, and where it caches what is slow to make."""

    def __init__(self, cache_dir: str = "/var/cache/skerry", mkfs: str | None = None) -> None:
        self.cache_dir = cache_dir
        self._mkfs_path = mkfs
        self._mkfs: Mkfs | None = None

    def mkfs(self) -> Mkfs:
        """Returns the newest mkfs.erofs there is; raises Unavailable, which says what to run."""
        if self._mkfs is None:
            paths = [self._mkfs_path] if self._mkfs_path else list(_candidates(self.cache_dir))
            found = [tool for tool in map(_examine, paths) if tool is not None]
            if not found:
                raise Unavailable(
                    "there is no working mkfs.erofs: run 'make setup' "
                    "(or install the package erofs-utils, 1.8 or newer is better)"
                )
            self._mkfs = max(found, key=lambda tool: tool.version)
        return self._mkfs


def build_image(
    tree: Tree,
    spool: Contents,
    out: str,
    *,
    tools: Tools,
    scratch: str,
    compression: str = "none",
    log: Log = lambda _line: None,
) -> None:
    """Writes the EROFS image of a tree to `out`, with all that the files hold.

    Equal trees and an equal mkfs.erofs give equal bytes. Raises StorageFailed if the disk is full,
    ImageBroken if mkfs.erofs refuses the tree, Unavailable if it is missing or takes an hour.
    """
    mkfs = tools.mkfs()
    if compression not in COMPRESSIONS or not {compression} <= {"none", *mkfs.compressors}:
        raise Unavailable(f"{mkfs.path} cannot compress with {compression!r}")
    options = [*COMPRESSIONS[compression], "-U", str(tree.identity()), "--quiet"]
    if mkfs.reads_tar:
        options += ["-b4096", "-T0", "--mkfs-time", "--ovlfs-strip=0", "--tar=f"]
        chunks = _with_progress(write_tar(tree.entries(spool)), log)
        _run([mkfs.path, *options, out], chunks, scratch, log)
    else:
        if os.geteuid() != 0:
            raise Unavailable(f"{mkfs.path} is older than 1.8 and needs root: run 'make setup'")
        with scratch_directory(scratch) as directory:
            top = os.path.join(directory, "tree")
            os.mkdir(top, 0o700)
            with storage_errors("unpacking a layer in the scratch directory"):
                unpack(tree.entries(spool), top)
            # Its -T would set the files' times too, so the build's time is cleared afterwards: then
            # no inode may depend on that, and no checksum may cover it.
            options += ["--preserve-mtime", "-Eforce-inode-extended,nosbcrc"]
            _run([mkfs.path, *options, out, top], iter(()), scratch, log)
            _clear_build_time(out)
    _check_whole(out)


def _candidates(cache_dir: str) -> Iterator[str]:
    try:
        names = sorted(os.listdir(cache_dir))
    except OSError:
        names = []
    for name in names:
        if name.startswith("erofs-utils-"):
            yield os.path.join(cache_dir, name, "bin", "mkfs.erofs")
    for directory in (*os.get_exec_path(), "/usr/sbin", "/sbin"):
        yield os.path.join(directory, "mkfs.erofs")


def _examine(path: str) -> Mkfs | None:
    if not os.access(path, os.X_OK):
        return None
    try:
        version = _VERSION.search(_output([path, "--version"]))
        text = _output([path, "--help"])
    except (OSError, subprocess.TimeoutExpired):
        return None
    if version is None:
        return None
    compressors = tuple(name for name in COMPRESSIONS if re.search(rf"\b{name}\b", text))
    major, minor, patch = version.groups("0")
    return Mkfs(path, (int(major), int(minor), int(patch)), compressors)


def _output(argv: list[str]) -> str:
    # 1.5 knows no --version, exits with 1 and names its version all the same.
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=10,
        check=False,
    )
    return done.stdout.decode("utf-8", "replace")


def _with_progress(chunks: Iterator[bytes], log: Log) -> Iterator[bytes]:
    total, told = 0, time.monotonic()
    for chunk in chunks:
        yield chunk
        total += len(chunk)
        if time.monotonic() - told >= _PROGRESS_S:
            told = time.monotonic()
            log(f"packing: {total >> 20} MiB")


def _run(argv: list[str], chunks: Iterator[bytes], scratch: str, log: Log) -> None:
    """Runs mkfs.erofs with low priority and feeds it; its last lines go into the error.

    It is killed with this thread's process: of an archive that ends too early it never gets enough.
    """
    environment = {"PATH": os.defpath, "LC_ALL": "C", "TMPDIR": scratch}
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "nice", "-n", "5", *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        bufsize=1 << 20,
    )
    tail: deque[str] = deque(maxlen=20)
    reader = threading.Thread(target=_collect, args=(process, tail, log), daemon=True)
    killer = threading.Timer(_TIME_LIMIT_S, process.kill)
    reader.start()
    killer.start()
    pipe = cast("IO[bytes]", process.stdin)
    try:
        try:
            for chunk in chunks:
                pipe.write(chunk)
            pipe.close()
        except BrokenPipeError:
            pass  # it gave up; its status and last lines say why
        except BaseException:
            process.kill()  # half an archive must not become a layer
            raise
        status = process.wait()
    finally:
        killer.cancel()
        process.wait()
        reader.join()
        _close_quietly(process)
    if status == 0:
        return
    said = "; ".join(tail)
    if any(mark in said for mark in _NO_SPACE) or _is_full(scratch) or _is_full(argv[-1]):
        raise StorageFailed(f"no space for the image of a layer: {said}")
    if status == -9:
        raise Unavailable(f"mkfs.erofs was killed, or took longer than {_TIME_LIMIT_S:.0f} s")
    raise ImageBroken(f"mkfs.erofs refuses the layer (status {status}): {said}")


def _collect(process: subprocess.Popen[bytes], tail: deque[str], log: Log) -> None:
    for raw in cast("IO[bytes]", process.stdout):
        line = raw.decode("utf-8", "replace").strip()
        if line:
            tail.append(line)
            log(f"mkfs.erofs: {line}")


def _close_quietly(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        try:
            if pipe is not None:
                pipe.close()
        except BrokenPipeError:  # bytes that it never took
            pass


def _is_full(path: str) -> bool:
    try:
        space = os.statvfs(path if os.path.isdir(path) else os.path.dirname(path))
    except OSError:
        return False
    return space.f_bavail * space.f_frsize < 1 << 20


def _clear_build_time(path: str) -> None:
    with storage_errors("finishing an image"), open(path, "r+b") as file:
        file.seek(1024 + 24)
        file.write(bytes(12))


def _check_whole(path: str) -> None:
    """Raises StorageFailed unless the superblock is there and the file as long as it says."""
    with storage_errors("reading back an image"), open(path, "rb") as file:
        head = file.read(1024 + 128)
        size = os.fstat(file.fileno()).st_size
    if len(head) == 1152:
        magic, bits = struct.unpack_from("<I", head, 1024)[0], head[1024 + 12]
        blocks = struct.unpack_from("<I", head, 1024 + 36)[0]
        if magic == MAGIC and size >= blocks << bits:
            return
    raise StorageFailed("mkfs.erofs left an incomplete image")
