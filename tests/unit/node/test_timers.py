"""The heap of deadlines, and what guards the door."""

from __future__ import annotations

import asyncio

import pytest
from node_stand import settle

from skerry.errors import InvalidRequest
from skerry.node.admission.doors import Admission
from skerry.node.admission.shortage import Claim
from skerry.node.config import Limits, NodeConfig, tcp_address
from skerry.node.timers import Timers


async def test_calls_come_in_order_and_cancelled_ones_never(manual) -> None:
    timers, seen = Timers(manual), []
    for delay in (3, 1, 2):
        timers.after(delay, lambda delay=delay: seen.append(delay))
    timers.after(1.5, lambda: seen.append("no")).cancel()
    await manual.advance(0.5)
    assert seen == []
    await manual.advance(10)
    assert seen == [1, 2, 3]
    assert len(timers) == 0


async def test_call_may_set_the_next_deadline(manual) -> None:
    timers, seen = Timers(manual), []

    def again() -> None:
        seen.append(manual.now)
        if len(seen) < 5:
            timers.after(1, again)

    timers.after(1, again)
    await manual.advance(100)
    assert len(seen) == 5


async def test_cancelled_timers_do_not_pile_up(manual) -> None:
    timers = Timers(manual)
    for _ in range(50_000):
        timers.after(3600, lambda: None).cancel()
    assert len(timers._heap) <= 1025


async def test_cancelled_waiter_gives_its_place_to_the_next(manual) -> None:
    admission = Admission(Limits(creates_in_flight_max=1), manual, Timers(manual))
    order = []
    gate = asyncio.Event()

    async def one(name: str, hold: asyncio.Event | None = None) -> None:
        async with admission.place(Claim(name)):
            order.append(name)
            if hold is not None:
                await hold.wait()

    tasks = [asyncio.create_task(one("a", gate))]
    await settle(3)
    tasks += [asyncio.create_task(one(name)) for name in "bcd"]
    await settle(3)
    tasks[1].cancel()
    gate.set()
    await settle(3)
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order[0] == "a"
    assert "d" in order
    assert "b" not in order
    assert admission.creating == 0


@pytest.mark.parametrize(
    "change",
    [
        {"state_dir": "relative"},
        {"socket": "/" + "x" * 200},
        {"backends": ()},
        {"tcp": "127.0.0.1:80"},
        {"tcp": "nonsense", "tokens": ("t" * 20,)},
        {"tokens": ("short",)},
        {"lease_s": 0},
    ],
)
def test_config_that_makes_no_sense_is_refused(change) -> None:
    config = {"state_dir": "/s", "run_dir": "/r", "store_dir": "/l"} | change
    with pytest.raises(InvalidRequest):
        NodeConfig(**config).check()


def test_addresses() -> None:
    assert tcp_address("127.0.0.1:80") == ("127.0.0.1", 80)
    assert tcp_address("[::1]:0") == ("::1", 0)
    for bad in ("80", ":80", "h:", "h:x", "h:70000"):
        with pytest.raises(InvalidRequest):
            tcp_address(bad)
