"""Cells and the zygote of the fake guest agent: files of their own, and calls that a test answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from skerry.testing.fake_commands import Ended
from skerry.testing.fake_files import FakeFiles
from skerry.testing.fake_wire import Code, Tag
from skerry.wire.guest_cells import CellAction, CellState

if TYPE_CHECKING:
    from skerry.testing.fake_agent import FakeAgent
    from skerry.testing.fake_operation import FakeOperation

COMMAND, FILE, SESSION, CALL, ZYGOTE = range(5)
OnCall = Callable[[bytes], Awaitable[tuple[bytes, Ended]]]


async def echo(payload: bytes) -> tuple[bytes, Ended]:
    """What a call does unless a test says otherwise: its payload is its result."""
    return payload, Ended(exit_code=0)


class FakeCells:
    """Those of one agent. The attributes in the first group are for tests to set."""

    def __init__(self, agent: FakeAgent) -> None:
        self.fail: tuple[str, int] | None = None  # (step, errno) of every CELL that makes one
        self.silent = False  # no CELL is answered
        self.zygote_fails: tuple[str, int] | None = None
        self.on_call: OnCall = echo

        self.files: dict[int, FakeFiles] = {}  # of each cell that is there
        self.made = 0
        self._agent = agent
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, fields: dict[int, list[bytes]]) -> None:
        """Serves CELL: what is in the cell is ended, then it is made afresh or gone."""
        cell, action = (int.from_bytes(fields[tag][0], "little") for tag in (Tag.CELL, Tag.ACTION))
        task = asyncio.ensure_future(self._serve(cell, CellAction(action)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, cell: int, action: CellAction) -> None:
        self.files.pop(cell, None)
        inside = [each for each in self._agent.operations.values() if each.cell == cell]
        for operation in inside:
            operation.kill(9)
        await asyncio.gather(*(each.task for each in inside if each.task), return_exceptions=True)
        if self.silent:
            return
        state = CellState.GONE
        pairs: list[tuple[int, int | bytes]] = []
        if action is CellAction.MAKE and self.fail is None:
            self.files[cell] = FakeFiles()
            self.files[cell].mkdir("/call", 0o755, "p")
            self.made += 1
            state = CellState.READY
        elif action is CellAction.MAKE and self.fail is not None:
            state = CellState.FAILED
            pairs = [(Tag.ERROR_STEP, self.fail[0].encode()), (Tag.ERRNO, self.fail[1])]
        self._agent.send(Code.CELL_IS, 0, [(Tag.CELL, cell), (Tag.STATE, int(state)), *pairs])

    @property
    def zygote(self) -> FakeOperation | None:
        """The one that lives."""
        found = (each for each in self._agent.operations.values() if each.kind == ZYGOTE)
        return next((each for each in found if each.done is None), None)

    async def run_zygote(self, operation: FakeOperation) -> Ended:
        """Says whether it is ready, and lives until it is ended."""
        if self.zygote_fails is not None:
            step, number = self.zygote_fails
            failed: list[tuple[int, int | bytes]] = [
                (Tag.STATE, int(CellState.FAILED)),
                (Tag.ERROR_STEP, step.encode()),
                (Tag.ERRNO, number),
            ]
            self._agent.send(Code.ZYGOTE_IS, 0, failed)
            return Ended(exit_code=1)
        self._started(operation)
        self._agent.send(Code.ZYGOTE_IS, 0, [(Tag.STATE, int(CellState.READY))])
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def run_call(self, operation: FakeOperation) -> Ended:
        """Answers a call as the test says."""
        self._started(operation)
        payload = operation.fields.get(Tag.SCRIPT, [b""])[0]
        result, ended = await self.on_call(payload)
        if 1 in operation.output:
            await operation.write(1, result)
        return ended

    def lose_zygote(self) -> None:
        """The zygote dies, and its calls with it; for tests."""
        for operation in list(self._agent.operations.values()):
            if operation.kind in (ZYGOTE, CALL) and operation.done is None:
                operation.lost_step = "zygote" if operation.kind == CALL else None
                operation.kill(9)

    def stop(self) -> None:
        """Ends what is under way."""
        for task in self._tasks:
            task.cancel()

    def _started(self, operation: FakeOperation) -> None:
        pairs: list[tuple[int, int | bytes]] = [(Tag.PID, 1000 + operation.handle)]
        self._agent.send(Code.STARTED, operation.handle << 2, pairs)
