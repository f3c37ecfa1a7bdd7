"""The fake guest's command language: just enough to test what drives commands.

    true | false | exit N | echo WORDS | err WORDS | printf TEXT | cat | sleep S | flood N [BYTE]
    env | pwd | id | kill N | oom | write PATH TEXT | show PATH | missing
    cd DIR | export NAME=VALUE
    spin (until the processor time that it may use is used up) | result TEXT (to descriptor 4)
    sh -c LINE (and bash): those words joined by `;` and `&&`, `>&2` after echo

`sleep` waits on the backend's clock. Any other program is missing: exec fails with ENOENT.
"""

from __future__ import annotations

import asyncio
import errno
import posixpath
import shlex
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from skerry.testing.fake_files import FakeFiles

_BLOCK = 16384


class Clock(Protocol):
    """Where the fake takes its time from."""

    async def sleep(self, seconds: float) -> None:
        """Returns after that many seconds."""

    def now_ns(self) -> int:
        """Returns nanoseconds since the epoch."""


class RealClock:
    """The machine's clock."""

    async def sleep(self, seconds: float) -> None:
        """Sleeps."""
        await asyncio.sleep(seconds)

    def now_ns(self) -> int:
        """Reads CLOCK_REALTIME."""
        return time.time_ns()


class ManualClock:
    """A clock that moves only when a test says so."""

    def __init__(self, start_ns: int = 1_700_000_000_000_000_000) -> None:
        self._now_ns = start_ns
        self._sleepers: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def sleepers(self) -> int:
        """How many wait on this clock now."""
        return sum(not future.done() for _, future in self._sleepers)

    async def sleep(self, seconds: float) -> None:
        """Returns once `advance` has moved the clock that far."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._now_ns + int(seconds * 1e9), future))
        await future

    def now_ns(self) -> int:
        """Returns the time that tests have reached."""
        return self._now_ns

    def advance(self, seconds: float) -> None:
        """Moves the clock and wakes whoever is due."""
        self._now_ns += int(seconds * 1e9)
        waiting = []
        for due, future in self._sleepers:
            if due > self._now_ns:
                waiting.append((due, future))
            elif not future.done():
                future.set_result(None)
        self._sleepers = waiting


@dataclass
class Ended:
    """How a fake program ended."""

    exit_code: int | None = None
    signal: int | None = None
    error_step: str | None = None
    errno: int | None = None
    oom: bool = False


@dataclass
class Call:
    """What a fake program sees: `write` waits for credit, `read` gives b"" at the end."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    user: str
    files: FakeFiles
    clock: Clock
    write: Callable[[int, bytes], Awaitable[None]]
    read: Callable[[], Awaitable[bytes]]
    spin: Callable[[], Awaitable[Ended]] | None = None
    started: Callable[[], None] = field(default=lambda: None)


Program = Callable[[Call, list[str]], Awaitable[Ended]]


async def _true(_call: Call, _words: list[str]) -> Ended:
    return Ended(exit_code=0)


async def _false(_call: Call, _words: list[str]) -> Ended:
    return Ended(exit_code=1)


async def _exit(_call: Call, words: list[str]) -> Ended:
    return Ended(exit_code=int(words[0]) if words else 0)


async def _echo(call: Call, words: list[str]) -> Ended:
    channel = 2
    if words and words[-1] == ">&2":
        channel, words = 3, words[:-1]
    await call.write(channel, " ".join(words).encode("utf-8", "surrogateescape") + b"\n")
    return Ended(exit_code=0)


async def _err(call: Call, words: list[str]) -> Ended:
    return await _echo(call, [*words, ">&2"])


async def _printf(call: Call, words: list[str]) -> Ended:
    text = words[0].encode("utf-8", "surrogateescape")
    await call.write(2, text.decode("unicode_escape").encode("latin-1"))
    return Ended(exit_code=0)


async def _cat(call: Call, _words: list[str]) -> Ended:
    while data := await call.read():
        await call.write(2, data)
    return Ended(exit_code=0)


async def _sleep(call: Call, words: list[str]) -> Ended:
    await call.clock.sleep(float(words[0]))
    return Ended(exit_code=0)


async def _flood(call: Call, words: list[str]) -> Ended:
    left = int(words[0])
    byte = words[1].encode()[:1] if len(words) > 1 else b"x"
    while left:
        block = byte * min(left, _BLOCK)
        await call.write(2, block)
        left -= len(block)
    return Ended(exit_code=0)


