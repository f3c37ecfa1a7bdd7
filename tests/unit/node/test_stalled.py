"""Clients that stand still or vanish: nobody else waits for them, and nothing is kept for them."""

from __future__ import annotations

import asyncio
import io
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from node_stand import Stand

from skerry.guest import files as guest_files
from skerry.node import crossing
from skerry.node.server import files as served_files
from skerry.node.server.app import ROUTES, SOCKETS
from waiting import until

OP = "0123456789abcdef" * 2
WORDS = (
    *("path", "user", "glob", "types", "under", "who", "owner", "op", "key", "cursor", "state"),
    *("label", "on_disconnect", "wait", "timeout", "stdout", "stderr", "pace", "offset", "length"),
    *("tail", "kind"),
)
NO_NAMES = ("/{id}", "/pause", "/stop", "/drain", "/debian")  # routes that end or hold the sandbox
Stall = Callable[[Any, str], Awaitable[asyncio.StreamReader]]


@pytest.fixture
async def stall() -> AsyncIterator[Stall]:
    """Sends a request's head and three bytes of its body, and then nothing more."""
    writers: list[asyncio.StreamWriter] = []

    async def one(node: Any, request: str) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_unix_connection(node.config.socket_path)
        writers.append(writer)
        writer.write(f"{request} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nabc".encode())
        await writer.drain()
        return reader

    yield one
    for writer in writers:
        writer.close()


async def begun(api: Any, sid: str, **command: Any) -> str:
    await api.call("POST", f"/v1/sandboxes/{sid}/ops?op={OP}", command)
    return f"/v1/sandboxes/{sid}/ops/{OP}"


async def test_feeder_that_stands_still_holds_up_no_other(stand: Stand, stall: Stall) -> None:
    async with stand.serving() as (node, api):
        sid = await api.create()
        root = await begun(api, sid, shell="cat", interactive=True)
        op = node.sandboxes.get(sid).ops[OP]
        await stall(node, f"POST {root}/stdin?offset=0")
        await until(lambda: op.running.stdin_sent == 3)
        async with asyncio.timeout(10):
            taken = await api.call("POST", f"{root}/stdin?offset=0&eof=1", data=b"abcdef")
        assert taken["offset"] == 6
        ended = await api.call("GET", f"{root}?wait=5")
        assert ended["result"]["stdout"] == "YWJjZGVm"  # what came twice is there once


async def test_feeder_is_told_of_the_commands_end_while_it_stands_still(
    stand: Stand, stall: Stall
) -> None:
    async with stand.serving() as (node, api):
        sid = await api.create()
        root = await begun(api, sid, shell="cat", interactive=True)
        op = node.sandboxes.get(sid).ops[OP]
        reader = await stall(node, f"POST {root}/stdin?offset=0")
        await until(lambda: op.running.stdin_sent == 3)
        await api.call("POST", f"{root}/cancel")
        async with asyncio.timeout(10):
            assert b" 409 " in await reader.readline()


@pytest.mark.parametrize("route", ["output", "stream"])
async def test_reader_that_vanishes_from_a_silent_command_is_let_go_of(
    stand: Stand, route: str
) -> None:
    async with stand.serving() as (node, api):
        sid = await api.create()
        command = {"shell": "sleep 60"}
        root = await begun(api, sid, **command)
        sink = node.sandboxes.get(sid).ops[OP].sink
        for _ in range(5):
            call = (
                api.session.get(f"{root}/output")
                if route == "output"
                else api.session.post(f"/v1/sandboxes/{sid}/stream?op={OP}", json=command)
            )
            answer = await call
            assert await answer.content.readany()
            answer.close()
        await until(lambda: not sink._tees)
        assert (await api.call("GET", root))["state"] == "running"
        await api.call("POST", f"{root}/cancel")


async def test_importers_that_stand_still_hold_up_no_other_work_on_images(
    stand: Stand, stall: Stall
) -> None:
    async with stand.serving() as (node, api):
        readers = [
            await stall(node, f"POST /v1/images/base/x{number}/import") for number in range(20)
        ]
        await asyncio.sleep(0.05)
        async with asyncio.timeout(10):
            assert await api.call("GET", "/v1/images")
            sid = await api.create()
            assert await api.call("GET", f"/v1/sandboxes/{sid}/diff")
        for reader in readers:
            assert not reader.at_eof()


