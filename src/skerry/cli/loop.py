"""The event loop of a command, and what SIGINT, SIGTERM and SIGHUP do to it."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from skerry.cli.at_exit import AtExit

T = TypeVar("T")
ROUNDS = 3  # of the loop, until a signal that has come is heeded
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal ended the command, after it had cleaned up; `trouble` is what went wrong in that."""

    def __init__(self, number: int, trouble: Exception | None = None) -> None:
        super().__init__(number)
        self.number = number
        self.trouble = trouble


def run_work(work: Callable[[], Awaitable[T]], at_exit: AtExit) -> T:
    """Runs `work` on a new loop and returns what it returns.

    The first signal cancels it, so that it cleans up; then Interrupted is raised. A second signal
    ends the process at once.
    """
    with asyncio.Runner() as runner:
        return runner.run(_guarded(work, at_exit))


async def _guarded(work: Callable[[], Awaitable[T]], at_exit: AtExit) -> T:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work())
    caught: list[int] = []

    def on_signal(number: int) -> None:
        if caught:
            at_exit.leave(128 + number)
        caught.append(number)
        task.cancel()

    heeded = [item for item in SIGNALS if signal.getsignal(item) is not signal.SIG_IGN]
    if threading.current_thread() is not threading.main_thread():
        heeded = []
    for number in heeded:
        loop.add_signal_handler(number, on_signal, number)
    try:
        return await task
    except asyncio.CancelledError:
        if caught:
            raise Interrupted(caught[0]) from None
        raise
    except Exception as error:
        trouble = error if caught else None
        for _ in range(ROUNDS):
            if not caught:  # a signal that came while the loop had no turn, in an import say
                await asyncio.sleep(0)
        if caught:
            raise Interrupted(caught[0], trouble) from error
        raise
    finally:
        for number in heeded:
            loop.remove_signal_handler(number)


class Lane:
    """A daemon thread that makes blocking calls, in order; it never keeps the process from ending.

    An executor's thread does: a read of a terminal that nobody types on would hold the exit back.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]]]
        self._calls = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True).start()

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Returns what the function returns, or raises what it raises."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.put((future, lambda: function(*arguments)))
        return await future

    def _serve(self) -> None:
        while True:
            future, call = self._calls.get()
            value: Any = None
            failure: BaseException | None = None
            try:
                value = call()
            except BaseException as error:  # noqa: BLE001 - handed to the caller
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
                future.get_loop().call_soon_threadsafe(_settle, future, value, failure)


def _settle(future: asyncio.Future[Any], value: Any, failure: BaseException | None) -> None:
    if future.done():  # cancelled meanwhile
        return
    if failure is not None:
        future.set_exception(failure)
    else:
        future.set_result(value)
