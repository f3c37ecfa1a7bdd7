"""Async iterators for blocking work: in order, with their errors, and never a thread that is stuck."""

from __future__ import annotations

import asyncio
import threading

import pytest

from skerry.errors import StorageFailed
from skerry.sdk.inturn import in_thread


async def numbers(count: int):
    for number in range(count):
        await asyncio.sleep(0)
        yield number


async def test_all_is_given_in_order_to_the_thread() -> None:
    assert await in_thread(list, numbers(50)) == list(range(50))
    assert await in_thread(lambda a, b: list(zip(a, b, strict=False)), numbers(3), numbers(5)) == [
        (0, 0),
        (1, 1),
        (2, 2),
    ]


async def test_none_is_an_item_as_any_other() -> None:
    async def items():
        yield None
        yield 1

    assert await in_thread(list, items()) == [None, 1]


async def test_error_of_the_iterator_is_raised_in_the_work_and_after_it() -> None:
    async def broken():
        yield 1
        raise StorageFailed("gone")

    with pytest.raises(StorageFailed, match="gone"):
        await in_thread(list, broken())


async def test_cancelled_work_leaves_no_thread_that_waits() -> None:
    ended = threading.Event()
    begun = asyncio.Event()

    async def endless():
        yield 1
        begun.set()
        await asyncio.Event().wait()

    def work(items) -> None:
        try:
            list(items)
        finally:
            ended.set()

    task = asyncio.create_task(in_thread(work, endless()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(ended.wait, 10)
