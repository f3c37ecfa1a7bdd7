"""The clock of an agent's time: it counts only while nobody holds it."""

from __future__ import annotations

import asyncio

from skerry.worker.clock import ActClock, Clocks


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_in_which_it_is_held_does_not_count() -> None:
    time = Time()
    clock = ActClock(10.0, 1.0, time)
    time.now += 2
    clock.hold("a")
    clock.hold("b")
    time.now += 50
    clock.release("a")
    time.now += 50
    assert clock.spent_s == 3.0
    clock.release("b")
    clock.release("b")
    time.now += 4
    assert clock.spent_s == 7.0


async def test_it_expires_when_the_limit_is_used_up_and_not_while_it_is_held() -> None:
    time = Time()
    clock = ActClock(1.0, 0.0, time)
    waiting = asyncio.ensure_future(clock.expired())
    clock.hold("a")
    time.now += 5
    await asyncio.sleep(0)
    assert not waiting.done()
    clock.release("a")
    await asyncio.sleep(0)
    assert not waiting.done()
    time.now += 1
    clock.hold("a")
    clock.release("a")
    await waiting


def test_clocks_of_a_job_stand_still_together() -> None:
    time, clocks = Time(), Clocks()
    first, late = ActClock(9.0, 0.0, time), ActClock(9.0, 0.0, time)
    with clocks.joined(first):
        time.now += 1
        clocks.stand(still=True)
        with clocks.joined(late):
            time.now += 5
            assert (first.spent_s, late.spent_s) == (1.0, 1.0)
            clocks.stand(still=False)
            time.now += 1
            assert (first.spent_s, late.spent_s) == (2.0, 2.0)
