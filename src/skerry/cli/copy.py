"""`skerry cp`: files and trees between here and a sandbox, with progress."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from skerry.cli.app import App
from skerry.cli.group import SkerryCommand
from skerry.cli.loop import Lane
from skerry.cli.words import shown
from skerry.errors import FileRefused, InvalidRequest, NotFound

if TYPE_CHECKING:
    from skerry.aio import Sandbox

_REMOTE = re.compile(r"(s[a-z2-7]{9,20}):(.*)", re.DOTALL)
ID_HINT = "before :PATH an ID has ten characters or more: see `skerry ls`"
NOTES_SHOWN = 20
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Place:
    """One side of a copy: in a sandbox if `sandbox` is set, else here; `-` is a standard stream."""

    path: str
    sandbox: str | None = None

    @property
    def stream(self) -> bool:
        """True for standard input or output."""
        return self.sandbox is None and self.path == "-"

    @property
    def name(self) -> str:
        """Last part of the path; empty for `/`, `.` and `..`."""
        last = self.path.rstrip("/").rpartition("/")[2]
        return "" if last in (".", "..") else last


def place(text: str) -> Place:
    """Returns the place that `ID:PATH`, `PATH` or `-` means; write ./PATH for a file like an ID."""
    match = _REMOTE.fullmatch(text)
    if match is None:
        return Place(text)
    return Place(match[2] or ".", match[1])


@click.command(cls=SkerryCommand)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@click.option("-u", "--user", metavar="USER", help="User inside, for rights and ownership.")
@click.pass_obj
def cp(app: App, /, *, source: str, target: str, user: str | None) -> None:
    """Copy a file or a tree between here and a sandbox.

    One side is ID:PATH, the other a local path or - for standard input or output. A directory is
    copied whole: into DST if that is a directory, else to the name DST; SRC/. stands for its
    content. Out to - a directory comes as a tar; from - into ID:DIR/ a tar is unpacked.

    \b
    skerry cp ./repo s...:/src
    skerry cp s...:/var/log/test.log -
    """  # noqa: D301 - \b tells click to keep the lines
    here, there = place(source), place(target)
    if (here.sandbox is None) == (there.sandbox is None):
        raise InvalidRequest("cp: exactly one side must be ID:PATH", hint=ID_HINT)

    async def work() -> int:
        async with app.client() as client:
            sandbox = await client.sandboxes.get(here.sandbox or there.sandbox or "")
            if here.sandbox is None:
                return await _upload(app, sandbox, here, there, user)
            return await _download(app, sandbox, here, there, user)

    count = app.wait_for(work)
    if app.as_json and not there.stream:
        app.emit({"source": source, "target": target, "bytes": count})


async def is_directory(sandbox: Sandbox, path: str, user: str | None) -> bool:
    """Says whether a path inside is a directory, or a link to one."""
    try:
        info = await sandbox.files.stat(path.rstrip("/") + "/.", user=user)
    except (NotFound, FileRefused):
        return False
    return str(info.type) == "d"


async def _upload(app: App, sandbox: Sandbox, here: Place, there: Place, user: str | None) -> int:
    target = there.path
    if here.stream:
        counter = Counter()
        chunks = counter.counting(_stdin())
        if target.endswith("/"):
            await sandbox.files.put_tree(target, chunks, user=user)
        else:
            await sandbox.files.write(target, chunks, user=user)
        return counter.count
    if not os.path.lexists(here.path):
        raise NotFound(f"cp: {here.path} does not exist", hint="the path is looked up on this side")
    into = target.endswith("/") or await is_directory(sandbox, target, user)
    whole_content = os.path.isdir(here.path) and not here.name
    if into and not whole_content:
        target = target.rstrip("/") + "/" + here.name
    with progress_bar(app, f"to {target}", local_size(here.path)) as advance:
        if os.path.isdir(here.path):
            await sandbox.files.mkdir(target, parents=True, user=user)
        done = await sandbox.files.upload(here.path, target, user=user, progress=advance)
    tell(app, done.notes)
    return advance.count


async def _download(app: App, sandbox: Sandbox, here: Place, there: Place, user: str | None) -> int:
    directory = await is_directory(sandbox, here.path, user)
    if there.stream:
        counter = Counter()
        files = sandbox.files
        chunks: AsyncIterator[bytes]
        if directory:
            chunks = files.get_tree(here.path, user=user)
        else:
            chunks = files.read_chunks(here.path, user=user)
        await _to_stdout(counter.counting(chunks))
        return counter.count
    target = there.path
    if directory and os.path.isdir(target) and here.name:
        target = os.path.join(target, here.name)
    total = None
    if not directory:
        info = await sandbox.files.stat(here.path, user=user)
        total = info.size if str(info.type) == "f" else None
    source = here.path.rstrip("/") + "/." if directory else here.path
    with progress_bar(app, f"to {target}", total) as advance:
        done = await sandbox.files.download(source, target, user=user, progress=advance)
    tell(app, done.notes)
    return advance.count


def tell(app: App, notes: tuple[str, ...]) -> None:
    """Says what was left out, or changed while it was read."""
    for note in notes[:NOTES_SHOWN]:
        app.warn(f"cp: {shown(note)}")
    if len(notes) > NOTES_SHOWN:
        app.warn(f"cp: and {len(notes) - NOTES_SHOWN} more")


class Counter:
    """Counts bytes that went by, and may show them."""

    def __init__(self, show: Progress | None = None) -> None:
        self.count = 0
        self._show = show

    def __call__(self, size: int) -> None:
        """Counts a piece."""
        self.count += size
        if self._show is not None:
            self._show(size)

    async def counting(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yields the chunks."""
        async for chunk in chunks:
            self(len(chunk))
            yield chunk


async def _stdin() -> AsyncIterator[bytes]:
    from skerry.cli.stdio import stdin_chunks

    async for chunk in stdin_chunks(Lane()):
        yield chunk


async def _to_stdout(chunks: AsyncIterator[bytes]) -> None:
    from skerry.cli.stdio import write_all

    lane = Lane()
    async for chunk in chunks:
        await lane.call(write_all, "stdout", chunk)


def local_size(path: str) -> int:
    """Returns the bytes of a file, or of all files in a tree (links are not followed)."""
    if not os.path.isdir(path):
        return os.stat(path).st_size
    total = 0
    for top, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(
                OSError
            ):  # it may vanish meanwhile; then it is not sent either
                total += os.lstat(os.path.join(top, name)).st_size
    return total


@contextlib.contextmanager
def progress_bar(app: App, what: str, total: int | None) -> Iterator[Counter]:
    """Shows bytes, rate and time left on a terminal, for a transfer that takes a moment."""
    if not app.may_draw:
        yield Counter()
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import (
        Progress as Bars,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=app.console(err=True), transient=True) as bars:
        task = bars.add_task(what[-50:], total=total)
        yield Counter(lambda size: bars.advance(task, size))
