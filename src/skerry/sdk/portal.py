"""Runs the async implementation on a loop of its own thread, for the sync face.

One portal a client. Ctrl-C in the calling thread cancels the call on the loop and waits for it to
clean up (a running command inside is ended), then raises KeyboardInterrupt.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")

CLEAN_UP_WITHIN_S = 10.0


class Portal:
    """A thread with an event loop; `close` ends it. Calls may come from any thread but its own."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="skerry-client", daemon=True)
        self._thread.start()
        self._last: Callable[[], Coroutine[Any, Any, object]] | None = None

    def before_exit(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Has `work` done, for a bounded time, when the interpreter ends before `close`."""
        self._last = work
        atexit.register(self._at_exit)

    def _at_exit(self) -> None:
        if self._last is not None and self._thread.is_alive():
            future = asyncio.run_coroutine_threadsafe(self._last(), self._loop)
            with contextlib.suppress(Exception):
                future.result(CLEAN_UP_WITHIN_S)
        self.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs the coroutine on the loop and returns its result, or raises its exception."""
        if not self._thread.is_alive():
            work.close()
            raise RuntimeError("the client is closed")
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            with contextlib.suppress(CancelledError, TimeoutError):
                self._settle()
            raise

    async def join(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits the coroutine, which runs on this loop, from another one; cancelled, it is cancelled.

        Then its clean-up (a running command inside is ended) is waited for, for a bounded time.
        """
        if not self._thread.is_alive():
            work.close()
            raise RuntimeError("the client is closed")
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            with contextlib.suppress(CancelledError, TimeoutError):
                await asyncio.to_thread(self._settle)
            raise

    def _settle(self) -> None:
        # The cancelled task still has its clean-up to do on the loop: wait for a bounded time.
        async def others() -> None:
            me = asyncio.current_task()
            pending = {task for task in asyncio.all_tasks() if task is not me and task.cancelling()}
            if pending:
                await asyncio.wait(pending, timeout=CLEAN_UP_WITHIN_S)

        asyncio.run_coroutine_threadsafe(others(), self._loop).result(CLEAN_UP_WITHIN_S + 1)

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Yields what the async iterator yields; leaving early closes it."""
        try:
            while True:
                try:
                    yield self.call(_next(items))
                except StopAsyncIteration:
                    return
        finally:
            close = getattr(items, "aclose", None)
            if close is not None and self._thread.is_alive():
                self.call(close())

    @contextlib.contextmanager
    def block(self, manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Holds an async context manager open for a sync block."""
        value = self.call(_enter(manager))
        try:
            yield value
        except BaseException as error:
            if not self.call(_exit(manager, error)):
                raise
        else:
            self.call(_exit(manager, None))

    def close(self) -> None:
        """Ends the thread; nothing runs afterwards."""
        atexit.unregister(self._at_exit)
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)


async def _enter(manager: AbstractAsyncContextManager[T]) -> T:
    return await manager.__aenter__()


async def _exit(manager: AbstractAsyncContextManager[Any], error: BaseException | None) -> bool:
    if error is None:
        return bool(await manager.__aexit__(None, None, None))
    return bool(await manager.__aexit__(type(error), error, error.__traceback__))


def to_async(content: Any) -> Any:
    """Returns an async iterator of an iterator's items; bytes and text pass unchanged."""
    if isinstance(content, bytes | str | bytearray | memoryview) or not isinstance(
        content, Iterable
    ):
        return content
    return _walk(content)


async def _walk(items: Iterable[T]) -> AsyncIterator[T]:
    for item in items:
        yield item
