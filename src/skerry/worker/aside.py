"""Work that would hold up everybody in the worker's event loop: it is done by a process beside it.

A body of 32 MiB from inside can take seconds to read, and a thread would not help: one call that reads
JSON keeps the interpreter to itself. The process gets calls of pure functions, one after the other, in
the order in which they came, and gives back what they return or raise. It has less priority and bounded
memory, is started when it is first needed, and ends by itself when the worker is gone.

    python -m skerry.worker.aside MEMORY_BYTES
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pickle
import resource
import sys
from collections.abc import Callable
from typing import Any, BinaryIO, TypeVar

from skerry.errors import Bug, InvalidRequest, SkerryError, Unavailable

T = TypeVar("T")
BYTES_MAX = 256 << 10  # of a body that is read in the loop
MEMORY_BYTES = 3 << 30  # the address space of the process
KEPT_BYTES = 256 << 20  # a process that has grown beyond that is replaced by a new one
_LENGTH = 8


class Aside:
    """One process and those who wait for it. Used from one event loop."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self._memory_bytes = memory_bytes
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The process, if there is one."""
        return None if self._process is None else self._process.pid

    async def call(self, size: int, work: Callable[..., T], *words: Any) -> T:
        """Returns what `work` returns, at once if the bodies in `words` are of a small `size`.

        `work` is a function of a module. Raises what it raises; InvalidRequest if it needs more memory
        than there is for it, Unavailable if the process is killed again and again.
        """
        if size <= BYTES_MAX:
            return work(*words)
        frame = pickle.dumps((work, words))
        async with self._turn:
            for _ in range(2):
                try:
                    good, found = pickle.loads(await self._exchange(frame))  # noqa: S301 - our own
                except (OSError, EOFError, asyncio.IncompleteReadError):
                    await self._drop()
                    continue
                except BaseException:
                    await self._drop()  # what it says now would be taken for another's answer
                    raise
                if good:
                    answer: T = found
                    return answer
                raise found
        raise Unavailable("the process that reads long bodies was killed")

    async def close(self) -> None:
        """Ends the process, whatever it does."""
        async with self._turn:
            await self._drop()

    async def _exchange(self, frame: bytes) -> bytes:
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "skerry.worker.aside",
                str(self._memory_bytes),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=1 << 20,
            )
        assert process.stdin is not None  # noqa: S101
        assert process.stdout is not None  # noqa: S101
        process.stdin.write(len(frame).to_bytes(_LENGTH, "big"))
        process.stdin.write(frame)
        await process.stdin.drain()
        length = int.from_bytes(await process.stdout.readexactly(_LENGTH), "big")
        return await process.stdout.readexactly(length)

    async def _drop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _serve(source: BinaryIO, target: BinaryIO) -> None:
    """Does calls until nobody asks any more, or until it has grown."""
    while True:
        head = source.read(_LENGTH)
        if len(head) < _LENGTH:
            return
        answer = _answer(source.read(int.from_bytes(head, "big")))
        target.write(len(answer).to_bytes(_LENGTH, "big") + answer)
        target.flush()
        del answer
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > KEPT_BYTES >> 10:
            return


def _answer(frame: bytes) -> bytes:
    try:
        work, words = pickle.loads(frame)  # noqa: S301 - what the worker asks for
        return pickle.dumps((True, work(*words)))
    except SkerryError as error:
        return pickle.dumps((False, error))
    except MemoryError:
        return pickle.dumps((False, InvalidRequest("the body takes too much memory to be read")))
    except Exception as error:  # noqa: BLE001 - raised again on the other side
        return pickle.dumps((False, Bug(f"{type(error).__name__}: {error}")))


def main() -> None:
    """The process."""
    limit = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    os.nice(5)
    gc.disable()  # nothing that is read refers to itself, and looking for that takes most of the time
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        _serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
