"""A worker that can record nothing: agents wait, and that is not their time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from service_world import World

from skerry.errors import StorageFailed
from skerry.trajectory.journal.journal import Journal
from skerry.worker.aside import BYTES_MAX
from skerry.worker.clock import ActClock
from skerry.worker.memory import Begun, Placed
from skerry.worker.model.book import Asked, Call
from skerry.worker.service import lines, remembered
from skerry.worker.service.lines import Line
from skerry.worker.service.remembered import Remembered
from skerry.worker.service.requests import Requests


class FullDisk:
    """Takes no request of a model while it is full. Counts the tries."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = True
        self.tries = 0
        self.tried = asyncio.Event()
        append = Journal.append

        def appending(journal: Journal, subject: str, kind: str, data: Any) -> Any:
            if kind == "asked":
                self.check()
            return append(journal, subject, kind, data)

        put = remembered.put

        def putting(path: Path, data: bytes) -> None:
            if path.name.endswith(".asked"):
                self.check()
            put(path, data)

        monkeypatch.setattr(Journal, "append", appending)
        monkeypatch.setattr(remembered, "put", putting)

    def check(self) -> None:
        if self.full:
            self.tries += 1
            raise StorageFailed("no space left on device")


class Patient(World):
    """Its agents' node sends a request again for as long as the worker cannot record it."""

    long = ""

    def __init__(self, top: Path) -> None:
        super().__init__(top)
        self.refusals = asyncio.Semaphore(0)

    async def ask(self, sandbox: str, token: str, text: str) -> dict[str, Any] | None:
        while True:
            found = await super().ask(sandbox, token, text + self.long)
            if found is not None or self.refused[-1][0] != 507:
                return found
            self.refused.pop()
            self.refusals.release()
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("long", ["", "x" * (BYTES_MAX + 1)])
async def test_no_time_of_the_agent_passes_while_nothing_can_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long: str
) -> None:
    world, disk = Patient(tmp_path), FullDisk(monkeypatch)
    world.long = long
    async with world.worker() as service, world.trainer() as job, asyncio.timeout(60):
        service.submit(world.submit(n=1))
        await world.refusals.acquire()
        (line,) = service.lines.all()
        before = line.active_s
        for _ in range(5):
            await world.refusals.acquire()
        line.expire()
        assert line.active_s == before  # as long as it comes again
        disk.full = False
        await world.sample(job)
        assert [(one.reward, one.attempts) async for one in job.results()] == [(1.0, ())]
    assert world.refused == []


class Away:
    """A sandbox that is never asked for anything."""

    id = "s"


def line_of(tmp_path: Path, clock: ActClock) -> Line:
    journal = Journal.open(str(tmp_path / "journal"), now_ns=lambda: 0)
    memory = Remembered(journal, "r:j:0", tmp_path / "0")
    memory.note(Begun(attempt=0, at=0.0))
    memory.note(Placed(sandbox="s"))
    requests = Requests(lambda: 0.0, lambda: None)
    aside: Any = None
    line = Line(
        0, "j-0000", memory, requests, aside=aside, token="t", models=("m",),
        pause_after_s=60.0, heard=lambda line, note: None,
    )  # fmt: skip
    sandbox: Any = Away()
    line.attach(sandbox, clock)
    return line


async def test_time_goes_on_when_a_request_is_recorded_or_its_client_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    clock, disk = ActClock(100.0, 0.0, lambda: now[0]), FullDisk(monkeypatch)
    line = line_of(tmp_path, clock)
    asked = Asked(ordinal=0, call=Call.CHAT, digest="d", relay="r", body=b"{}", at=0.0)
    now[0] = 3.0
    with pytest.raises(StorageFailed):
        line.note([asked])
    now[0] = 50.0
    line.expire()
    assert (clock.held, clock.spent_s) == (True, 3.0)
    later = ActClock(100.0, clock.spent_s, lambda: now[0])
    sandbox: Any = Away()
    line.attach(sandbox, later)  # the rollout stood still meanwhile, and is run again
    assert later.held
    monkeypatch.setattr(lines, "UNRECORDED_S", -1.0)
    line.expire()
    assert not later.held  # its client has left
    now[0] = 60.0
    assert later.spent_s == 13.0
    with pytest.raises(StorageFailed):
        line.note([asked])
    disk.full = False
    line.note([asked])
    assert later.held  # now an answer is owed
    now[0] = 90.0
    assert later.spent_s == 13.0
    line.memory.open.clear()
    line.given(0)
    assert not later.held
    line.memory.remove()
