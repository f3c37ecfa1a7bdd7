"""Whatever needs what is inside resumes a paused sandbox; what only looks at it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from skerry.node.server.app import ROUTES, SOCKETS
from skerry.wire.http import StreamEvent

CAT, SHOWN = "c" * 32, "d" * 32
TERMINAL = {"rows": 24, "cols": 80}

Request = tuple[str, str, str, Any]  # method, route below the sandbox, its query, its body

# What needs the inside.
NEEDS: list[Request] = [
    ("POST", "/run", "", {"argv": ["true"]}),
    ("POST", "/stream", "", {"argv": ["true"]}),
    ("POST", "/ops", "", {"argv": ["true"]}),
    ("POST", "/ops/{op}/stdin", "offset=0", b"typed"),
    ("POST", "/ops/{op}/stdin", "offset=0&eof=1", b""),
    ("POST", "/ops/{op}/resize", "", TERMINAL),
    ("POST", "/ops/{op}/signal", "", {"signal": 28}),
    ("POST", "/resume", "", None),
    ("POST", "/sessions", "", {"id": "new"}),
    ("DELETE", "/sessions/{session}", "", None),
    ("PUT", "/network", "", {"network": []}),
    ("GET", "/files", "path=/f", None),
    ("PUT", "/files", "path=/g", b"x"),
    ("POST", "/files/op", "", {"op": "stat", "path": "/f"}),
    ("GET", "/files/walk", "path=/", None),
    ("GET", "/files/watch", "path=/", None),
    ("GET", "/files/usage", "path=/", None),
    ("GET", "/tree", "path=/", None),
    ("PUT", "/tree", "path=/", b"\0" * 1024),
    ("GET", "/diff", "", None),
    ("GET", "/diff/tar", "", None),
]
# What only looks, waits, or ends something: a pause must not be undone by a client that waits.
LOOKS: list[Request] = [
    ("GET", "", "", None),
    ("PATCH", "", "", {"idle_timeout_s": 500.0}),
    ("POST", "/commit", "", {"name": "workspace/x"}),
    ("POST", "/commits", "", {"name": "workspace/y"}),
    ("POST", "/fork", "", {"count": 1}),
    ("POST", "/events", "", {"events": [{"action": "verdict"}]}),
    ("POST", "/pause", "", None),
    ("GET", "/usage", "", None),
    ("GET", "/network", "", None),
    ("GET", "/wait", "timeout=0.01", None),
    ("GET", "/ops", "", None),
    ("GET", "/ops/{op}", "wait=0.01", None),
    ("GET", "/ops/{op}/output", "", None),
    ("POST", "/ops/{op}/cancel", "", None),
    ("GET", "/sessions", "", None),
    ("GET", "/sessions/{session}", "", None),
]
# These end it.
ENDS = {("POST", "/stop"), ("DELETE", "")}
BELOW = "/v1/sandboxes/{id}"


async def paused_after(api, sid: str, ask: Callable[[], Awaitable[None]]) -> bool:
    """Pauses, asks, and returns whether it is paused still."""
    await api.call("POST", f"{BELOW.format(id=sid)}/pause")
    asking = asyncio.create_task(ask())
    await asyncio.wait((asking,), timeout=2)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    return (await api.call("GET", BELOW.format(id=sid)))["state"] == "paused"


async def prepared(api) -> str:
    """A sandbox with a file, a session and two commands that run, one on a terminal."""
    sid = await api.create()
    root = BELOW.format(id=sid)
    await api.session.put(f"{root}/files?path=/f", data=b"x")
    await api.call("POST", f"{root}/sessions", {"id": "known"})
    await api.call("POST", f"{root}/ops?op={CAT}", {"argv": ["cat"], "interactive": True})
    shown = {"argv": ["cat"], "interactive": True, "terminal": TERMINAL}
    await api.call("POST", f"{root}/ops?op={SHOWN}", shown)
    return sid


def asker(api, sid: str, request: Request) -> Callable[[], Awaitable[None]]:
    method, route, query, body = request
    op = SHOWN if route.endswith("resize") else CAT
    path = BELOW.format(id=sid) + route.format(op=op, session="known")
    binary = isinstance(body, bytes) or body is None

    async def ask() -> None:
        data = body if binary else msgspec.json.encode(body)
        headers = {} if binary else {"content-type": "application/json"}
        async with api.session.request(
            method, f"{path}?{query}" if query else path, data=data, headers=headers
        ) as answer:
            assert answer.status in (200, 404, 405, 409, 422), (answer.status, await answer.text())
            await answer.read()

    return ask


@pytest.mark.parametrize("request_", NEEDS, ids=lambda one: f"{one[0]}{one[1]}")
async def test_request_that_needs_the_inside_resumes(stand, request_) -> None:
    async with stand.serving() as (_, api):
        sid = await prepared(api)
        assert not await paused_after(api, sid, asker(api, sid, request_))


@pytest.mark.parametrize("request_", LOOKS, ids=lambda one: f"{one[0]}{one[1]}")
async def test_request_that_only_looks_does_not_resume(stand, request_) -> None:
    async with stand.serving() as (_, api):
        sid = await prepared(api)
        assert await paused_after(api, sid, asker(api, sid, request_))


def test_every_route_of_a_sandbox_is_in_one_of_the_lists() -> None:
    known = {(method, route) for method, route, *_ in NEEDS + LOOKS} | ENDS
    assert known == {
        (method, path.removeprefix(BELOW))
        for path, methods in ROUTES
        if path.startswith(BELOW)
        for method in methods
    }
    assert {path for path, _ in SOCKETS if path.startswith(BELOW)} == {
        f"{BELOW}/{name}" for name in ("attach", "forward", "connect")
    }


@pytest.mark.parametrize(
    "event",
    [{"stdin": b"typed"}, {"eof": True}, {"signal": 28}, {"resize": TERMINAL}],
    ids=lambda event: next(iter(event)),
)
async def test_client_that_is_attached_resumes_by_what_it_says(stand, event) -> None:
    async with stand.serving() as (_, api):
        sid = await prepared(api)
        url = f"{BELOW.format(id=sid)}/attach?op={CAT}"
        async with api.session.ws_connect(url) as socket:
            await socket.send_bytes(msgspec.msgpack.encode({}))
            started = msgspec.msgpack.decode((await socket.receive()).data, type=StreamEvent)
            assert started.started == CAT

            async def ask() -> None:
                await socket.send_bytes(msgspec.msgpack.encode(event))
                await asyncio.sleep(0.2)

            assert not await paused_after(api, sid, ask)


@pytest.mark.parametrize(("watch", "stays"), [("", False), ("&watch=1", True)])
async def test_joining_a_terminal_resumes_and_watching_it_does_not(stand, watch, stays) -> None:
    async with stand.serving() as (_, api):
        sid = await prepared(api)

        async def ask() -> None:
            url = f"{BELOW.format(id=sid)}/attach?op={SHOWN}{watch}"
            async with api.session.ws_connect(url) as socket:
                await socket.send_bytes(msgspec.msgpack.encode({"terminal": TERMINAL}))
                await socket.receive()
                await asyncio.sleep(0.2)

        assert await paused_after(api, sid, ask) is stays


@pytest.mark.parametrize("name", ["connect?port=80", "forward"])
async def test_forwards_in_either_direction_resume(stand, name) -> None:
    async with stand.serving() as (_, api):
        sid = await prepared(api)

        async def ask() -> None:
            async with api.session.ws_connect(f"{BELOW.format(id=sid)}/{name}") as socket:
                await socket.send_bytes(msgspec.msgpack.encode({"port": 8080}))
                await socket.receive()

        assert not await paused_after(api, sid, ask)


@pytest.mark.parametrize("data", [b"typed", b""], ids=["bytes", "end"])
async def test_what_is_sent_over_an_open_connection_resumes(stand, data) -> None:
    async with stand.serving() as (_, api):
        sid = await prepared(api)

        async def echo(stream) -> None:
            while piece := await stream.read():
                await stream.write(piece)

        stand.world.instances[sid].agent.ports.services[80] = echo
        async with api.session.ws_connect(f"{BELOW.format(id=sid)}/connect?port=80") as socket:
            await socket.receive()

            async def ask() -> None:
                await socket.send_bytes(data)
                assert (await socket.receive()).data == data

            assert not await paused_after(api, sid, ask)


async def test_a_resume_goes_on_without_the_one_who_asked_for_it(stand, monkeypatch) -> None:
    """A client that leaves while its request resumes a sandbox leaves no sandbox half way."""
    async with stand.serving() as (node, api):
        sid = await prepared(api)
        await api.call("POST", f"/v1/sandboxes/{sid}/pause")
        instance, may = stand.world.instances[sid], asyncio.Event()
        resume, begun = instance.resume, asyncio.Event()

        async def slowly() -> None:
            begun.set()
            await may.wait()
            await resume()

        monkeypatch.setattr(instance, "resume", slowly)
        asking = asyncio.create_task(node.lives.ensure_running(node.sandboxes.get(sid)))
        await begun.wait()
        asking.cancel()
        await asyncio.wait((asking,))
        may.set()
        info = await api.call("GET", f"/v1/sandboxes/{sid}/wait?state=running&timeout=10")
        assert info["state"] == "running"
