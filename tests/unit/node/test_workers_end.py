"""A node that ends leaves no worker behind, whenever that worker was asked for."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from skerry.errors import Unavailable
from skerry.node.workers.options import WorkersConfig
from skerry.node.workers.worker import Worker
from skerry.node.workers.workers import Workers
from waiting import ended, until

STAND_IN = str(Path(__file__).parents[2] / "worker_stand_in.py")


@pytest.fixture
def workers(tmp_path: Path) -> Workers:
    return Workers(
        WorkersConfig(command=(sys.executable, STAND_IN)),
        state_dir=str(tmp_path / "state"),
        run_dir=str(tmp_path / "run"),
        node_socket=str(tmp_path / "node.sock"),
    )


async def test_worker_whose_start_is_under_way_is_ended(workers, monkeypatch) -> None:
    """The thread that starts it goes on when the task that waits for it is cancelled."""
    begun, go_on, started = threading.Event(), threading.Event(), []
    spawn = Worker._spawn

    def slow(self: Worker) -> None:
        begun.set()
        go_on.wait(20)
        spawn(self)
        started.append(self._process)

    monkeypatch.setattr(Worker, "_spawn", slow)
    waiting = asyncio.ensure_future(workers.ready(0))
    await until(begun.is_set)
    closing = asyncio.ensure_future(workers.close())
    await asyncio.sleep(0)
    go_on.set()
    await closing
    waiting.cancel()
    (process,) = started
    assert process.returncode is not None


async def test_no_worker_is_started_once_they_are_closed(workers) -> None:
    await workers.ready(0)
    waiting = asyncio.ensure_future(workers.ready(0))
    await workers.close()
    late = asyncio.ensure_future(workers.ready(0))
    with pytest.raises(Unavailable, match="the node ends"):
        await workers.ready_soon(0)
    await asyncio.sleep(0.1)
    assert not late.done()
    assert [one.state for one in workers.table()] == ["unused"]
    for task in (waiting, late):
        task.cancel()


async def test_who_waits_for_a_worker_when_the_node_ends_is_told(tmp_path) -> None:
    never = WorkersConfig(command=(sys.executable, "-c", "import time; time.sleep(60)"))
    workers = Workers(
        never, state_dir=str(tmp_path), run_dir=str(tmp_path), node_socket=str(tmp_path / "n")
    )
    waiting = asyncio.ensure_future(workers.ready_soon(0))
    await until(lambda: workers._all[0].pid > 0)
    pid = workers._all[0].pid
    await workers.close()
    with pytest.raises(Unavailable, match="the node ends"):
        await waiting
    assert ended(pid)


async def test_process_that_was_lost_is_not_ended_again(workers, monkeypatch) -> None:
    """Its number may be another program's by then."""
    monkeypatch.setattr("skerry.node.workers.worker._PAUSE_S", 600.0)
    monkeypatch.setattr("skerry.node.workers.worker._PAUSE_LOST_MAX_S", 600.0)
    await workers.ready(0)
    worker = workers._all[0]
    os.kill(worker.pid, signal.SIGKILL)
    await until(lambda: not worker.ready.is_set() and worker._process is None)
    assert worker.pid == 0
    told: list[int] = []
    monkeypatch.setattr(worker, "_end", told.append)
    await workers.close()
    assert told == []
