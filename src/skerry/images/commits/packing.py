"""Packing what a sandbox wrote into the blobs of a layer; in a process apart, at low priority.

    python -m skerry.images.commits.packing            (a Job on standard input, as JSON)

The process tells of its progress on standard output, one JSON object a line, the last one being its
Packed or why there is none. It ends with its standard input: nobody is there any more who would
publish what it makes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import IO, Any, Final, TypeVar, cast

import msgspec

from skerry.errors import ImageBroken, SkerryError, Unavailable, from_code
from skerry.images.commits.commit import Wish, read_upper
from skerry.images.commits.inplace import InPlace
from skerry.images.commits.merged import Merged
from skerry.images.commits.residue import PASSWD_BYTES_MAX, Residue, homes_in
from skerry.images.format.chunks import Codec, decode_list
from skerry.images.format.erofs import Log, Tools
from skerry.images.format.pair import BuiltLayer, build_layer
from skerry.images.tree.notes import Notes
from skerry.images.tree.upper import UpperLimits
from skerry.spec.residue import Scrubbed

NICE: Final = 10
_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30}
_IOPRIO_LOWEST: Final = 2 << 13 | 7  # best effort, after all others: idle could wait for ever
_LINE_BYTES_MAX: Final = 32 << 20  # the digests of 64 GiB in chunks take 11 MiB as text


_J = TypeVar("_J", bound=msgspec.Struct)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What is packed: an upper that does not change, over its mounted lowers."""

    path: str
    uid_base: int
    lowers: tuple[str, ...]
    scratch: str  # where the blobs are left
    exclude: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    limits: UpperLimits = UpperLimits()
    compression: str = "none"
    codec: Codec = Codec.NONE
    cache_dir: str = ""
    mkfs: str | None = None


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it: files in the scratch directory, and what there is to say."""

    path: str
    digest: str
    size_bytes: int
    files: int
    data: str | None = None
    chunks: bytes = b""  # the encoded list of the data blob
    notes: tuple[str, ...] = ()
    scrubbed: tuple[Scrubbed, ...] = ()

    @classmethod
    def of(cls, built: BuiltLayer, files: int, **more: Any) -> Packed:
        """Returns what there is to say of blobs that were made."""
        return cls(
            path=built.path,
            digest=built.digest,
            size_bytes=built.size_bytes,
            files=files,
            data=built.data,
            chunks=built.chunks.encode() if built.chunks is not None else b"",
            **more,
        )

    def built(self) -> BuiltLayer:
        """Returns the blobs as the store takes them."""
        chunks = decode_list(self.chunks) if self.chunks else None
        return BuiltLayer(self.path, self.digest, self.size_bytes, self.data, chunks)


class _Said(msgspec.Struct, omit_defaults=True):
    """One line of the process apart."""

    log: str | None = None
    packed: Packed | None = None
    error: tuple[str, str, dict[str, Any]] | None = None


def pack(job: Job, tools: Tools, log: Log) -> Packed:
    """Makes the blobs. The contents of files are read while they are packed, and only once.

    Raises ImageBroken at a limit or if the upper changes, StorageFailed if the disk is full.
    """
    with contextlib.closing(InPlace(job.path)) as contents:
        wish = Wish(Notes(), Residue(job.rules, _homes(job)), job.limits, job.exclude)
        tree = read_upper(job, contents, wish)
        files, size = tree.count(), tree.content_bytes()
        log(f"packing {files} files, {size >> 20} MiB")
        built = build_layer(
            tree,
            contents,
            job.scratch,
            tools=tools,
            compression=job.compression,
            codec=job.codec,
            log=log,
        )
        notes = tuple(wish.notes.lines())
        return Packed.of(built, files, notes=notes, scrubbed=wish.scrub.report())


def _homes(job: Job) -> tuple[bytes, ...]:
    """Returns the homes that the sandbox's users have in unusual places."""
    with contextlib.closing(Merged((job.path, *job.lowers))) as merged:
        try:
            return homes_in(merged.read(b"etc/passwd", PASSWD_BYTES_MAX) or b"")
        except ImageBroken:  # one of that size is no list of users
            return ()


class Apart:
    """A process that packs. `end` may be called by any thread at any time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self.ended = False

    def pack(self, job: Job, log: Log) -> Packed:
        """Does what `pack` does, raises what that raises; Unavailable if it was ended."""
        return self.run("skerry.images.commits.packing", job, log)

    def run(self, module: str, job: msgspec.Struct, log: Log) -> Packed:
        """Has a module that calls `serve` do a job; raises what that raises, or Unavailable."""
        process = self._start(module)
        try:
            pipe = cast("IO[bytes]", process.stdin)
            with contextlib.suppress(BrokenPipeError):
                pipe.write(msgspec.json.encode(job) + b"\n")
                pipe.flush()
            return self._result(process, log)
        finally:
            process.kill()
            process.wait()
            for end in (process.stdin, process.stdout, process.stderr):
                with contextlib.suppress(BrokenPipeError):
                    cast("IO[bytes]", end).close()

    def end(self) -> None:
        """Ends it; whoever waits for it gets Unavailable."""
        with self._lock:
            self.ended = True
            if self._process is not None:
                self._process.kill()

    def _start(self, module: str) -> subprocess.Popen[bytes]:
        with self._lock:
            if self.ended:
                raise Unavailable("the packing of a layer was ended")
            self._process = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
            )
            return self._process

    def _result(self, process: subprocess.Popen[bytes], log: Log) -> Packed:
        tail: deque[bytes] = deque(maxlen=20)
        reader = threading.Thread(target=tail.extend, args=(process.stderr,), daemon=True)
        reader.start()
        output = cast("IO[bytes]", process.stdout)
        while line := output.readline(_LINE_BYTES_MAX):
            said = msgspec.json.decode(line, type=_Said)
            if said.log is not None:
                log(said.log)
            elif said.error is not None:
                raise from_code(*said.error)
            elif said.packed is not None:
                return said.packed
        process.wait()
        reader.join()
        if self.ended:
            raise Unavailable("the packing of a layer was ended")
        why = b"".join(tail).decode("utf-8", "replace").strip()[-400:]
        raise Unavailable(f"the process that packs a layer ended by itself: {why}")


def give_way() -> None:
    """Lets everyone else go first, on the processors and on the disks; for this process's life."""
    os.nice(NICE)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None, use_errno=True).syscall(number, 1, 0, _IOPRIO_LOWEST)


def serve(kind: type[_J], work: Callable[[_J, Log], Packed]) -> None:
    """Does the job that standard input says, and tells of it; the body of a process apart."""
    give_way()
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=kind)
    threading.Thread(target=_end_with_input, daemon=True).start()
    saying = threading.Lock()

    def say(said: _Said) -> None:
        with saying:
            sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
            sys.stdout.buffer.flush()

    try:
        packed = work(job, lambda line: say(_Said(log=line)))
    except SkerryError as error:
        say(_Said(error=(error.code, error.message, error.fields)))
    except OSError as error:
        say(_Said(error=("storage_failed", f"making a layer: {error}", {"errno": error.errno})))
    else:
        say(_Said(packed=packed))


def _end_with_input() -> None:
    while os.read(0, 1 << 16):
        pass
    os._exit(1)


if __name__ == "__main__":
    serve(Job, lambda job, log: pack(job, Tools(job.cache_dir, job.mkfs), log))
