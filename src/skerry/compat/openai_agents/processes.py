"""Commands that outlast one call of the model's: started, read in pieces, written to, ended."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque

from agents.sandbox.session.pty_output import collect_pty_output
from agents.sandbox.session.pty_types import (
    PTY_PROCESSES_MAX,
    PtyExecUpdate,
    allocate_pty_process_id,
    process_id_to_prune_from_meta,
)

from skerry import aio
from skerry.compat.outcome import exit_status, remarks
from skerry.errors import SkerryError

HELD_BYTES_MAX = 8 << 20  # of a command that nobody reads; what is older is dropped
SHORT_BYTES = 4096  # pieces that are shorter are joined


class Process:
    """One command; its output waits here until it is asked for."""

    def __init__(self, command: aio.CommandHandle, *, tty: bool) -> None:
        self.command = command
        self.tty = tty
        self.last_used = time.monotonic()
        self.exit_code: int | None = None
        self.error: SkerryError | None = None
        self._chunks: deque[bytes] = deque()
        self._lock = asyncio.Lock()
        self._news = asyncio.Event()
        self._over = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    @property
    def over(self) -> bool:
        """Whether it has ended, and all of its output is here."""
        return self._over.is_set()

    async def _read(self) -> None:
        try:
            async for event in self.command.output(pace=False):
                if data := event.stdout or event.stderr:
                    await self._take(data)
                if event.result is not None:
                    if said := remarks(event.result, None):
                        await self._take(f"{said}\n".encode())
                    self.exit_code = exit_status(event.result)
        except SkerryError as error:
            self.error = error
        finally:
            self._over.set()
            self._news.set()

    async def _take(self, data: bytes) -> None:
        async with self._lock:
            # A piece of one byte takes fifty of memory, and a command may well write so.
            if self._chunks and len(self._chunks[-1]) < SHORT_BYTES:
                data = self._chunks.pop() + data
            self._chunks.append(data)
            held = sum(map(len, self._chunks))
            while held > HELD_BYTES_MAX and len(self._chunks) > 1:
                held -= len(self._chunks.popleft())
        self._news.set()

    async def collect(self, seconds: float, tokens: int | None) -> tuple[bytes, int | None, bool]:
        """Returns what came until it ended, or the time passed; its tokens; whether it has ended.

        Raises the error that says why nobody knows how it ended.
        """
        collected: tuple[bytes, int | None, bool] = await collect_pty_output(
            output_chunks=self._chunks,
            output_lock=self._lock,
            output_notify=self._news,
            is_done=self._over.is_set,
            yield_time_ms=int(seconds * 1000),
            max_output_tokens=tokens,
        )
        self.last_used = time.monotonic()
        if collected[2] and self.error is not None:
            raise self.error
        return collected

    async def end(self, *, kill: bool = True) -> None:
        """Ends it and all that it started, or only forgets it; harmless afterwards."""
        if kill and not self.over:
            with contextlib.suppress(SkerryError):
                await self.command.kill()
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)


class Processes:
    """Those of a session, by the number that the model knows; at most 64, the idlest one goes."""

    def __init__(self) -> None:
        self.by_id: dict[int, Process] = {}

    async def add(self, process: Process) -> int:
        """Returns its number."""
        if len(self.by_id) >= PTY_PROCESSES_MAX:
            meta = [(number, one.last_used, one.over) for number, one in self.by_id.items()]
            oldest = process_id_to_prune_from_meta(meta)
            if oldest is not None:
                await self.by_id.pop(oldest).end()
        number: int = allocate_pty_process_id(set(self.by_id))
        self.by_id[number] = process
        return number

    async def update(
        self, number: int, process: Process, seconds: float, tokens: int | None
    ) -> PtyExecUpdate:
        """Returns what is new of it; one that has ended is forgotten."""
        try:
            output, count, ended = await process.collect(seconds, tokens)
        except SkerryError:
            self.by_id.pop(number, None)
            raise
        if ended:
            self.by_id.pop(number, None)
        return PtyExecUpdate(
            process_id=None if ended else number,
            output=output,
            exit_code=process.exit_code if ended else None,
            original_token_count=count,
        )

    async def end(self, *, kill: bool) -> None:
        """Ends all of them, or only forgets them."""
        processes = list(self.by_id.values())
        self.by_id.clear()
        for process in processes:
            await process.end(kill=kill)
