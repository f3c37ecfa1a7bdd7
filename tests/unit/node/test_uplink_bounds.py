"""What sandboxes may hold and how long they may take at their uplinks, each and together."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from uplinks_world import CHAT, World, workers

from skerry.node.workers import uplink
from skerry.node.workers.options import WorkersConfig
from skerry.node.workers.places import Places, Share
from skerry.node.workers.relay import Refused, Request


@pytest.fixture
async def world(stand: Any) -> AsyncIterator[World]:
    async with stand.serving(workers=workers()) as (node, api):
        yield World(stand, node, api)


async def test_bodies_and_connections_are_bounded(stand: Any) -> None:
    bounds = workers(connections_max=3, waiting_max=2, body_bytes_max=2000, bodies_bytes_max=3000)
    async with stand.serving(workers=bounds) as (node, api):
        world = World(stand, node, api)
        sandbox = await world.sandbox()
        large = {**CHAT, "x": "y" * 3000}
        status, answer = await world.client(sandbox).ask(large)
        assert (status, answer["error"]["code"]) == (413, "too_large")
        waiting = [world.client(sandbox) for _ in range(2)]
        for number, client in enumerate(waiting):
            await client.send()
            await world.asked(number + 1)
        status, answer = await world.client(sandbox).ask()
        assert (status, answer["error"]["code"]) == (503, "overloaded")
        third = world.client(sandbox)
        await third.stream.write(b"POST ")
        await world.gauges(connections=3)
        many = [world.client(sandbox) for _ in range(100)]
        for client in many:
            status, headers, _ = await client.receive()
            assert (status, headers["retry-after"]) == (503, "1")
        gauges = node.gauges()
        assert (gauges["uplink_connections"], gauges["uplink_waiting"]) == (3, 2)
        assert gauges["uplink_body_bytes"] == 0  # the worker has both
        for client in (*waiting, third):
            client.stream.reset()
        await world.gauges(connections=0, waiting=0)


async def test_all_bodies_together_are_bounded(stand: Any) -> None:
    bounds = workers(body_bytes_max=2000, bodies_bytes_max=3000)
    async with stand.serving(workers=bounds) as (node, api):
        world = World(stand, node, api)
        sandbox = await world.sandbox()
        head = b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 1900\r\n\r\n"
        slow = world.client(sandbox)
        await slow.stream.write(head + b"x" * 1800)
        await world.gauges(body_bytes=1800)
        next_one = world.client(await world.sandbox())
        await next_one.stream.write(head + b"x" * 1800)
        status, headers, body = await next_one.receive()
        assert (status, headers["retry-after"]) == (429, "1")
        assert msgspec.json.decode(body)["error"]["code"] == "too_many_bodies"
        slow.stream.end()
        await world.gauges(body_bytes=0)


async def test_the_bodies_of_one_sandbox_leave_room_for_those_of_others(stand: Any) -> None:
    bounds = workers(body_bytes_max=2000, bodies_bytes_max=24_000)
    async with stand.serving(workers=bounds) as (node, api):
        world = World(stand, node, api)
        flooding, other = await world.sandbox(), await world.sandbox()
        head = b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 1900\r\n\r\n"
        held = [world.client(flooding) for _ in range(2)]
        for client in held:
            await client.stream.write(head + b"x" * 1400)
        await world.gauges(body_bytes=2800)
        more = world.client(flooding)
        await more.stream.write(head + b"x" * 1400)
        assert (await more.receive())[0] == 429
        await world.worker("POST", "mode", {"echo": True})
        assert (await world.client(other).ask())[0] == 200
        for client in held:
            client.stream.end()
        await world.gauges(body_bytes=0)


async def test_who_is_slow_to_ask_is_cut(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uplink, "HEAD_S", 0.2)
    monkeypatch.setattr(uplink, "BODY_S", 0.2)
    sandbox = await world.sandbox()
    loris = world.client(sandbox)
    await loris.stream.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n")
    with pytest.raises(EOFError):
        await loris.receive()
    half = world.client(sandbox)
    await half.send({})
    await half.receive()
    await half.stream.write(
        b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc"
    )
    assert (await half.receive())[0] == 408


async def test_the_time_of_a_paused_sandbox_does_not_count(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uplink, "HEAD_S", 0.3)
    sandbox = await world.sandbox()
    await world.worker("POST", "mode", {"echo": True})
    client = world.client(sandbox)
    data = msgspec.json.encode(CHAT)
    await client.stream.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n")
    await world.api.call("POST", f"/v1/sandboxes/{sandbox}/pause")
    await asyncio.sleep(0.6)
    await world.api.call("POST", f"/v1/sandboxes/{sandbox}/resume")
    await client.stream.write(
        b"Authorization: Bearer key\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data)
    )
    assert (await client.receive())[0] == 200


async def test_hoards_of_eight_sandboxes_give_way_to_those_who_ask_for_less(stand: Any) -> None:
    bounds = workers(body_bytes_max=2000, bodies_bytes_max=16_000)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer key\r\n"
    async with stand.serving(workers=bounds) as (node, api):
        world = World(stand, node, api)
        hoard = []
        for number in range(8):  # each has its whole share, and together they have all
            hoard.append(world.client(await world.sandbox()))
            await hoard[-1].stream.write(head + b"Content-Length: 2000\r\n\r\n" + b"x" * 1999)
            await world.gauges(body_bytes=1999 * (number + 1))
        await world.worker("POST", "mode", {"echo": True})
        data = msgspec.json.encode({**CHAT, "x": "y" * 1400})
        length = b"Content-Length: %d\r\n\r\n" % len(data)
        honest = [world.client(await world.sandbox()) for _ in range(2)]
        for client in honest:  # each holds less than all, divided by ten
            await client.stream.write(head + length + data[:-1])
        answers = [asyncio.ensure_future(one.receive()) for one in hoard]
        while sum(one.done() for one in answers) < 2:
            left = [one for one in answers if not one.done()]
            await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        for client in honest:
            await client.stream.write(data[-1:])
            assert (await client.receive())[0] == 200
        told = [one.result() for one in answers if one.done()]
        assert len(told) == 2  # no more than was needed
        for status, headers, body in told:
            assert (status, headers["retry-after"]) == (429, "1")
            assert msgspec.json.decode(body)["error"]["code"] == "too_many_bodies"
        for one, client in zip(answers, hoard, strict=True):
            one.cancel()
            client.stream.reset()
        await world.gauges(body_bytes=0, connections=2)


def test_who_holds_no_more_than_an_equal_part_is_never_refused() -> None:
    """Hoards of every size, in an order that is drawn: the books are kept, and nobody small loses."""
    drawn = random.Random(7)
    places = Places(WorkersConfig(body_bytes_max=1024, bodies_bytes_max=8192))
    held: list[tuple[Share, Request]] = []
    guard: Any = None
    for _ in range(2000):
        share = Share(places) if drawn.random() < 0.2 or not held else drawn.choice(held)[0]
        request = Request(b"POST", b"/", [], share, guard)
        request.refuse = lambda refused, request=request: request.drop()  # type: ignore[method-assign]
        size = drawn.choice((1, 10, 100, 1000))
        before = share.held
        holding = {id(one) for one, of in held if of.body} | {id(share)}
        refused = None
        try:
            request.take(b"x" * size)
        except Refused as error:
            refused = error
        if refused is not None:
            assert refused.status == 429
            assert before + size > min(8192 // len(holding), 1024)
        held.append((share, request))
        if drawn.random() < 0.3:
            drawn.choice(held)[1].drop()
        held = [(one, of) for one, of in held if of.body]
        assert places.body_bytes == sum(len(of.body) for _, of in held) <= 8192
        assert {id(one): one.held for one, _ in held} == {
            id(one): sum(len(of.body) for other, of in held if other is one) for one, _ in held
        }
    for _, of in held:
        of.drop()
    assert places.body_bytes == 0
