"""Between a command in a sandbox and this process's standard streams: bytes, terminal, status."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

from skerry.cli.app import App
from skerry.cli.failure import NOT_FOUND, NOT_STARTED, TIMED_OUT
from skerry.cli.loop import Lane

if TYPE_CHECKING:
    from skerry.aio import LiveCommand, RunResult, Terminal
    from skerry.cli.terminal import DetachKeys
    from skerry.wire.http import StreamEvent

CHUNK = 64 * 1024
END_OF_TRANSMISSION = b"\x04"
END_AGAIN_S = 0.5


def descriptor(stream: str) -> int | None:
    """Returns the descriptor of `stdin`, `stdout` or `stderr`; None if it is no real file."""
    try:
        return int(getattr(sys, stream).fileno())
    except (OSError, ValueError, AttributeError):
        return None


def write_all(stream: str, data: bytes) -> None:
    """Writes bytes to `stdout` or `stderr`, past Python's buffer of text; blocks."""
    fd = descriptor(stream)
    if fd is None:  # a test's stream
        getattr(sys, stream).buffer.write(data)
        return
    getattr(sys, stream).flush()
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # somebody else set O_NONBLOCK on the shared file
            os.set_blocking(fd, True)


class Output:
    """Writes a command's output to our own streams, in order, without blocking the loop."""

    def __init__(self) -> None:
        self._lane = Lane()

    async def show(self, event: StreamEvent) -> None:
        """Writes what the event carries; BrokenPipeError if the reader has gone."""
        if event.stdout:
            await self._lane.call(write_all, "stdout", event.stdout)
        if event.stderr:
            await self._lane.call(write_all, "stderr", event.stderr)


async def stdin_chunks(lane: Lane) -> AsyncIterator[bytes]:
    """Yields standard input to its end."""
    fd = descriptor("stdin")
    while chunk := await lane.call(
        (lambda: os.read(fd, CHUNK)) if fd is not None else (lambda: sys.stdin.buffer.read(CHUNK))
    ):
        yield chunk


async def show_all(live: LiveCommand) -> RunResult:
    """Writes what comes to our own streams; returns the result at the end."""
    output = Output()
    async for event in live:
        await output.show(event)
        if event.result is not None:
            return event.result
    raise AssertionError("a command ends with its result or an error")


async def feed(live: LiveCommand, *, tty: bool = False, keys: DetachKeys | None = None) -> None:
    """Sends standard input to the command, to its end; a terminal is told that by Ctrl-D.

    On a terminal, `keys` are looked for, and end it at once.
    """
    async for chunk in stdin_chunks(Lane()):
        passed = keys.passed(chunk) if keys is not None and tty else chunk
        if passed:
            await live.send(passed)
        if keys is not None and keys.seen.is_set():
            return
    while tty:  # a Ctrl-D is lost on a shell that is between two modes: the end stays the end
        await live.send(END_OF_TRANSMISSION)
        await asyncio.sleep(END_AGAIN_S)
    await live.end_input()


def terminal_size() -> Terminal:
    """Returns the size of our terminal, 80 by 24 if there is none."""
    from skerry.spec.command import Terminal

    for stream in ("stdin", "stdout", "stderr"):
        fd = descriptor(stream)
        with contextlib.suppress(OSError):
            if fd is not None:
                size = os.get_terminal_size(fd)
                if size.lines and size.columns:
                    return Terminal(size.lines, size.columns)
    size = shutil.get_terminal_size() if sys.stdout.isatty() else os.terminal_size((80, 24))
    return Terminal(size.lines, size.columns)


@contextlib.contextmanager
def raw_terminal(app: App) -> Iterator[None]:
    """Puts our terminal into raw mode for the block: every key, Ctrl-C too, goes to the command."""
    fd = descriptor("stdin")
    if fd is None or not os.isatty(fd):
        yield
        return
    before = termios.tcgetattr(fd)
    with app.at_exit.undoing(lambda: termios.tcsetattr(fd, termios.TCSADRAIN, before)):
        tty.setraw(fd)
        yield


@contextlib.contextmanager
def following_size(live: LiveCommand) -> Iterator[None]:
    """Gives the command's terminal the size of ours, whenever that changes in the block."""
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()

    async def follow() -> None:
        while True:
            await changed.wait()
            changed.clear()
            size = terminal_size()
            await live.resize(size.rows, size.cols)

    task = asyncio.create_task(follow())
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        task.cancel()


def status_of(result: RunResult, warn: Callable[[str], None]) -> int:
    """Returns the status that a shell would give, and says what a status alone does not tell."""
    if result.start_error is not None:
        warn(result.start_error)
        missing = result.start_errno == errno.ENOENT and result.start_error.startswith("exec")
        return NOT_FOUND if missing else NOT_STARTED
    if result.timed_out:
        why = "without output for too long, ended" if result.no_output else "timed out"
        warn(f"{why} after {result.ended - result.started:.1f} s")
        return TIMED_OUT
    if result.oom_killed:
        warn("killed: it ran out of its memory limit (--memory raises it)")
    if result.signal is not None:
        return 128 + result.signal
    return result.exit_code if result.exit_code is not None else NOT_STARTED
