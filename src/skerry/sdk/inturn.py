"""What an async iterator gives, for blocking work in a thread beside its loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class InTurn(Generic[T]):
    """An iterator for a thread. `close` it in the loop: a thread that waits for more ends then."""

    def __init__(self, work: AsyncIterator[T]) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._next: Future[list[T]] | None = None

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        found = self._next = asyncio.run_coroutine_threadsafe(self._following(), self._loop)
        if self._closed:  # nobody runs the loop any more, perhaps
            found.cancel()
            raise CancelledError
        for item in found.result():
            return item
        raise StopIteration

    def close(self) -> None:
        """Nothing more is given."""
        self._closed = True
        if self._next is not None:
            self._next.cancel()

    async def _following(self) -> list[T]:
        async for item in self._work:
            return [item]
        return []


async def in_thread(work: Callable[..., R], *items: AsyncIterator[T] | InTurn[T]) -> R:
    """Does blocking work with what async iterators give; cancelled, it ends the thread too."""
    turns = [item if isinstance(item, InTurn) else InTurn(item) for item in items]
    try:
        return await asyncio.to_thread(work, *turns)
    finally:
        for turn in turns:
            turn.close()