async def _env(call: Call, _words: list[str]) -> Ended:
    lines = "".join(f"{name}={value}\n" for name, value in sorted(call.env.items()))
    await call.write(2, lines.encode("utf-8", "surrogateescape"))
    return Ended(exit_code=0)


async def _pwd(call: Call, _words: list[str]) -> Ended:
    return await _echo(call, [call.cwd])


async def _id(call: Call, words: list[str]) -> Ended:
    user = call.user.partition(":")[0]
    return await _echo(call, ["0" if user == "root" and words == ["-u"] else user])


async def _kill(_call: Call, words: list[str]) -> Ended:
    """`kill N` and `kill -NAME $$`: both end the program itself."""
    name = words[0].lstrip("-")
    return Ended(signal=int(name) if name.isdigit() else signal.Signals[f"SIG{name}"].value)


async def _oom(_call: Call, _words: list[str]) -> Ended:
    return Ended(signal=9, oom=True)


async def _write(call: Call, words: list[str]) -> Ended:
    call.files.write(posixpath.join(call.cwd, words[0]), 0o644, "-", words[1].encode())
    return Ended(exit_code=0)


async def _show(call: Call, words: list[str]) -> Ended:
    try:
        _, node = call.files.find(posixpath.join(call.cwd, words[0]))
    except OSError as error:
        await call.write(3, f"show: {words[0]}: {error.strerror}\n".encode())
        return Ended(exit_code=1)
    await call.write(2, node.content)
    return Ended(exit_code=0)


async def _spin(call: Call, _words: list[str]) -> Ended:
    assert call.spin is not None  # noqa: S101
    return await call.spin()


async def _result(call: Call, words: list[str]) -> Ended:
    await call.write(1, words[0].encode())
    return Ended(exit_code=0)


async def _cd(call: Call, words: list[str]) -> Ended:
    place = posixpath.normpath(posixpath.join(call.cwd, words[0]))
    if place not in call.files.nodes:
        await call.write(3, f"cd: {words[0]}: No such file or directory\n".encode())
        return Ended(exit_code=1)
    call.cwd = place
    return Ended(exit_code=0)


async def _export(call: Call, words: list[str]) -> Ended:
    for word in words:
        name, _, value = word.partition("=")
        call.env[name] = value
    return Ended(exit_code=0)


PROGRAMS: dict[str, Program] = {
    "cd": _cd,
    "export": _export,
    "true": _true,
    "false": _false,
    "exit": _exit,
    "echo": _echo,
    "err": _err,
    "printf": _printf,
    "cat": _cat,
    "sleep": _sleep,
    "flood": _flood,
    "env": _env,
    "pwd": _pwd,
    "id": _id,
    "kill": _kill,
    "oom": _oom,
    "write": _write,
    "show": _show,
    "spin": _spin,
    "result": _result,
}


async def run_line(call: Call, line: str) -> Ended:
    """Runs simple commands joined by `;` and `&&`; a missing program gives 127, as in a shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&>")
    lexer.whitespace_split = True
    words: list[str] = []
    for found in lexer:
        word = found
        if word == ">&" and words:
            word = ">&2"
        elif word == "2" and words and words[-1] == ">&2":
            continue
        words.append(word)
    ended = Ended(exit_code=0)
    simple: list[str] = []
    for word in [*words, ";"]:
        if word not in (";", "&&"):
            simple.append(word)
            continue
        if simple:
            program = PROGRAMS.get(simple[0])
            if program is None:
                await call.write(3, f"sh: {simple[0]}: not found\n".encode())
                ended = Ended(exit_code=127)
            else:
                ended = await program(call, simple[1:])
        stop = ended.signal is not None or (simple and simple[0] == "exit")
        if stop or (word == "&&" and ended.exit_code != 0):
            return ended
        simple = []
    return ended


async def run_program(call: Call) -> Ended:
    """Runs one command to its end; an unknown program or a bad cwd or user ends before exec."""
    if call.cwd not in call.files.nodes:
        return Ended(error_step="cwd", errno=errno.ENOENT)
    if not call.user.replace(":", "").isdigit() and call.user not in ("root", "nobody"):
        return Ended(error_step="user", errno=errno.ENOENT)
    name = posixpath.basename(call.argv[0])
    if name in ("sh", "bash", "dash") and len(call.argv) >= 3 and call.argv[1] in ("-c", "-lc"):
        call.started()
        return await run_line(call, call.argv[2])
    program = PROGRAMS.get(name)
    if program is None:
        return Ended(error_step="exec", errno=errno.ENOENT)
    call.started()
    return await program(call, call.argv[1:])
