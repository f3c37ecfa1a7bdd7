"""Work for one client ends when it is gone, and only then is that said to be why."""

from __future__ import annotations

import asyncio

import pytest

from skerry.node.server.exchange import ClientGone, Exchange


class Line:
    """A request whose client goes when a test says so."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.asked = 0
        self.exchange = Exchange({}, self.receive, self.send)
        self.ended: list[str] = []

    async def receive(self) -> dict[str, str]:
        self.asked += 1
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, _: object) -> None:
        raise AssertionError("nothing is answered here")

    async def work(self, seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.ended.append("early")
            raise
        return "done"


async def test_short_work_looks_for_nobody() -> None:
    line = Line()
    assert await line.exchange.if_there(line.work(0)) == "done"
    assert line.asked == 0


async def test_longer_work_ends_when_the_client_goes() -> None:
    line = Line()
    asyncio.get_running_loop().call_later(0.05, line.gone.set)
    with pytest.raises(ClientGone):
        await line.exchange.if_there(line.work(60))
    assert line.ended == ["early"]
    await asyncio.sleep(0)  # nothing of it cancels what this task does next


async def test_longer_work_is_done_for_who_stays() -> None:
    line = Line()
    assert await line.exchange.if_there(line.work(0.1)) == "done"
    assert line.asked == 1
    line.gone.set()
    await asyncio.sleep(0.01)


async def test_who_cancels_it_from_outside_is_not_taken_for_the_client() -> None:
    line = Line()
    task = asyncio.create_task(line.exchange.if_there(line.work(60)))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert line.ended == ["early"]


async def test_an_error_of_the_work_is_its_own() -> None:
    async def fails() -> None:
        await asyncio.sleep(0.03)
        raise ValueError

    line = Line()
    with pytest.raises(ValueError, match=r"^$"):
        await line.exchange.if_there(fails())
