"""Requests without an answer: held by one consumer at a time, given again when it is gone."""

from __future__ import annotations

import asyncio

import pytest

from skerry.errors import Overloaded
from skerry.worker.service import requests as requests_of
from skerry.worker.service.requests import DELIVERER, LEASE_S, Name, Requests


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def made(count: int) -> tuple[Requests, Clock]:
    clock = Clock()
    requests = Requests(clock, lambda: None)
    for number in range(count):
        requests.add(Name(number, 0, 0), float(number))
    return requests, clock


async def take(requests: Requests, consumer: str, most: int = 10) -> list[int]:
    found = [name.number for name, _ in await requests.poll(consumer, most, 0.0)]
    requests.check_invariants()
    return found


async def test_a_request_is_held_by_one_consumer() -> None:
    requests, _ = made(3)
    assert await take(requests, "a", 2) == [0, 1]
    assert await take(requests, "b") == [2]
    assert await take(requests, "a") == []
    assert (requests.free, requests.held) == (0, 3)


async def test_what_a_silent_consumer_held_is_given_again_in_order() -> None:
    requests, clock = made(3)
    await take(requests, "a", 2)
    clock.now += LEASE_S + 1
    await take(requests, "b", 0)
    requests.expire()
    assert await take(requests, "b") == [0, 1, 2]


async def test_a_consumer_that_says_it_is_there_keeps_what_it_holds() -> None:
    requests, clock = made(1)
    await take(requests, "a")
    for _ in range(3):
        clock.now += LEASE_S - 1
        await take(requests, "a", 0)
        requests.expire()
    assert await take(requests, "b") == []
    waiting = asyncio.ensure_future(requests.poll("a", 1, 60.0))
    await asyncio.sleep(0)
    clock.now += 10 * LEASE_S
    requests.expire()
    assert await take(requests, "b") == []
    waiting.cancel()


async def test_a_consumer_that_attaches_is_given_what_others_held() -> None:
    requests, _ = made(3)
    await take(requests, "a", 1)
    await take(requests, DELIVERER, 1)
    requests.let_go(but="b")
    assert await take(requests, "b") == [0, 2]


async def test_a_poll_waits_for_a_request_and_for_the_end() -> None:
    requests, _ = made(0)
    waiting = asyncio.ensure_future(requests.poll("a", 1, 60.0))
    await asyncio.sleep(0)
    requests.add(Name(0, 0, 0), 1.0)
    assert [name.number for name, _ in await waiting] == [0]
    waiting = asyncio.ensure_future(requests.poll("a", 1, 60.0))
    await asyncio.sleep(0)
    requests.end()
    assert await waiting == []


async def test_a_request_with_an_answer_is_given_to_nobody() -> None:
    requests, _ = made(2)
    await take(requests, "a")
    requests.remove(Name(0, 0, 0))
    requests.let_go("a")
    assert await take(requests, "b") == [1]
    requests.remove_of(1)
    assert (requests.free, requests.held, requests.oldest()) == (0, 0, None)


async def test_consumers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_of, "CONSUMERS_MAX", 2)
    requests, clock = made(0)
    await take(requests, "a")
    await take(requests, "b")
    with pytest.raises(Overloaded):
        await take(requests, "c")
    clock.now += LEASE_S + 1
    requests.expire()
    await take(requests, "c")


async def test_what_was_in_a_page_that_got_lost_is_given_again() -> None:
    requests, _ = made(3)
    assert [name.number for name, _ in await requests.poll("a", 2, 0.0, 0)] == [0, 1]
    again = await requests.poll("a", 2, 0.0, 0)  # the page of the first one never came
    assert [name.number for name, _ in again] == [0, 1]
    got = requests.turn("a")
    assert [name.number for name, _ in await requests.poll("a", 2, 0.0, got)] == [2]
    assert await requests.poll("a", 2, 0.0, requests.turn("a")) == []
    assert requests.held == 3
    requests.check_invariants()


async def test_a_poll_whose_client_has_asked_again_is_given_nothing() -> None:
    requests, _ = made(0)
    gone = asyncio.ensure_future(requests.poll("a", 1, 60.0, 0))
    await asyncio.sleep(0)
    here = asyncio.ensure_future(requests.poll("a", 1, 60.0, 0))
    await asyncio.sleep(0)
    requests.add(Name(0, 0, 0), 1.0)
    assert [name.number for name, _ in await here] == [0]
    assert await gone == []
