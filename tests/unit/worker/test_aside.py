"""The process beside a worker: what it does, what ends it, and what it must not cost."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skerry.errors import Bug, InvalidRequest, NotFound
from skerry.worker.aside import BYTES_MAX, Aside
from skerry.worker.model.book import Call
from skerry.worker.model.canonical import parse

LONG = BYTES_MAX + 1


@pytest.fixture(autouse=True)
def functions_of_this_module_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@pytest.fixture
async def aside() -> AsyncIterator[Aside]:
    found = Aside()
    yield found
    await found.close()


def refuse(text: str) -> None:
    raise NotFound(text, where="there")


def greedy(count: int) -> int:
    return len([bytearray(1 << 20) for _ in range(count)])


def slow(path: str, text: str, pause_s: float) -> None:
    time.sleep(pause_s)
    with Path(path).open("a") as file:
        file.write(text)


async def test_what_is_long_is_done_by_another_process_and_what_is_short_here(aside: Aside) -> None:
    assert await aside.call(BYTES_MAX, os.getpid) == os.getpid()
    assert aside.pid is None
    assert await aside.call(LONG, os.getpid) == aside.pid != os.getpid()
    data = os.urandom(5 << 20)
    assert await aside.call(LONG, bytes.hex, data) == data.hex()


async def test_errors_come_back_as_they_are_and_bugs_by_name(aside: Aside) -> None:
    with pytest.raises(NotFound, match="gone") as caught:
        await aside.call(LONG, refuse, "gone")
    assert caught.value.fields == {"where": "there"}
    with pytest.raises(Bug, match="ValueError"):
        await aside.call(LONG, int, "x")
    assert await aside.call(LONG, int, "7") == 7


async def test_a_body_that_takes_too_much_memory_is_refused(tmp_path: Path) -> None:
    aside = Aside(memory_bytes=400 << 20)
    try:
        with pytest.raises(InvalidRequest, match="memory"):
            await aside.call(LONG, greedy, 1000)
        body = b'{"messages":[' + b"{},[]," * 2_000_000 + b"1]}"
        with pytest.raises(InvalidRequest, match="memory"):
            await aside.call(LONG, parse, Call.CHAT, body)
        assert await aside.call(LONG, int, "7") == 7
    finally:
        await aside.close()


async def test_a_process_that_has_grown_is_replaced(aside: Aside) -> None:
    before = await aside.call(LONG, os.getpid)
    assert await aside.call(LONG, greedy, 400) == 400
    assert await aside.call(LONG, os.getpid) != before


async def test_one_that_is_killed_is_replaced_and_its_work_done(aside: Aside) -> None:
    pid = await aside.call(LONG, os.getpid)
    os.kill(pid, signal.SIGSTOP)
    work = asyncio.ensure_future(aside.call(LONG, os.getpid))
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    assert await work not in (pid, os.getpid())


async def test_who_leaves_takes_nobody_elses_answer_away(aside: Aside, tmp_path: Path) -> None:
    path = str(tmp_path / "order")
    await aside.call(LONG, os.getpid)
    first = asyncio.ensure_future(aside.call(LONG, slow, path, "never", 3600.0))
    rest = [asyncio.ensure_future(aside.call(LONG, slow, path, one, 0.0)) for one in "abc"]
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.gather(*rest)
    assert Path(path).read_text() == "abc"
    assert await aside.call(LONG, int, "7") == 7


WORKER = """
import asyncio, os, sys
from skerry.worker.aside import Aside
async def main():
    print(await Aside().call(1 << 30, os.getpid), flush=True)
    await asyncio.sleep(3600)
asyncio.run(main())
"""


def test_it_ends_when_its_worker_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", WORKER], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        fd = os.pidfd_open(int(worker.stdout.readline()))
        try:
            worker.kill()
            assert select.select([fd], [], [], 60)[0] == [fd]
        finally:
            os.close(fd)


async def test_nothing_of_it_is_left_when_it_is_closed() -> None:
    aside = Aside()
    pid = await aside.call(LONG, os.getpid)
    os.kill(pid, signal.SIGSTOP)
    await aside.close()
    assert aside.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
