"""Programs in one cell: started within limits, watched, ended with all that they began.

What the agent tells of an end is checked against what the node sees of the cell's groups from
outside: nothing in a call can forge or hide which limit it reached.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from skerry.backends.api import CellLimits, CellUsage
from skerry.errors import Bug, Overloaded, SandboxFailed, SkerryError, Unavailable
from skerry.guest.api import Kind, Operation, Outcome, Rlimits, Stream
from skerry.guest.files import GuestFiles
from skerry.guest.operation import RunningOperation
from skerry.node.functions.container import Container
from skerry.node.functions.outcome import Ended, Lost, NotStarted
from skerry.node.functions.sink import CallSink, StreamSink
from skerry.spec.function_limits import CallLimits, Limit

FILES_WITHIN_S = 300.0  # for all files in, or out
HOME: Final = "/call"  # of a call, in its cell
USER = b"1000:1000"
STACK_BYTES = 8 << 20
Sink = CallSink | StreamSink


class CellRun:
    """One cell, for one call. The caller renews it afterwards, whatever happened.

    `taken` says whether input that was streamed to it is lost to another place.
    """

    def __init__(self, container: Container, cell: int) -> None:
        self.container = container
        self.cell = cell
        self.taken = False
        self.own: str | None = None  # the file in /call that holds its code: no pattern finds it
        self.running: RunningOperation | None = None
        self.cut: Limit | None = None  # for which it was ended from here
        self.limits = CallLimits()
        self._sink: Sink | None = None

    def open(self, limits: CallLimits) -> None:
        """Sets the limits of what is started next, and counts anew.

        NotStarted if what earlier calls left in memory leaves no room for this one.
        """
        self.limits = limits
        # A program is begun by one more process, which is gone before it runs.
        pids = limits.processes + 1
        fits = self.container.instance.open_cell(
            self.cell, CellLimits(memory_bytes=limits.memory_bytes, pids=pids)
        )
        self.container.crowded = 0 if fits else self.container.crowded + 1
        if not fits:
            if self.container.crowded > self.container.member.marks.cells // 2:
                self.container.member.retire("memory stays in it that nothing explains")
            raise NotStarted("its cell holds too much memory", step="memory")

    def usage(self) -> CellUsage:
        """Returns what was used since `open`."""
        return self.container.instance.cell_usage(self.cell)

    async def run(
        self,
        *,
        kind: Kind = Kind.COMMAND,
        argv: tuple[bytes, ...] = (),
        env: tuple[bytes, ...] = (),
        script: bytes | None = None,
        stdin: bytes | AsyncIterator[bytes] | None = None,
        make_sink: Callable[[int, Callable[[], None]], Sink] = CallSink,
        result: CallSink | None = None,
    ) -> Ended:
        """Returns how it ended. If the caller is cancelled it is ended, with all its processes.

        Raises NotStarted if nothing ran, Lost if the container was lost meanwhile.
        """
        limits = self.limits
        self.cut = None
        sink = self._sink = make_sink(limits.output_bytes, lambda: self.end(Limit.OUTPUT))
        handle, op_id = self.container.new_operation()
        operation = Operation(
            handle=handle,
            op_id=op_id,
            kind=kind,
            argv=argv,
            env=env,
            cwd=HOME.encode(),
            user=USER,
            timeout_ms=max(1, round(limits.wall_s * 1000)),
            cpu_ms=max(1, round(limits.cpu_limit_s * 1000)),
            rlimits=Rlimits(nofile=limits.open_files, stack=STACK_BYTES),
            script=script,
            stdin=bool(stdin),
            cell=self.cell,
        )
        self.taken = self.taken or not isinstance(stdin, bytes | None)
        try:
            self.running = self.container.client.start(operation, sink, result=result)
        except SkerryError as error:
            raise NotStarted(error.message) from error
        self.container.watch(self)
        try:
            outcome = await self._until_ended(self.running, stdin)
            if isinstance(sink, StreamSink):
                await sink.finish()
        except BaseException:
            self.abandon()
            raise
        finally:
            self.container.unwatch(self)
        usage = self.usage()
        out, err = sink.output(Stream.STDOUT), sink.output(Stream.STDERR)
        return Ended(outcome, usage, self.cut, out, err)

    def end(self, limit: Limit) -> None:
        """It has reached a limit that is kept from here: it is ended. The first one counts."""
        running = self.running
        if self.cut is None and running is not None and not running.ended:
            self.cut = limit
            with contextlib.suppress(SkerryError):  # then the channel is lost, and it learns so
                running.cancel()

    def look(self) -> None:
        """Ends it if it has reached a limit that its groups tell of: memory, processes."""
        usage = self.usage()
        if usage.oom_kills:
            self.end(Limit.MEMORY)
        elif usage.pids_refused:
            self.end(Limit.PROCESSES)

    def abandon(self) -> None:
        """Nobody waits for it any more."""
        if isinstance(self._sink, StreamSink):
            self._sink.close()
        if self.running is not None and not self.running.ended:
            with contextlib.suppress(SkerryError):
                self.running.abandon()

    @property
    def files(self) -> GuestFiles:
        """The files of the cell, as its programs' user."""
        return GuestFiles(
            self.container.client,
            self.container.new_operation,
            user=USER,
            cwd=HOME.encode(),
            cell=self.cell,
        )

    # -- inside -----------------------------------------------------------------------------------

    async def _until_ended(
        self, running: RunningOperation, stdin: bytes | AsyncIterator[bytes] | None
    ) -> Outcome:
        feeding: asyncio.Future[None] | None = None
        if stdin:
            feeding = asyncio.ensure_future(_feed(running, stdin))
        try:
            outcome = await running.wait()
        except Overloaded as error:  # the agent refused it: nothing was forked
            raise NotStarted(error.message, step="cell") from error
        except (Unavailable, SandboxFailed) as error:
            if error.fields.get("step") is not None:
                raise NotStarted(error.message, **error.fields) from error
            raise Lost(f"its container was lost: {error.message}") from error
        finally:
            if feeding is not None:
                await _settle(feeding)
        running.acknowledge()
        return outcome


async def _feed(running: RunningOperation, stdin: bytes | AsyncIterator[bytes]) -> None:
    """Gives it its standard input; what `stdin` raises ends the call."""
    try:
        if isinstance(stdin, bytes):
            await running.write_stdin(stdin)
        else:
            async for piece in stdin:
                await running.write_stdin(piece)
        await running.close_stdin()
    except SkerryError as error:
        if not running.ended:
            running.fail(error)
    except Exception as error:
        if not running.ended:
            running.fail(Bug(f"its standard input failed: {error!r}"))
        raise


async def _settle(feeding: asyncio.Future[Any]) -> None:
    if not feeding.done():
        feeding.cancel()
        await asyncio.wait({feeding})
    if not feeding.cancelled():
        feeding.exception()