@pytest.mark.parametrize(
    "given",
    [
        (crossing, "POST /v1/images/base/x/import", b" 422 "),
        (guest_files, "PUT /v1/sandboxes/{}/files?path=/f", b" 400 "),
        (guest_files, "PUT /v1/sandboxes/{}/tree?path=/", b" 400 "),
    ],
)
async def test_upload_of_which_nothing_comes_any_more_is_given_up(
    stand: Stand,
    stall: Stall,
    monkeypatch: pytest.MonkeyPatch,
    given: tuple[Any, str, bytes],
) -> None:
    module, request, status = given
    monkeypatch.setattr(module, "STALL_S", 0.05)
    async with stand.serving() as (node, api):
        sid = await api.create()
        reader = await stall(node, request.format(sid))
        async with asyncio.timeout(10):
            assert status in await reader.readline()
        assert node.sandboxes.get(sid).busy == 0
        assert not stand.library.imported
        await api.call("GET", f"/v1/sandboxes/{sid}/files?path=/f", status=404)


async def test_upload_that_stands_still_is_told_of_the_sandboxes_end(
    stand: Stand, stall: Stall
) -> None:
    async with stand.serving() as (node, api):
        sid = await api.create()
        reader = await stall(node, f"PUT /v1/sandboxes/{sid}/files?path=/f")
        await until(lambda: node.sandboxes.get(sid).busy == 1)
        await api.call("DELETE", f"/v1/sandboxes/{sid}")
        async with asyncio.timeout(10):
            assert b"HTTP/1.1 " in await reader.readline()


async def test_download_that_is_not_read_is_given_up(
    stand: Stand, stall: Stall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_files, "STALL_S", 0.2)
    async with stand.serving() as (node, api):
        sid = await api.create()
        path = f"/v1/sandboxes/{sid}/files?path=/f"
        await api.call("PUT", path, data=io.BytesIO(bytes(16 << 20)))
        await stall(node, f"GET {path}")
        await until(lambda: node.sandboxes.get(sid).busy == 1)
        await until(lambda: node.sandboxes.get(sid).busy == 0)


async def test_bytes_that_are_no_utf8_never_make_an_internal_error(stand: Stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        root = await begun(api, sid, shell="true")
        assert (await api.call("GET", f"{root}?wait=5"))["state"] == "done"
        known = {"{id}": sid, "{op}": OP, "{session}": "s", "{name:path}": "base/none"}
        for route, methods in ROUTES:
            if route.endswith(NO_NAMES):
                continue
            path = "/".join(known.get(part, part) for part in route.split("/"))
            for method, word in itertools.product(methods, WORDS):
                url = _raw(f"{path}?{word}=%ff" + ("" if word == "path" else "&path=/none%ff"))
                async with asyncio.timeout(10):
                    answer = await api.session.request(method, url, data=b"")
                assert answer.status < 500, f"{method} {url}: {await answer.text()}"
                answer.close()  # a watch would go on
        assert (await api.call("GET", root))["state"] == "done"


async def test_socket_whose_words_are_no_utf8_is_refused(stand: Stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        terminal = {"rows": 24, "cols": 80}
        await begun(api, sid, shell="sleep 60", terminal=terminal, interactive=True)
        path = next(path for path, _ in SOCKETS if path.endswith("/attach")).format(id=sid)
        async with api.session.ws_connect(_raw(f"{path}?op={OP}&who=%ff")) as socket:
            await socket.send_str("{}")
            assert "who is no UTF-8" in await socket.receive_str()
        (status,) = await api.call("GET", f"/v1/sandboxes/{sid}/ops")
        assert status.get("holder") is None


def _raw(path: str) -> Any:
    from yarl import URL

    return URL(f"http://node{path}", encoded=True)


@pytest.mark.parametrize("whole", [True, False])
async def test_batch_whose_reader_stands_still_can_be_undone_and_asked_for_again(
    stand: Stand, whole: bool
) -> None:
    async with stand.serving() as (node, api):
        spec = {"key": "k", "env": {f"V{number}": "x" * 1000 for number in range(30)}}
        body = {"spec": spec, "count": 64, "all_or_nothing": whole}
        data = msgspec.json.encode(body)
        _, writer = await asyncio.open_unix_connection(node.config.socket_path, limit=1024)
        head = (
            f"POST /v1/sandboxes/batch?stream=1 HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}"
        )
        writer.write(f"{head}\r\n\r\n".encode() + data)
        before = -1
        for _ in range(20):  # until the reader holds it up
            if len(node.sandboxes) == before > 0:
                break
            before = len(node.sandboxes)
            await asyncio.sleep(0.3)
        assert before < 64
        async with asyncio.timeout(20):
            await api.call("POST", "/v1/sandboxes/batch/delete", {"key": "k"})
            assert len(node.sandboxes) == 0
            again = await api.call("POST", "/v1/sandboxes/batch", body)
        assert all(item.get("info") for item in again["items"])
        writer.close()
