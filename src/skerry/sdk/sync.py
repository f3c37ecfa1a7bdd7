"""The sync face, made by scripts/generate_sync.py from the async classes. Do not edit."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Literal, Unpack, cast, overload

from msgspec import UNSET, UnsetType

from skerry.errors import SkerryError
from skerry.sdk import client as _client
from skerry.sdk import command as _command
from skerry.sdk import commits as _commits
from skerry.sdk import connect as _connect
from skerry.sdk import files as _files
from skerry.sdk import functions as _functions
from skerry.sdk import images as _images
from skerry.sdk import rollout_job as _rollout_job
from skerry.sdk import jobs as _jobs
from skerry.sdk import rollout as _rollout
from skerry.sdk import sandbox as _sandbox
from skerry.sdk import sandboxes as _sandboxes
from skerry.sdk import session as _session
from skerry.sdk import stream as _stream
from skerry.sdk import trajectories as _trajectories
from skerry.sdk.bases import ImageSources
from skerry.sdk.call_stream import OnOutput
from skerry.sdk.connect import Forwarded
from skerry.sdk.files import Entries
from skerry.sdk.function_options import CallOptions, InputFiles
from skerry.sdk.functions import AT_ONCE, CallOutcome, CallProgress
from skerry.sdk.images import Log
from skerry.sdk.jobs import OnProgress
from skerry.sdk.options import SandboxOptions
from skerry.sdk.patience import WAIT_S
from skerry.sdk.portal import Portal, to_async
from skerry.sdk.repeat.choices import Choice
from skerry.sdk.running import Command
from skerry.sdk.transfer import Progress, Transfer
from skerry.spec.command import RunResult, Terminal
from skerry.spec.function import CallSpec
from skerry.spec.function_result import CallResult, PoolInfo
from skerry.spec.files import Change, FileInfo, TreeUsage, WatchEvent
from skerry.spec.job import JobInfo
from skerry.spec.layers import CollectReport, LayerCheck, LayerManifest, RecordsCheck
from skerry.spec.limits import OUTPUT_LIMIT_DEFAULT
from skerry.spec.rollout import Line, RolloutRecord
from skerry.spec.task import TaskSpec
from skerry.spec.trajectory import (
    EVENTS_PAGE_MAX,
    Event,
    EventPage,
    TrajectoryCheck,
    TrajectoryInfo,
)
from skerry.spec.sandbox import SandboxInfo, SandboxSpec, State, Usage
from skerry.spec.worker import (
    AnswerUrl,
    JobStatus,
    ModelSettings,
    RolloutStatus,
    Scaffold,
    Signal,
    Taken,
)
from skerry.wire.commits import CommitInfo
from skerry.wire.control import DrainState, NodeUsage
from skerry.wire.batch import BatchItem
from skerry.wire.http import Health, OpStatus, StreamEvent
from skerry.wire.jobs import JobMoved, JobQueue
from skerry.wire.network import NetworkView
from skerry.wire.sessions import SessionInfo
from skerry.wire.workers import WorkerInfo


class LiveCommand:
    """A command with open standard input, over a WebSocket; iterate for its events."""

    def __init__(self, portal: Portal, inner: _stream.LiveCommand) -> None:
        self._portal = portal
        self._inner = inner

    def opened(self) -> None:
        """Waits for its first event, which iteration yields later; raises what refused it."""
        return self._portal.call(self._inner.opened())

    def send(self, data: bytes) -> None:
        """Sends bytes to its standard input, waiting while it does not read."""
        return self._portal.call(self._inner.send(data))

    def end_input(self) -> None:
        """Ends its standard input."""
        return self._portal.call(self._inner.end_input())

    def signal(self, number: int) -> None:
        """Sends a signal to every process of the command."""
        return self._portal.call(self._inner.signal(number))

    def resize(self, rows: int, cols: int) -> None:
        """Sets the size of its terminal."""
        return self._portal.call(self._inner.resize(rows, cols))

    def cancel(self) -> None:
        """Ends every process of the command."""
        return self._portal.call(self._inner.cancel())

    def close(self) -> None:
        """Closes the connection; the command goes on without it."""
        return self._portal.call(self._inner.close())

    @property
    def result(self) -> RunResult | None:
        """The result, once it has come."""
        return self._inner.result

    def __iter__(self) -> Iterator[StreamEvent]:
        """Yields events up to the result."""
        return self._portal.iterate(self._inner.__aiter__())


class Connection:
    """A connection to a port inside: bytes both ways, each half ends by itself."""

    def __init__(self, portal: Portal, inner: _connect.AsyncConnection) -> None:
        self._portal = portal
        self._inner = inner

    def read(self) -> bytes:
        """Returns the next bytes, b"" at the end; raises what broke the connection."""
        return self._portal.call(self._inner.read())

    def write(self, data: bytes) -> None:
        """Sends all of it, waiting while the other side does not read."""
        return self._portal.call(self._inner.write(data))

    def write_eof(self) -> None:
        """Ends this half; reading goes on. Idempotent."""
        return self._portal.call(self._inner.write_eof())

    def close(self) -> None:
        """Ends it; what is not over is aborted. Idempotent."""
        return self._portal.call(self._inner.close())


class CommandHandle:
    """A command in a sandbox, under way or ended. Losing the handle does nothing to the command.

    `status` is what was last heard of it; `op_id` finds it again from any client.
    """

    def __init__(self, portal: Portal, inner: _command.AsyncCommandHandle) -> None:
        self._portal = portal
        self._inner = inner
        self.op_id = inner.op_id

    def refresh(self) -> OpStatus:
        """Asks how it stands, and returns that; NotFound once it was forgotten."""
        return self._portal.call(self._inner.refresh())

    def poll(self) -> RunResult | None:
        """Returns its result, or None while it runs; raises the error of one that was lost."""
        return self._portal.call(self._inner.poll())

    def wait(self, timeout: float | None = None) -> RunResult:
        """Returns its result when it has ended; raises the error of one that was lost.

        Raises TimeoutError after `timeout` seconds; the command goes on.
        """
        return self._portal.call(self._inner.wait(timeout))

    def signal(self, number: int) -> None:
        """Sends a signal to every process of it; nothing if it has ended."""
        return self._portal.call(self._inner.signal(number))

    def kill(self) -> None:
        """Ends every process of it, however they were started; its result then says cancelled."""
        return self._portal.call(self._inner.kill())

    def send(self, data: bytes | str) -> None:
        """Sends to its standard input; returns when all has left, as fast as the command reads.

        Nothing is lost or doubled by lost connections. Raises Conflict when nobody reads any more.
        One handle is the only writer: another one would begin where this one has come to.
        """
        return self._portal.call(self._inner.send(data))

    def close_stdin(self) -> None:
        """Ends its standard input; harmless afterwards and twice."""
        return self._portal.call(self._inner.close_stdin())

    def resize(self, rows: int, cols: int) -> None:
        """Sets the size of its terminal; Conflict if it has none."""
        return self._portal.call(self._inner.resize(rows, cols))

    def output(
        self, *, stdout: int = 0, stderr: int = 0, pace: bool = True
    ) -> Iterator[StreamEvent]:
        """Yields its output from these offsets on: what was kept, then what comes, then its result.

        Each piece says `at` which offset of its stream it begins; a jump means that the middle of
        long output was not kept. A lost connection is repaired. With `pace`, nothing is skipped
        from here on and a slow reader slows the command; without, a slow reader skips.
        """
        return self._portal.iterate(self._inner.output(stdout=stdout, stderr=stderr, pace=pace))

    @contextlib.contextmanager
    def attach(
        self,
        *,
        terminal: Terminal | None = None,
        takeover: bool = False,
        watch: bool = False,
        who: str = "",
    ) -> Iterator[LiveCommand]:
        """Joins it for a block, its input and output live; it goes on after the block.

        `terminal` is the size of ours, to which its terminal is set, and redrawn. A terminal has one
        writer: Conflict if another client (`holder` in the error's fields) has it, unless `takeover`
        takes it, or `watch` only looks; of who is taken over, the iteration raises it.
        """
        with self._portal.block(
            self._inner.attach(terminal=terminal, takeover=takeover, watch=watch, who=who)
        ) as value:
            yield LiveCommand(self._portal, value)

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def status(self) -> OpStatus:
        """What was last heard of it."""
        return self._inner.status


class CommitHandle:
    """A commit that was acknowledged. It needs neither its sandbox nor this handle any more.

    `status` is what was last heard of it; `id` finds it again from any client of the node.
    """

    def __init__(self, portal: Portal, inner: _commits.AsyncCommitHandle) -> None:
        self._portal = portal
        self._inner = inner
        self.id = inner.id
        self.freeze_seconds = inner.freeze_seconds
        self.acknowledged = inner.acknowledged

    def refresh(self) -> CommitInfo:
        """Asks how it stands, and returns that."""
        return self._portal.call(self._inner.refresh())

    def wait(self, timeout: float | None = None) -> LayerManifest:
        """Returns the layer once it can be used; raises why there is none.

        Raises TimeoutError after `timeout` seconds; the commit goes on.
        """
        return self._portal.call(self._inner.wait(timeout))

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def status(self) -> CommitInfo:
        """What was last heard of it."""
        return self._inner.status


class Session:
    """A persistent shell. As a context manager it is closed at the end of the block.

    Commands run one at a time, in the order in which they came. What one sets, the next one finds,
    after `exit` too; a result with `session_reset` says that the shell itself was lost (killed,
    replaced by `exec`, or ended with a command that could not be ended otherwise): the next command
    then runs in a fresh one, in the directory where the last one was.
    """

    def __init__(self, portal: Portal, inner: _session.AsyncSession) -> None:
        self._portal = portal
        self._inner = inner
        self.id = inner.id
        self.shell = inner.shell

    def run(
        self,
        script: str,
        *,
        timeout: float | None = None,
        no_output_timeout: float | None = None,
        output_limit: int = OUTPUT_LIMIT_DEFAULT,
        op_id: str | None = None,
    ) -> RunResult:
        """Runs shell lines, up to 16 MiB of them, to their end and returns the result.

        Timeouts count from when the command has its turn, and end what it started, not the session.
        A lost connection is repaired and the command is never run twice; an exception or Ctrl-C here
        ends the command inside.
        """
        return self._portal.call(
            self._inner.run(
                script,
                timeout=timeout,
                no_output_timeout=no_output_timeout,
                output_limit=output_limit,
                op_id=op_id,
            )
        )

    def stream(
        self,
        script: str,
        *,
        timeout: float | None = None,
        no_output_timeout: float | None = None,
        output_limit: int = OUTPUT_LIMIT_DEFAULT,
    ) -> Iterator[StreamEvent]:
        """Runs shell lines and yields their output as it comes, then the result (the last event).

        Leaving the iteration early ends the command.
        """
        return self._portal.iterate(
            self._inner.stream(
                script,
                timeout=timeout,
                no_output_timeout=no_output_timeout,
                output_limit=output_limit,
            )
        )

    def info(self) -> SessionInfo:
        """Returns how it stands; NotFound once it is closed."""
        return self._portal.call(self._inner.info())

    def close(self) -> None:
        """Ends the shell, after its EXIT trap, and all that still runs in it; may be called twice."""
        return self._portal.call(self._inner.close())

    def __repr__(self) -> str:
        return repr(self._inner)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Files:
    """File operations inside a sandbox, done with the rights of `user` (default: the sandbox's).

    Paths are absolute, or relative to the sandbox's working directory. Every method raises NotFound
    for a missing path, FileDenied for what the user has no right to, DiskFull, and FileRefused (with
    `errno` in its fields) for what else the sandbox refuses.
    """

    def __init__(self, portal: Portal, inner: _files.AsyncFiles) -> None:
        self._portal = portal
        self._inner = inner

    def read(
        self,
        path: str,
        *,
        offset: int = 0,
        length: int | None = None,
        tail: int | None = None,
        user: str | None = None,
    ) -> bytes:
        """Returns a file's bytes, the part asked for, or the last `tail` bytes."""
        return self._portal.call(
            self._inner.read(path, offset=offset, length=length, tail=tail, user=user)
        )

    def read_text(self, path: str, *, user: str | None = None) -> str:
        """Returns a file's content as UTF-8, undecodable bytes replaced."""
        return self._portal.call(self._inner.read_text(path, user=user))

    def read_chunks(
        self,
        path: str,
        *,
        offset: int = 0,
        length: int | None = None,
        tail: int | None = None,
        user: str | None = None,
    ) -> Iterator[bytes]:
        """Yields a file's bytes as they come, in constant memory.

        Without a length, up to where the file ended when it was opened: one that grows has an end too.
        """
        return self._portal.iterate(
            self._inner.read_chunks(path, offset=offset, length=length, tail=tail, user=user)
        )

    def write(
        self,
        path: str,
        content: bytes | str | Iterator[bytes],
        *,
        mode: int | None = None,
        parents: bool = True,
        append: bool = False,
        exclusive: bool = False,
        user: str | None = None,
    ) -> FileInfo:
        """Writes a file: readers see the old or the new content, and the new one when this returns.

        Without `mode` a file that is there keeps its own (not its set-id bits), and a new one has 0o644.
        """
        return self._portal.call(
            self._inner.write(
                path,
                to_async(content),
                mode=mode,
                parents=parents,
                append=append,
                exclusive=exclusive,
                user=user,
            )
        )

    def append(
        self, path: str, content: bytes | str | Iterator[bytes], *, user: str | None = None
    ) -> FileInfo:
        """Adds to the end of a file, which is made if it is missing. In place: a reader may see half."""
        return self._portal.call(self._inner.append(path, to_async(content), user=user))

    def write_at(
        self,
        path: str,
        offset: int,
        content: bytes | str | Iterator[bytes],
        *,
        user: str | None = None,
    ) -> FileInfo:
        """Writes over what is there from `offset` on; a file that is missing or shorter grows.

        In place: a reader may see half of it.
        """
        return self._portal.call(self._inner.write_at(path, offset, to_async(content), user=user))

    def stat(self, path: str, *, follow: bool = False, user: str | None = None) -> FileInfo:
        """Returns what a path is; with `follow` what a link leads to."""
        return self._portal.call(self._inner.stat(path, follow=follow, user=user))

    def lstat(self, path: str, *, user: str | None = None) -> FileInfo:
        """Returns what a path is, a link being a link."""
        return self._portal.call(self._inner.lstat(path, user=user))

    def exists(self, path: str, *, follow: bool = False, user: str | None = None) -> bool:
        """Returns whether a path exists (a dangling link does, unless followed)."""
        return self._portal.call(self._inner.exists(path, follow=follow, user=user))

    def list(self, path: str, *, user: str | None = None) -> Entries:
        """Returns a directory's entries, sorted by name; `walk` has no bound on their number."""
        return self._portal.call(self._inner.list(path, user=user))

    def walk(
        self,
        path: str,
        *,
        depth: int | None = None,
        glob: str = "",
        types: str = "",
        user: str | None = None,
    ) -> Iterator[FileInfo]:
        """Yields what is below a directory as it is found, in constant memory.

        Names are relative to `path`; parents come before what is in them; links are
        not followed. `depth` 1 is the directory's own entries. `glob` is matched with the last
        part of a name, or, if it holds a slash, with the whole: `*` and `?` stop at slashes, `**` is
        any number of parts; dotfiles match. `types` are letters of FileType. A directory that the user
        may not look into has `unreadable` set. Leaving the loop ends the search.
        """
        return self._portal.iterate(
            self._inner.walk(path, depth=depth, glob=glob, types=types, user=user)
        )

    def find(
        self,
        path: str,
        glob: str = "",
        *,
        depth: int | None = None,
        types: str = "",
        limit: int = 10000,
        user: str | None = None,
    ) -> Entries:
        """Returns what `walk` finds, sorted by name. InvalidRequest beyond `limit` entries."""
        return self._portal.call(
            self._inner.find(path, glob, depth=depth, types=types, limit=limit, user=user)
        )

    def usage(self, path: str, *, user: str | None = None) -> TreeUsage:
        """Returns what a file or tree takes up."""
        return self._portal.call(self._inner.usage(path, user=user))

    def watch(
        self, path: str, *, recursive: bool = False, user: str | None = None
    ) -> Iterator[WatchEvent]:
        """Yields what happens at and below a path, until it is gone (its removal is the last event).

        READY comes first: what happens after it is not missed. With `recursive` new directories are
        watched too; what was made in them before the watch is told, perhaps twice. OVERFLOW says that
        events were lost (too many at once, or the connection broke and was made again): look at the
        tree. Leaving the loop ends the watch. Watching is no activity of the sandbox. FileRefused with
        step `watches` when there are more than 16,384 directories, or the system's bound is reached.
        """
        return self._portal.iterate(self._inner.watch(path, recursive=recursive, user=user))

    def mkdir(
        self, path: str, *, mode: int = 493, parents: bool = False, user: str | None = None
    ) -> None:
        """Makes a directory; with `parents` also those above it, and one that is there is fine."""
        return self._portal.call(self._inner.mkdir(path, mode=mode, parents=parents, user=user))

    def remove(self, path: str, *, recursive: bool = False, user: str | None = None) -> None:
        """Removes a file, a link, or with `recursive` a tree."""
        return self._portal.call(self._inner.remove(path, recursive=recursive, user=user))

    def rename(self, path: str, to: str, *, user: str | None = None) -> None:
        """Renames a path within one file system, replacing what `to` names."""
        return self._portal.call(self._inner.rename(path, to, user=user))

    def move(
        self,
        path: str,
        to: str,
        *,
        parents: bool = False,
        exclusive: bool = False,
        user: str | None = None,
    ) -> None:
        """Moves a path, also onto another file system, replacing what `to` names unless `exclusive`."""
        return self._portal.call(
            self._inner.move(path, to, parents=parents, exclusive=exclusive, user=user)
        )

    def copy(
        self,
        path: str,
        to: str,
        *,
        recursive: bool = False,
        parents: bool = False,
        exclusive: bool = False,
        user: str | None = None,
    ) -> None:
        """Copies a file, or with `recursive` a tree, inside: `to` is the new name.

        Modes (without set-id bits), times and holes are kept, owners too if root does it; each file
        appears whole; links are copied as links, sockets and devices left out. A tree is added to a
        directory that is there.
        """
        return self._portal.call(
            self._inner.copy(
                path, to, recursive=recursive, parents=parents, exclusive=exclusive, user=user
            )
        )

    def chmod(self, path: str, mode: int, *, user: str | None = None) -> None:
        """Sets a path's mode."""
        return self._portal.call(self._inner.chmod(path, mode, user=user))

    def chown(
        self,
        path: str,
        owner: str,
        *,
        recursive: bool = False,
        follow: bool = True,
        user: str | None = None,
    ) -> None:
        """Gives a path to "USER", "USER:GROUP" or ":GROUP", names or numbers; only root may.

        With `recursive` all that is below it, and never what a link names.
        """
        return self._portal.call(
            self._inner.chown(path, owner, recursive=recursive, follow=follow, user=user)
        )

    def symlink(
        self,
        target: str,
        path: str,
        *,
        parents: bool = False,
        replace: bool = False,
        user: str | None = None,
    ) -> None:
        """Makes a symbolic link at `path` that says `target`."""
        return self._portal.call(
            self._inner.symlink(target, path, parents=parents, replace=replace, user=user)
        )

    def readlink(self, path: str, *, user: str | None = None) -> str:
        """Returns what a symbolic link says; FileRefused (EINVAL) if it is none."""
        return self._portal.call(self._inner.readlink(path, user=user))

    def link(self, path: str, to: str, *, parents: bool = False, user: str | None = None) -> None:
        """Gives the file `path` the further name `to`."""
        return self._portal.call(self._inner.link(path, to, parents=parents, user=user))

    def truncate(self, path: str, size: int = 0, *, user: str | None = None) -> None:
        """Cuts a file, or lengthens it by a hole."""
        return self._portal.call(self._inner.truncate(path, size, user=user))

    def utime(
        self,
        path: str,
        *,
        atime: float | None = None,
        mtime: float | None = None,
        user: str | None = None,
    ) -> None:
        """Sets a path's times in seconds since 1970; what is not given stays, without both it is now."""
        return self._portal.call(self._inner.utime(path, atime=atime, mtime=mtime, user=user))

    def upload(
        self,
        local: str | os.PathLike[str],
        path: str,
        *,
        user: str | None = None,
        progress: Progress | None = None,
    ) -> Transfer:
        """Puts a local file at `path`, or a local directory's content beneath it.

        A `path` that ends with a slash is a directory, in which a file keeps its name. Holes are
        not sent. A file appears whole or not at all, however the transfer ends. What was left out or
        changed meanwhile stands in the answer's notes.
        """
        return self._portal.call(self._inner.upload(local, path, user=user, progress=progress))

    def download(
        self,
        path: str,
        local: str | os.PathLike[str],
        *,
        user: str | None = None,
        progress: Progress | None = None,
    ) -> Transfer:
        """Puts the file at `path` into a local file, or a directory's content beneath a local one.

        Missing local directories are made. Nothing is written outside `local`, no set-id bit is kept,
        holes stay holes, a file appears whole or not at all. What was left out or changed meanwhile
        stands in the answer's notes.
        """
        return self._portal.call(self._inner.download(path, local, user=user, progress=progress))

    def put_tree(self, path: str, tar: Iterator[bytes], *, user: str | None = None) -> None:
        """Unpacks a tar beneath `path` inside; members that would leave it are refused."""
        return self._portal.call(self._inner.put_tree(path, to_async(tar), user=user))

    def get_tree(self, path: str, *, user: str | None = None) -> Iterator[bytes]:
        """Yields a tar of what is beneath `path`, or of that one file.

        Holes come in the sparse format 1.0 of GNU tar. If something was left out or changed while it
        was read, a last member "./" has a pax `comment` with a line for each.
        """
        return self._portal.iterate(self._inner.get_tree(path, user=user))


class Sandbox:
    """A sandbox on a node. As an context manager it is destroyed at the end of the block."""

    def __init__(self, portal: Portal, inner: _sandbox.AsyncSandbox) -> None:
        self._portal = portal
        self._inner = inner
        self.files = Files(portal, inner.files)

    def diff(self) -> tuple[Change, ...]:
        """Returns what changed since it was made, sorted by path."""
        return self._portal.call(self._inner.diff())

    def diff_tar(self, under: str = "/") -> Iterator[bytes]:
        """Yields a tar of the added and modified paths beneath `under`."""
        return self._portal.iterate(self._inner.diff_tar(under))

    @overload
    def commit(
        self,
        name: str,
        *,
        exclude: Sequence[str] = ...,
        scrub: Sequence[str] | None = ...,
        scrub_git: bool = ...,
        wait: Literal[True] = ...,
    ) -> LayerManifest: ...
    @overload
    def commit(
        self,
        name: str,
        *,
        exclude: Sequence[str] = ...,
        scrub: Sequence[str] | None = ...,
        scrub_git: bool = ...,
        wait: Literal[False],
    ) -> CommitHandle: ...
    @overload
    def commit(
        self,
        name: str,
        *,
        exclude: Sequence[str] = ...,
        scrub: Sequence[str] | None = ...,
        scrub_git: bool = ...,
        wait: bool,
    ) -> LayerManifest | CommitHandle: ...
    def commit(
        self,
        name: str,
        *,
        exclude: Sequence[str] = (),
        scrub: Sequence[str] | None = None,
        scrub_git: bool = False,
        wait: bool = True,
    ) -> LayerManifest | CommitHandle:
        """Makes the layer `kind/name[:tag]` of what it wrote: all of before the call, nothing after.

        Returns it once it can be used; without `wait` a handle as soon as it is acknowledged: then
        the layer comes whatever becomes of this sandbox. Residue of a build is left out by rules
        (`skerry.spec.residue`; `scrub` names others than the default ones) and listed in the manifest.
        """
        value = self._portal.call(
            self._inner.commit(name, exclude=exclude, scrub=scrub, scrub_git=scrub_git, wait=wait)
        )
        return (
            CommitHandle(self._portal, value)
            if isinstance(value, _commits.AsyncCommitHandle)
            else value
        )

    def network(self) -> NetworkView:
        """Returns its network policy and the last decisions of its proxy."""
        return self._portal.call(self._inner.network())

    def set_network(self, entries: Sequence[str]) -> NetworkView:
        """Gives it another policy, in force when this returns; () is loopback only.

        Open connections that are no longer allowed are cut. Variables for a service that is newly
        allowed are set for commands that start from then on.
        """
        return self._portal.call(self._inner.set_network(entries))

    @contextlib.contextmanager
    def connect(self, port: int) -> Iterator[Connection]:
        """A connection to a port of the sandbox's loopback, for a block.

        Tries 127.0.0.1, then ::1; raises PortRefused if nothing answers there. It keeps the sandbox
        active, and ends with the node that carries it.
        """
        with self._portal.block(self._inner.connect(port)) as value:
            yield Connection(self._portal, value)

    @contextlib.contextmanager
    def forward(
        self, port: int, local_port: int = 0, *, host: str = "127.0.0.1"
    ) -> Iterator[Forwarded]:
        """Listens on `host`:`local_port` here (0: a free port) for a block, and yields where.

        Each connection is carried to the port inside; one that is refused there is reset.
        """
        with self._portal.block(self._inner.forward(port, local_port, host=host)) as value:
            yield value

    def info(self) -> SandboxInfo:
        """Returns its state, spec and times."""
        return self._portal.call(self._inner.info())

    def usage(self) -> Usage:
        """Returns what it has used since it was made."""
        return self._portal.call(self._inner.usage())

    def pause(self) -> SandboxInfo:
        """Returns once its processes stand still; the next request that needs them lets them go on.

        Running commands are paused with it. Raises InvalidRequest if its backend cannot pause.
        """
        return self._portal.call(self._inner.pause())

    def resume(self) -> SandboxInfo:
        """Returns once it runs; a sandbox that runs stays as it is."""
        return self._portal.call(self._inner.resume())

    def stop(self) -> SandboxInfo:
        """Ends it and frees what it has; its name and its recorded results stay until `destroy`."""
        return self._portal.call(self._inner.stop())

    def extend(self, *, ttl: float) -> SandboxInfo:
        """Gives it `ttl` seconds from now, whatever it had before."""
        return self._portal.call(self._inner.extend(ttl=ttl))

    def update(
        self,
        *,
        ttl: float | UnsetType | None = UNSET,
        idle_timeout: float | UnsetType | None = UNSET,
        labels: dict[str, str | None] | None = None,
    ) -> SandboxInfo:
        """Changes deadlines and labels while it lives; what is not named stays.

        `ttl` counts from now. None takes a deadline away, as it does a label of that name.
        """
        return self._portal.call(
            self._inner.update(ttl=ttl, idle_timeout=idle_timeout, labels=labels)
        )

    def record(
        self,
        action: str,
        *,
        request: dict[str, Any] | None = None,
        result: dict[str, Any] | None = None,
        started: float | None = None,
        ended: float | None = None,
        usage: dict[str, Any] | None = None,
        op_id: str | None = None,
    ) -> int:
        """Adds to its record, once: "verdict", "model.request" or "harness.NAME", with JSON's values.

        The same again under one `op_id`, 32 hexadecimal digits, is recorded once. Returns the number
        of the record. Raises InvalidRequest, StorageFailed.
        """
        return self._portal.call(
            self._inner.record(
                action,
                request=request,
                result=result,
                started=started,
                ended=ended,
                usage=usage,
                op_id=op_id,
            )
        )

    def wait(self, state: State = State.STOPPED, *, timeout: float = 3600.0) -> SandboxInfo:
        """Returns when it is in the state, or has ended; InvalidRequest if the time passes first."""
        return self._portal.call(self._inner.wait(state, timeout=timeout))

    def run(
        self,
        command: Command,
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,
        no_output_timeout: float | None = None,
        output_limit: int = OUTPUT_LIMIT_DEFAULT,
        terminal: Terminal | None = None,
        merge_stderr: bool = False,
        op_id: str | None = None,
    ) -> RunResult:
        """Runs a command (argv, or a shell line) to its end and returns its result.

        A lost connection is repaired and the command is never run twice; an exception or Ctrl-C here
        ends the command inside. Exit status, timeout and a missing program are in the result.
        `no_output_timeout` ends it after so many seconds without a byte of output. With `merge_stderr`
        what it writes to stderr stands in stdout, in the order in which both were written.
        """
        return self._portal.call(
            self._inner.run(
                command,
                env=env,
                cwd=cwd,
                user=user,
                stdin=stdin,
                timeout=timeout,
                no_output_timeout=no_output_timeout,
                output_limit=output_limit,
                terminal=terminal,
                merge_stderr=merge_stderr,
                op_id=op_id,
            )
        )

    def session(
        self,
        name: str | None = None,
        *,
        shell: str = "bash",
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
    ) -> Session:
        """Returns a persistent shell, once it runs; one with this name and these options is found.

        `shell` is a name or path; `bash` falls back to `sh`. Raises InvalidRequest (no such shell,
        directory or user), Conflict (the name is taken), Overloaded (too many sessions).
        """
        return Session(
            self._portal,
            self._portal.call(self._inner.session(name, shell=shell, cwd=cwd, env=env, user=user)),
        )

    def sessions(self) -> list[SessionInfo]:
        """Returns its sessions, oldest first."""
        return self._portal.call(self._inner.sessions())

    def stream(
        self,
        command: Command,
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,
        no_output_timeout: float | None = None,
        output_limit: int = OUTPUT_LIMIT_DEFAULT,
        terminal: Terminal | None = None,
        merge_stderr: bool = False,
        op_id: str | None = None,
    ) -> Iterator[StreamEvent]:
        """Runs a command and yields its output as it comes, then its result (the last event).

        Leaving the iteration early ends the command. With the `op_id` of one that there is it is joined
        and not run again.
        """
        return self._portal.iterate(
            self._inner.stream(
                command,
                env=env,
                cwd=cwd,
                user=user,
                stdin=stdin,
                timeout=timeout,
                no_output_timeout=no_output_timeout,
                output_limit=output_limit,
                terminal=terminal,
                merge_stderr=merge_stderr,
                op_id=op_id,
            )
        )

    def start(
        self,
        command: Command,
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,
        no_output_timeout: float | None = None,
        output_limit: int = OUTPUT_LIMIT_DEFAULT,
        terminal: Terminal | None = None,
        merge_stderr: bool = False,
        interactive: bool = False,
        op_id: str | None = None,
    ) -> CommandHandle:
        """Starts a command in the background and returns a handle once its program runs.

        One that could not be started has ended by then: its result says why. With `interactive` its
        standard input stays open, and `send` feeds it. The command ends by itself, by its timeout,
        by `kill` or with the sandbox, and never because a client went away.
        """
        return CommandHandle(
            self._portal,
            self._portal.call(
                self._inner.start(
                    command,
                    env=env,
                    cwd=cwd,
                    user=user,
                    stdin=stdin,
                    timeout=timeout,
                    no_output_timeout=no_output_timeout,
                    output_limit=output_limit,
                    terminal=terminal,
                    merge_stderr=merge_stderr,
                    interactive=interactive,
                    op_id=op_id,
                )
            ),
        )

    def command(self, op_id: str) -> CommandHandle:
        """Returns the handle of a command that runs or has ended, whoever started it; NotFound."""
        return CommandHandle(self._portal, self._portal.call(self._inner.command(op_id)))

    def commands(self) -> list[CommandHandle]:
        """Returns the commands that are remembered, oldest first; their `status` has no result."""
        found = self._portal.call(self._inner.commands())
        return [CommandHandle(self._portal, item) for item in found]

    @contextlib.contextmanager
    def attach(
        self,
        command: Command,
        *,
        terminal: Terminal | None = None,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout: float | None = None,
        no_output_timeout: float | None = None,
    ) -> Iterator[LiveCommand]:
        """Starts a command whose standard input stays open; it ends with the block."""
        with self._portal.block(
            self._inner.attach(
                command,
                terminal=terminal,
                env=env,
                cwd=cwd,
                user=user,
                timeout=timeout,
                no_output_timeout=no_output_timeout,
            )
        ) as value:
            yield LiveCommand(self._portal, value)

    def ops(self) -> list[OpStatus]:
        """Returns the operations it has had, oldest first."""
        return self._portal.call(self._inner.ops())

    def op(self, op_id: str, *, wait: float = 0.0) -> OpStatus:
        """Returns one operation's state, after waiting up to `wait` seconds for its end."""
        return self._portal.call(self._inner.op(op_id, wait=wait))

    def signal(self, op_id: str, number: int) -> None:
        """Sends a signal to every process of a running operation."""
        return self._portal.call(self._inner.signal(op_id, number))

    def cancel(self, op_id: str) -> None:
        """Ends every process of a running operation; its result then says cancelled."""
        return self._portal.call(self._inner.cancel(op_id))

    def fork(
        self,
        count: int = 1,
        *,
        all_or_nothing: bool = True,
        key: str | None = None,
        labels: dict[str, str] | None = None,
        ttl: float | None = None,
        idle_timeout: float | None = None,
        detached: bool | None = None,
        priority: int | None = None,
        wait: float = WAIT_S,
    ) -> list[Sandbox]:
        """Returns running sandboxes that begin with what this one has on its disk at this moment.

        They have its spec and layers, and none of its processes and memory. What is given takes the
        place of the spec's (`labels` are added; a `ttl` or `idle_timeout` of 0: none). All or none
        are made, or with `all_or_nothing=False` as many as can be. With `key` a repeat returns the
        same ones. For room it waits up to `wait` seconds.
        """
        found = self._portal.call(
            self._inner.fork(
                count,
                all_or_nothing=all_or_nothing,
                key=key,
                labels=labels,
                ttl=ttl,
                idle_timeout=idle_timeout,
                detached=detached,
                priority=priority,
                wait=wait,
            )
        )
        return [Sandbox(self._portal, item) for item in found]

    def destroy(self) -> None:
        """Leaves nothing of it behind; may be called twice."""
        return self._portal.call(self._inner.destroy())

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def id(self) -> str:
        """Its id; in a rollout it changes if the sandbox has to be rebuilt."""
        return self._inner.id

    @property
    def created_as(self) -> SandboxInfo:
        """What was known of it when it was made, or found."""
        return self._inner.created_as

    @property
    def rebuilt(self) -> bool:
        """Whether it was restored from a commit, in a rollout, because its sandbox was lost."""
        return self._inner.rebuilt

    @property
    def branched(self) -> bool:
        """Whether it began, in a rollout, where something else was asked for than was on record."""
        return self._inner.branched

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    @contextlib.contextmanager
    def reverse_forward(self, port: int, host: str, target_port: int) -> Iterator[None]:
        """Connects 127.0.0.1:`port` inside to `host`:`target_port` as seen from here, for a block."""
        with self._portal.block(self._inner.reverse_forward(port, host, target_port)):
            yield


class Sandboxes:
    """The sandboxes of a node; of a job, if it has one: then what it makes and lists is the job's."""

    def __init__(self, portal: Portal, inner: _sandboxes.AsyncSandboxes) -> None:
        self._portal = portal
        self._inner = inner

    def create(
        self,
        backend: str = "container",
        *,
        key: str | None = None,
        wait: float = WAIT_S,
        **options: Unpack[SandboxOptions],
    ) -> Sandbox:
        """Returns a running sandbox; `options` are those of `skerry.SandboxOptions`.

        With `key`, a repeat returns the one that the first call made; a call without it that is
        cancelled leaves none behind. If there is no room it waits for up to `wait` seconds, first in
        the node's queue and then by asking again when the node said. Raises Overloaded with the limit
        and who holds it.
        """
        return Sandbox(
            self._portal,
            self._portal.call(self._inner.create(backend, key=key, wait=wait, **options)),
        )

    def restore(
        self,
        name: str,
        backend: str = "container",
        *,
        key: str | None = None,
        wait: float = WAIT_S,
        **options: Unpack[SandboxOptions],
    ) -> Sandbox:
        """Returns a running sandbox that shows what a commit holds, on the layers it was made on.

        Any node of the store will do, and reads only what is used. `options` are those of `create`,
        without `image` and `layers`; so is what it raises, and InvalidRequest if the name is no
        commit's, LayerDamaged if a layer that it lies on is gone (field `digest`: which one).
        """
        return Sandbox(
            self._portal,
            self._portal.call(self._inner.restore(name, backend, key=key, wait=wait, **options)),
        )

    def create_many(
        self,
        count: int,
        backend: str = "container",
        *,
        wait: float = WAIT_S,
        **options: Unpack[SandboxOptions],
    ) -> list[Sandbox]:
        """Returns `count` running sandboxes made in one request, or raises and leaves none.

        They are alike, with the options of `create`. Waits for room for all of them for up to
        `wait` seconds. Cancelled, it leaves none either.
        """
        found = self._portal.call(self._inner.create_many(count, backend, wait=wait, **options))
        return [Sandbox(self._portal, item) for item in found]

    def create_batch(
        self, spec: SandboxSpec, count: int, *, all_or_nothing: bool = False, wait: float = 0.0
    ) -> tuple[BatchItem, ...]:
        """Asks for `count` sandboxes and returns each one's info or error, in order.

        Members for which there is no room wait for it for up to `wait` seconds. With a key in the
        spec a lost connection is followed by the same request again: members that were made are
        found by `KEY/i` and not made twice.
        """
        return self._portal.call(
            self._inner.create_batch(spec, count, all_or_nothing=all_or_nothing, wait=wait)
        )

    def create_each(
        self,
        spec: SandboxSpec,
        count: int,
        *,
        wait: float = WAIT_S,
        failed: Callable[[int, SkerryError], None] | None = None,
    ) -> Iterator[Sandbox]:
        """Asks for `count` sandboxes in one request and yields each one as soon as it runs.

        A member that cannot be made, for lack of room within `wait` seconds too, is told to
        `failed` with its number; without that, the first such error is raised after all others were
        yielded. What was yielded is the caller's. Leaving early (break, an exception, a
        cancellation) undoes the rest, and none is left behind.
        """
        for item in self._portal.iterate(
            self._inner.create_each(spec, count, wait=wait, failed=failed)
        ):
            yield Sandbox(self._portal, item)

    def destroy_many(self, sandboxes: Sequence[Sandbox | str]) -> None:
        """Destroys them in one request; raises the first error after all were tried."""
        return self._portal.call(
            self._inner.destroy_many(
                [item if isinstance(item, str) else item._inner for item in sandboxes]
            )
        )

    def get(self, sandbox_id: str) -> Sandbox:
        """Returns a handle for an existing sandbox, by its id or the beginning that only it has.

        Raises NotFound if there is none, or more than one.
        """
        return Sandbox(self._portal, self._portal.call(self._inner.get(sandbox_id)))

    def commit(self, commit_id: str) -> CommitHandle:
        """Returns a handle on a commit by its id, whoever asked for it; NotFound."""
        return CommitHandle(self._portal, self._portal.call(self._inner.commit(commit_id)))

    def commits(self, sandbox_id: str | None = None) -> list[CommitInfo]:
        """Returns commits under way and the last ones, of one sandbox or of all, oldest first."""
        return self._portal.call(self._inner.commits(sandbox_id))

    def list(
        self,
        *,
        state: str | None = None,
        labels: dict[str, str] | None = None,
        key: str | None = None,
        job: str | None = None,
    ) -> list[SandboxInfo]:
        """Returns all sandboxes that match, oldest first."""
        return self._portal.call(self._inner.list(state=state, labels=labels, key=key, job=job))


class ModelRequest:
    """One request of an agent to its model. The first answer that is recorded is the one it gets."""

    def __init__(self, portal: Portal, inner: _rollout_job.AsyncModelRequest) -> None:
        self._portal = portal
        self._inner = inner
        self.asked = inner.asked
        self.id = inner.id
        self.body = inner.body
        self.endpoint = inner.endpoint
        self.rollout = inner.rollout
        self.task = inner.task

    def answer(self, answer: Any) -> Taken:
        """Records the answer: a text, a message (`content`, `tool_calls`), a whole object, or an error.

        With a whole object token ids, log-probabilities and all else reach the agent as they are. An
        error is {"error": TEXT, "status": 429}. The same answer again is fine; `needed` is false if
        the attempt that asked was given up. Raises Conflict if another answer is on record.
        """
        return self._portal.call(self._inner.answer(answer))


class Jobs:
    """The jobs of a node."""

    def __init__(self, portal: Portal, inner: _jobs.AsyncJobs) -> None:
        self._portal = portal
        self._inner = inner

    def create(
        self,
        name: str,
        *,
        lease: float = 60.0,
        on_lost: str = "pause",
        grace: float = 30.0,
        resume: str = "lazy",
        priority: int = 0,
        sandboxes_max: int | None = None,
        ttl: float | None = None,
        labels: dict[str, str] | None = None,
    ) -> Job:
        """Returns the job of that name, made if it is not there; a repeat must ask for the same.

        Its lease runs from here on: enter the job, or call `heartbeat`, within `lease` seconds. When
        that and `grace` have passed, its sandboxes are paused ("pause"), stopped with the job ("stop"),
        or left as they are ("keep"). When the trainer is back, what was paused goes on: "lazy": where
        commands are under way at once, elsewhere with the next request; "all": at once. Of one
        token's jobs whose creates wait a higher `priority` (-10 to 10) is first; `sandboxes_max` may
        live at once. After `ttl` seconds all of it is stopped, whatever happens.

        Raises InvalidRequest, Conflict (another job has that name, or it has ended), Overloaded.
        """
        return Job(
            self._portal,
            self._portal.call(
                self._inner.create(
                    name,
                    lease=lease,
                    on_lost=on_lost,
                    grace=grace,
                    resume=resume,
                    priority=priority,
                    sandboxes_max=sandboxes_max,
                    ttl=ttl,
                    labels=labels,
                )
            ),
        )

    def attach(self, name: str) -> Job:
        """Returns the job as its trainer: that is a heartbeat, and what its loss has paused goes on.

        Raises NotFound, Conflict if it has ended.
        """
        return Job(self._portal, self._portal.call(self._inner.attach(name)))

    def get(self, name: str) -> Job:
        """Returns a handle on a job, which changes nothing for it; NotFound."""
        return Job(self._portal, self._portal.call(self._inner.get(name)))

    def list(self, *, labels: dict[str, str] | None = None, ended: bool = False) -> list[JobInfo]:
        """Returns what is known of the jobs with these labels, oldest first; ended ones on request."""
        return self._portal.call(self._inner.list(labels=labels, ended=ended))


class Job:
    """A job. Within `async with job` its lease is renewed, from a thread of its own.

    Leaving the block ends nothing: the lease runs out, and then happens what the job was made for.
    `end` ends it. `sandboxes` makes and lists those of the job.
    """

    def __init__(self, portal: Portal, inner: _jobs.AsyncJob) -> None:
        self._portal = portal
        self._inner = inner
        self.id = inner.id
        self.spec = inner.spec
        self.created_as = inner.created_as
        self.sandboxes = Sandboxes(portal, inner.sandboxes)
        self.images = Images(portal, inner.images)

    def submit(
        self,
        tasks: Sequence[TaskSpec],
        policy: str | Sequence[str] = (),
        *,
        scaffold: Scaffold | Sequence[str] | None = None,
        model: ModelSettings | None = None,
        n: int = 1,
        concurrency: int = 4,
        answers: AnswerUrl | None = None,
        pause_after: float = 60.0,
    ) -> list[JobStatus]:
        """Gives the job's rollouts to the workers: `n` of each task and each of those who act.

        Those are policies by name (gold, noop, cheat), the command `scaffold`, and the bash-tool agent
        with `model`. `concurrency` is for all workers together. Requests for a model come to
        `requests`, or are put to the server `answers`. A sandbox whose request has waited for
        `pause_after` seconds is paused. The same again changes nothing; Conflict for something else.
        """
        return self._portal.call(
            self._inner.submit(
                tasks,
                policy,
                scaffold=scaffold,
                model=model,
                n=n,
                concurrency=concurrency,
                answers=answers,
                pause_after=pause_after,
            )
        )

    def rollouts(self) -> Iterator[RolloutStatus]:
        """Yields each rollout as it stands, those of one worker after those of another."""
        return self._portal.iterate(self._inner.rollouts())

    def status(self) -> list[JobStatus]:
        """Returns how each worker's share stands; NotFound if nothing was submitted."""
        return self._portal.call(self._inner.status())

    def requests(self, consumer: str | None = None) -> Iterator[ModelRequest]:
        """Yields the agents' requests as they come, until none will ever come again.

        What earlier consumers held and did not answer comes again: they are taken to be gone. Trainers
        that work side by side use `shared_requests`. Several requests may be answered at once. One
        that was yielded is held for as long as the iteration lives.
        """
        for item in self._portal.iterate(self._inner.requests(consumer)):
            yield ModelRequest(self._portal, item)

    def shared_requests(self, consumer: str | None = None) -> Iterator[ModelRequest]:
        """Like `requests`, beside other consumers: each request is held by one of them.

        What a consumer holds comes to another one when it has been silent for half a minute.
        """
        for item in self._portal.iterate(self._inner.shared_requests(consumer)):
            yield ModelRequest(self._portal, item)

    def answer(self, request: str, answer: Any) -> Taken:
        """Records the answer to a request by its id; see `AsyncModelRequest.answer`."""
        return self._portal.call(self._inner.answer(request, answer))

    def results(self) -> Iterator[RolloutRecord]:
        """Yields rollouts as they end, from the first on, until all have.

        Raises InvalidRequest if the rest never will: the environments cannot be made.
        """
        return self._portal.iterate(self._inner.results())

    def lines(self) -> Iterator[Line]:
        """Yields what happens, from the first line on, until all has ended: one record a worker."""
        return self._portal.iterate(self._inner.lines())

    def blob(self, digest: str) -> bytes:
        """Returns a long output or a submission that a line names by its sha256; NotFound."""
        return self._portal.call(self._inner.blob(digest))

    def signal(self, *, version: int = 0, wait: float = 0.0) -> Signal:
        """Returns whether there is work for the model, and when there will be.

        With the version of the last signal it waits for up to `wait` seconds until that changes.
        """
        return self._portal.call(self._inner.signal(version=version, wait=wait))

    def forget(self) -> None:
        """Ends the rollouts and what they have; the workers forget them. Idempotent."""
        return self._portal.call(self._inner.forget())

    def heartbeat(self) -> JobInfo:
        """Renews the lease; what its loss has paused goes on. Raises NotFound, Conflict if it ended."""
        return self._portal.call(self._inner.heartbeat())

    def info(self) -> JobInfo:
        """Returns how it stands."""
        return self._portal.call(self._inner.info())

    def update(
        self,
        *,
        lease: float | UnsetType = UNSET,
        grace: float | UnsetType = UNSET,
        on_lost: str | UnsetType = UNSET,
        resume: str | UnsetType = UNSET,
        priority: int | UnsetType = UNSET,
        sandboxes_max: int | UnsetType | None = UNSET,
        ttl: float | UnsetType | None = UNSET,
        labels: dict[str, str | None] | None = None,
    ) -> JobInfo:
        """Changes what is given; the rest stays. `ttl` counts from now; None takes a limit away.

        Of `labels` only those named change; None removes one. It is no heartbeat. Raises
        InvalidRequest, Conflict if the job has ended.
        """
        return self._portal.call(
            self._inner.update(
                lease=lease,
                grace=grace,
                on_lost=on_lost,
                resume=resume,
                priority=priority,
                sandboxes_max=sandboxes_max,
                ttl=ttl,
                labels=labels,
            )
        )

    def queue(self) -> JobQueue:
        """Returns which of its creates wait for room, in which place, and for how long about."""
        return self._portal.call(self._inner.queue())

    def pause(self, on_progress: OnProgress | None = None) -> JobMoved:
        """Pauses all its sandboxes; returns when each of them stands still or could not.

        Those are named in `failed`, and run on. The longest idle is first; creates wait from the
        beginning on, until `resume`. `on_progress` is told of each one. A lost connection or a
        restart of the node ends nothing and is waited for; cancelled, it stops where it is.
        """
        return self._portal.call(self._inner.pause(on_progress))

    def resume(self, on_progress: OnProgress | None = None) -> JobMoved:
        """Resumes what `pause` or the loss of the lease has paused, as `pause` does the reverse.

        Those in which commands are under way are first, then the last used.
        """
        return self._portal.call(self._inner.resume(on_progress))

    def end(self) -> JobInfo:
        """Ends its rollouts and sandboxes and forgets it; its name is free then. Idempotent."""
        return self._portal.call(self._inner.end())

    def __repr__(self) -> str:
        return repr(self._inner)

    def __enter__(self) -> Job:
        self._portal.call(self._inner.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._portal.call(self._inner.__aexit__())

    @property
    def lost(self) -> SkerryError | None:
        """Why heartbeats have stopped within the block: the job has ended, or was removed."""
        return self._inner.lost


class Images:
    """Layers of a node's store. Names are `kind/name[:tag]`; without a kind, a base is meant."""

    def __init__(self, portal: Portal, inner: _images.AsyncImages) -> None:
        self._portal = portal
        self._inner = inner

    def list(self) -> list[LayerManifest]:
        """Returns all layers, sorted by name."""
        return self._portal.call(self._inner.list())

    def inspect(self, name: str) -> LayerManifest:
        """Returns one layer's manifest; raises NotFound."""
        return self._portal.call(self._inner.inspect(name))

    def remove(self, name: str) -> None:
        """Removes a name, and its bytes once nothing refers to them; Conflict while in use."""
        return self._portal.call(self._inner.remove(name))

    def pin(self, name: str) -> LayerManifest:
        """Makes what the name stands for now stay, whatever its names do later; NotFound."""
        return self._portal.call(self._inner.pin(name))

    def unpin(self, name: str) -> LayerManifest:
        """Takes a pin back; NotFound if there is none."""
        return self._portal.call(self._inner.unpin(name))

    def verify(self, name: str, *, remove_damaged: bool = False) -> LayerCheck:
        """Reads all of a layer's bytes in the store again and says what is damaged.

        With `remove_damaged` damaged blobs go, so that making the layer again stores them anew.
        Raises NotFound, StorageFailed if the store cannot be reached.
        """
        return self._portal.call(self._inner.verify(name, remove_damaged=remove_damaged))

    def last_check(self, name: str) -> LayerCheck:
        """Returns what the last check of a layer found, by `verify` or by any node of the store.

        Nodes scrub all layers slowly by themselves. `checked` is "" if parts never were. NotFound.
        """
        return self._portal.call(self._inner.last_check(name))

    def verify_records(self) -> RecordsCheck:
        """Reads all records of the store (names, manifests, pins, leases) and says which are damaged.

        Each problem says by name what the record is of, and what to do. A manifest whose name is
        whole is written anew, and told as `mended`. Raises StorageFailed.
        """
        return self._portal.call(self._inner.verify_records())

    def collect(self, *, dry_run: bool = False) -> CollectReport:
        """Removes the bytes that no name, pin, sandbox or lease needs, and says what stays and why.

        Takes ten seconds or a minute and a half (the grace period of the store); a dry run no time.
        """
        return self._portal.call(self._inner.collect(dry_run=dry_run))

    def import_tar(
        self,
        name: str,
        source: str | os.PathLike[str] | BinaryIO,
        *,
        progress: Progress | None = None,
    ) -> LayerManifest:
        """Makes a layer of a tar file (plain, gzip, xz)."""
        return self._portal.call(self._inner.import_tar(name, source, progress=progress))

    def import_directory(
        self,
        name: str,
        path: str | os.PathLike[str],
        *,
        prefix: str = "/",
        progress: Progress | None = None,
    ) -> LayerManifest:
        """Makes a layer of a local directory's content, placed at `prefix`."""
        return self._portal.call(
            self._inner.import_directory(name, path, prefix=prefix, progress=progress)
        )

    def import_oci(
        self,
        name: str,
        source: str,
        *,
        platform: str | None = None,
        authfile: str | os.PathLike[str] | None = None,
        tls_verify: bool = True,
        progress: Progress | None = None,
        on_log: Log | None = None,
    ) -> LayerManifest:
        """Makes a layer of an image: `docker://HOST/NAME:TAG`, `oci:DIR[:TAG]`, or an archive.

        `oci-archive:FILE` and `docker-archive:FILE` are such. The node fetches what is in a
        registry, with its progress to `on_log`; the rest is sent there, its bytes told to
        `progress`. `authfile` is like ~/.docker/config.json. Sandboxes take the image's env,
        workdir and user as defaults. Raises RegistryDenied, NotFound, ImageBroken, Unavailable.
        """
        return self._portal.call(
            self._inner.import_oci(
                name,
                source,
                platform=platform,
                authfile=authfile,
                tls_verify=tls_verify,
                progress=progress,
                on_log=on_log,
            )
        )

    def find(
        self, name: str, sources: ImageSources | None = None, *, on_log: Log | None = None
    ) -> LayerManifest:
        """Returns the base that a name stands for: a layer, or an image as Docker names it.

        If there is none it is fetched, once, from where `sources` allow it. Raises NotFound, and
        what `import_oci` raises.
        """
        return self._portal.call(self._inner.find(name, sources, on_log=on_log))

    def push(
        self,
        names: str | Sequence[str],
        target: str,
        *,
        authfile: str | os.PathLike[str] | None = None,
        tls_verify: bool = True,
        on_log: Log | None = None,
    ) -> str:
        """Takes layers, composed, to a registry (`docker://HOST/NAME:TAG`); returns the digest there."""
        return self._portal.call(
            self._inner.push(names, target, authfile=authfile, tls_verify=tls_verify, on_log=on_log)
        )

    def collapse(
        self,
        names: Sequence[str],
        into: str,
        *,
        threshold: int | str | None = None,
        scrub: Sequence[str] = (),
        on_log: Log | None = None,
    ) -> LayerManifest:
        """Makes one layer of several that shows the same; deletions stay, but in a base.

        Files beyond `threshold` (3 GiB) make further parts of that layer, each mounted alone. What
        the rules `scrub` match is left out (`skerry.spec.residue`; not `git`).
        """
        return self._portal.call(
            self._inner.collapse(names, into, threshold=threshold, scrub=scrub, on_log=on_log)
        )

    def debian(
        self,
        name: str,
        suite: str,
        packages: Sequence[str] = (),
        *,
        refresh: bool = False,
        on_log: Log | None = None,
    ) -> LayerManifest:
        """Makes a base layer from a Debian suite with the node's own apt configuration."""
        return self._portal.call(
            self._inner.debian(name, suite, packages, refresh=refresh, on_log=on_log)
        )

    def build(
        self,
        name: str,
        *,
        image: str = "debian:12",
        layers: Sequence[str] = (),
        context: str | os.PathLike[str] | None = None,
        context_path: str = "/build",
        steps: Sequence[str],
        workdir: str | None = None,
        env: dict[str, str] | None = None,
        network: Sequence[str] = (),
        keep_context: bool = False,
        memory: int | str = "2GiB",
        timeout: float = 1800.0,
        on_log: Log | None = None,
    ) -> LayerManifest:
        """Makes a layer by running shell steps in a sandbox, then committing it.

        They reach nothing but what `network` allows. The context is a local directory put at
        `context_path` before and left out of the layer afterwards unless it is kept. A step that fails
        raises SandboxFailed with its output's end.
        """
        return self._portal.call(
            self._inner.build(
                name,
                image=image,
                layers=layers,
                context=context,
                context_path=context_path,
                steps=steps,
                workdir=workdir,
                env=env,
                network=network,
                keep_context=keep_context,
                memory=memory,
                timeout=timeout,
                on_log=on_log,
            )
        )

    def build_recipe(
        self,
        name: str,
        recipe: str,
        *,
        context: str | os.PathLike[str] | None = None,
        args: dict[str, str] | None = None,
        network: Sequence[str] = ("build",),
        cpu: float = 2,
        memory: int | str = "4GiB",
        timeout: float = 1800.0,
        cache: bool = True,
        sources: ImageSources | None = None,
        on_log: Log | None = None,
    ) -> LayerManifest:
        """Makes a layer by a recipe in the Dockerfile language (`skerry.spec.recipe` says what of it).

        Each RUN and COPY runs in a sandbox, its layer kept in `workspace/build-cache`, and is not run
        again while nothing before it has changed. The layer holds what all of them changed on FROM,
        scrubbed as a commit is; as a base/ it holds FROM too. One that there is and that was made of
        the very same is returned as it is. `network` is what steps may reach: by default what the
        operator lets builds reach. FROM is found as `find` does it. SandboxFailed names the line
        that failed.
        """
        return self._portal.call(
            self._inner.build_recipe(
                name,
                recipe,
                context=context,
                args=args,
                network=network,
                cpu=cpu,
                memory=memory,
                timeout=timeout,
                cache=cache,
                sources=sources,
                on_log=on_log,
            )
        )


class Functions:
    """Function calls on a node."""

    def __init__(self, portal: Portal, inner: _functions.AsyncFunctions) -> None:
        self._portal = portal
        self._inner = inner

    def call(
        self,
        kind: str | CallSpec,
        *,
        stdin: bytes | str | os.PathLike[str] | Iterator[bytes] = b"",
        files: InputFiles | None = None,
        fetch_to: str | os.PathLike[str] | None = None,
        on_output: OnOutput | None = None,
        **options: Unpack[CallOptions],
    ) -> CallResult:
        """Calls a function in a container that is there already, and returns how it ended.

        `kind` is "python", "script", "program" or "compile_run"; `help(skerry.CallOptions)` lists what
        each takes and the limits. Or it is a CallSpec, without options. `files` are contents (bytes, a
        text) or local paths by their name in /call, or a local directory whose content is there; `stdin`
        is content, a local path or an iterator. What is long is streamed. Files that match `fetch` are
        in the result, or with `fetch_to` beneath a local directory. `on_output` is told ("stdout" or
        "stderr", a piece) as it comes, or awaited, and the result holds none then.

        A call that failed, or that a limit ended, is a result; `result.check()` raises for it. Stopping
        to wait, by Ctrl-C too, ends the call. It has run once or never: one that never started is tried
        again, for a place it waits `wait` seconds (Overloaded). Raises OutcomeUnknown if the answer was
        lost and it is not `idempotent`; InvalidRequest, NotFound and ImageBroken of its image.
        """
        return self._portal.call(
            self._inner.call(
                kind,
                stdin=to_async(stdin),
                files=files,
                fetch_to=fetch_to,
                on_output=on_output,
                **options,
            )
        )

    def call_many(
        self,
        kind: str,
        calls: Iterable[Mapping[str, Any]],
        *,
        at_once: int = AT_ONCE,
        progress: CallProgress | None = None,
        **options: Unpack[CallOptions],
    ) -> list[CallOutcome]:
        """Makes many calls, `at_once` at a time, and returns their outcomes in the order given.

        Each of `calls` is what is its own, of all that `call` takes; `options` hold for all. A call that
        could not be answered is an outcome with its error, which its `result` raises; the others go on.
        `progress` is told how many are done, and of how many. Stopping to wait ends those under way.
        """
        return self._portal.call(
            self._inner.call_many(kind, calls, at_once=at_once, progress=progress, **options)
        )

    def call_each(
        self,
        kind: str,
        calls: Iterable[Mapping[str, Any]],
        *,
        at_once: int = AT_ONCE,
        **options: Unpack[CallOptions],
    ) -> Iterator[CallOutcome]:
        """Makes many calls as `call_many` does, and yields each outcome as it comes.

        `calls` is read as they are begun, so it may be endless. Leaving the loop ends those under way.
        """
        return self._portal.iterate(self._inner.call_each(kind, calls, at_once=at_once, **options))

    def prewarm(
        self,
        *,
        image: str = "debian:12",
        layers: Sequence[str] = (),
        modules: Sequence[str] = (),
        python: str = "python3",
        minimum: int = 1,
        maximum: int | None = None,
        keep: float = 600.0,
        isolation: str = "process",
        device: str | None = None,
    ) -> PoolInfo:
        """Returns the pool of an environment once it has `minimum` containers ready.

        With a device's name: on each device of that name, and the pool of the first. They are kept for
        `keep` seconds, whatever the demand is; `maximum` is the most that there will be. Raises
        Overloaded where there is no room for them, and why a container cannot be made.
        """
        return self._portal.call(
            self._inner.prewarm(
                image=image,
                layers=layers,
                modules=modules,
                python=python,
                minimum=minimum,
                maximum=maximum,
                keep=keep,
                isolation=isolation,
                device=device,
            )
        )

    def pools(self) -> list[PoolInfo]:
        """Returns how the pools of the node stand, the one used last first."""
        return self._portal.call(self._inner.pools())


class Rollout:
    """The sandboxes of one rollout. Use it as an context manager; leaving it ends none of them.

    One process at a time runs a rollout. Its operations are counted for each sandbox, in the order in
    which they are begun; a harness that makes sandboxes concurrently names them.
    """

    def __init__(self, portal: Portal, inner: _rollout.AsyncRollout) -> None:
        self._portal = portal
        self._inner = inner
        self.key = inner.key

    def create(
        self,
        backend: str = "container",
        *,
        name: str | None = None,
        wait: float = WAIT_S,
        **options: Unpack[SandboxOptions],
    ) -> Sandbox:
        """Returns a running sandbox, the recorded one if there is one; options as those of `create`.

        It is `detached` unless told otherwise: else it ended with the process that made it. `name`
        tells it from the rollout's others; without it they are counted. Beside what a create raises:
        Diverged if another one is on record, OutcomeUnknown.
        """
        return Sandbox(
            self._portal,
            self._portal.call(self._inner.create(backend, name=name, wait=wait, **options)),
        )

    def __repr__(self) -> str:
        return repr(self._inner)

    def __enter__(self) -> Rollout:
        self._portal.call(self._inner.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._portal.call(self._inner.__aexit__())


class Trajectories:
    """Trajectories that a node knows: its own, and those of all nodes of its layer store."""

    def __init__(self, portal: Portal, inner: _trajectories.AsyncTrajectories) -> None:
        self._portal = portal
        self._inner = inner

    def list(
        self, *, rollout: str | None = None, job: str | None = None, sandbox: str | None = None
    ) -> list[TrajectoryInfo]:
        """Returns the trajectories with this rollout key, job or sandbox, or all; oldest first."""
        return self._portal.call(self._inner.list(rollout=rollout, job=job, sandbox=sandbox))

    def iterate(
        self, *, rollout: str | None = None, job: str | None = None, sandbox: str | None = None
    ) -> Iterator[TrajectoryInfo]:
        """Yields the same page by page, for those who have very many."""
        return self._portal.iterate(self._inner.iterate(rollout=rollout, job=job, sandbox=sandbox))

    def page(self, sandbox: str, start: int = 0, *, limit: int = EVENTS_PAGE_MAX) -> EventPage:
        """Returns up to 1000 events of a sandbox from an ordinal on; NotFound if none is on record.

        `next` is where to go on; a page may be shorter than asked where its events are large.
        """
        return self._portal.call(self._inner.page(sandbox, start, limit=limit))

    def events(self, sandbox: str, start: int = 0) -> Iterator[Event]:
        """Yields the events of a sandbox in order, from an ordinal on; NotFound."""
        return self._portal.iterate(self._inner.events(sandbox, start))

    def verify(self, sandbox: str) -> TrajectoryCheck:
        """The node reads all records of a sandbox again, and says what is wrong; NotFound."""
        return self._portal.call(self._inner.verify(sandbox))

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        format: str | None = None,
        rollout: str | None = None,
        job: str | None = None,
        sandbox: str | None = None,
    ) -> int:
        """Writes the events of the trajectories asked for to a local file; returns how many.

        `format` is "jsonl" or "parquet" (which needs skerry[parquet]); without it the file's name
        says. The file appears whole or not at all. A trajectory that was removed before its turn came
        is left out. Raises StorageFailed, Unavailable without pyarrow.
        """
        return self._portal.call(
            self._inner.export(path, format=format, rollout=rollout, job=job, sandbox=sandbox)
        )

    def blob(self, digest: str) -> bytes:
        """Returns a long content that an event names by its sha256, checked against it.

        Raises NotFound, LayerDamaged if it is another one.
        """
        return self._portal.call(self._inner.blob(digest))


class Client:
    """Sandboxes, images and function calls of one node; close it, or use it as a context manager.

    The end of the interpreter closes it too.
    """

    def __init__(self, inner: _client.AsyncClient) -> None:
        self._inner = inner
        self._closed = False
        self._portal = Portal()
        try:
            self._portal.call(inner.__aenter__())
        except BaseException:
            self._portal.close()
            raise
        self._portal.before_exit(lambda: inner.__aexit__(None, None, None))
        self.sandboxes = Sandboxes(self._portal, inner.sandboxes)
        self.images = Images(self._portal, inner.images)
        self.trajectories = Trajectories(self._portal, inner.trajectories)
        self.jobs = Jobs(self._portal, inner.jobs)
        self.functions = Functions(self._portal, inner.functions)

    def __repr__(self) -> str:
        return repr(self._inner)

    def rollout(
        self, key: str, *, on_divergence: str = "stop", on_unknown: Choice = "wait"
    ) -> Rollout:
        """Returns the rollout of that key, to be entered: what is on record of it is not run again.

        Where the harness asks for something else than is on record, "stop" raises Diverged, "branch"
        goes on in a fresh sandbox with the nearest commit before. `on_unknown` is what is done about
        an operation of which nobody can say whether it ran: "wait" joins one that still runs and else
        raises OutcomeUnknown, "rerun" runs it again, "fail" raises at once; or a function that gets
        the Event and returns one of these. InvalidRequest.
        """
        inner = self._inner.rollout(key, on_divergence=on_divergence, on_unknown=on_unknown)
        return Rollout(self._portal, inner)

    def health(self) -> Health:
        """Returns the node's own view of itself."""
        return self._portal.call(self._inner.health())

    def usage(self, labels: dict[str, str] | None = None) -> NodeUsage:
        """Returns what every live sandbox with these labels uses, and what the host has left."""
        return self._portal.call(self._inner.usage(labels))

    def workers(self) -> list[WorkerInfo]:
        """Returns the node's workers, each with its state and its process id on the node's host."""
        return self._portal.call(self._inner.workers())

    def drain(self, *, grace: float | None = None) -> DrainState:
        """The node takes no new sandboxes; what lives after `grace` seconds is stopped, None: never."""
        return self._portal.call(self._inner.drain(grace=grace))

    def undrain(self) -> DrainState:
        """The node takes new sandboxes again."""
        return self._portal.call(self._inner.undrain())

    def drain_state(self) -> DrainState:
        """Returns how far the node is drained."""
        return self._portal.call(self._inner.drain_state())

    def close(self) -> None:
        """Gives up what the client holds; its undetached sandboxes on an embedded node end; once."""
        if self._closed:
            return
        self._closed = True
        try:
            self._portal.call(self._inner.__aexit__(None, None, None))
        finally:
            self._portal.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(
    url: str | None = None,
    token: str | None = None,
    *,
    state_dir: str | None = None,
    run_dir: str | None = None,
    wait: float = 0.0,
) -> Client:
    """Returns an open client; `url` is http://HOST:PORT or unix:///PATH.

    Without one (and without SKERRY_URL) an embedded node is found or started; that needs root. A node
    that does not answer at the url is asked again for `wait` seconds.
    """
    return Client(_client.AsyncClient(url, token, state_dir=state_dir, run_dir=run_dir, wait=wait))
