"""Our terminal on a command's: joined, watched, left with a sequence of keys, and always restored."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from skerry.cli.app import App
from skerry.errors import Conflict, InvalidRequest

if TYPE_CHECKING:
    from skerry.aio import CommandHandle, RunResult

DETACH_KEYS = "ctrl-],d"
# What a full-screen program may have switched on: it is still running, so it does not undo it.
PLAIN_SCREEN = (
    b"\x1b[?1049l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?25h\x1b[0m\r\n"
)


class DetachKeys:
    """Finds the sequence of keys that leaves, in what is typed; a beginning is held back."""

    def __init__(self, keys: str = DETACH_KEYS) -> None:
        self.keys = keys
        self._wanted = b"".join(_key(name) for name in keys.split(","))
        self._held = b""
        self.seen = asyncio.Event()

    def passed(self, data: bytes) -> bytes:
        """Returns what is to be sent on; nothing from the sequence on, once it was typed."""
        if self.seen.is_set():
            return b""
        data, self._held = self._held + data, b""
        at = data.find(self._wanted)
        if at >= 0:
            self.seen.set()
            return data[:at]
        for size in range(min(len(self._wanted) - 1, len(data)), 0, -1):
            if data.endswith(self._wanted[:size]):
                self._held = data[len(data) - size :]
                return data[: len(data) - size]
        return data


def _key(name: str) -> bytes:
    """Returns the byte of a key like `d` or `ctrl-p`; InvalidRequest if it has none."""
    if len(name) == 1 and name.isascii():
        return name.encode()
    letter = name.removeprefix("ctrl-")
    if letter != name and len(letter) == 1 and "@" <= letter.upper() <= "_":
        return bytes([ord(letter.upper()) & 0x1F])
    raise InvalidRequest(f"{name!r} is no key: write letters and ctrl-LETTER, with commas between")


def who_am_i() -> str:
    """Returns what others are told of us when we hold a terminal."""
    import getpass

    where = ""
    with contextlib.suppress(OSError, ValueError):
        where = " on " + os.ttyname(sys.stdin.fileno()).removeprefix("/dev/")
    user = ""
    with contextlib.suppress(KeyError, OSError):
        user = getpass.getuser() + "@"
    return f"{user}{socket.gethostname()}{where}"


async def join(
    app: App,
    command: CommandHandle,
    *,
    keys: DetachKeys,
    takeover: bool = False,
    watch: bool = False,
) -> RunResult | None:
    """Gives our streams to a command until it ends; returns its result, or None when it was left.

    It goes on whatever ends this. Raises Conflict if somebody else holds its terminal.
    """
    from skerry.cli import stdio

    terminal = command.status.terminal
    size = stdio.terminal_size() if terminal and not watch else None
    async with contextlib.AsyncExitStack() as stack:
        live = await stack.enter_async_context(
            command.attach(terminal=size, takeover=takeover, watch=watch, who=who_am_i())
        )
        if not watch:
            if terminal:
                stack.enter_context(stdio.raw_terminal(app))
                stack.enter_context(stdio.following_size(live))
            feeder = asyncio.create_task(stdio.feed(live, tty=terminal, keys=keys))
            stack.callback(feeder.cancel)
        return await _until_left(app, stdio.show_all(live), keys, terminal=terminal)


async def _until_left(
    app: App, showing: Coroutine[Any, Any, RunResult], keys: DetachKeys, *, terminal: bool
) -> RunResult | None:
    from skerry.cli import stdio

    shown = asyncio.ensure_future(showing)
    left = asyncio.ensure_future(keys.seen.wait())
    try:
        await asyncio.wait((shown, left), return_when=asyncio.FIRST_COMPLETED)
        if shown.done():
            return shown.result()
    except Conflict as error:
        if "by" not in error.fields:
            raise
        app.warn(error.message)
    finally:
        for task in (shown, left):
            task.cancel()
        await asyncio.gather(shown, left, return_exceptions=True)
    if terminal and sys.stdout.isatty():
        stdio.write_all("stdout", PLAIN_SCREEN)
    return None
