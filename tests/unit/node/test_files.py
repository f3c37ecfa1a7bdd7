"""Files, trees, diffs and images through the API."""

from __future__ import annotations

import asyncio
import base64
import struct

import msgspec
import pytest

from skerry.spec.files import WatchEvent, WatchKind
from skerry.wire.files import FILES_STREAM, FileEvent
from skerry.wire.http import StreamEvent


async def test_file_is_written_and_read_back(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        url = f"/v1/sandboxes/{sid}/files"
        data = bytes(range(256)) * 4096

        async def chunks():
            for at in range(0, len(data), 50_000):
                yield data[at : at + 50_000]

        path = "/tmp/a b/%C3%A4.bin"
        info = await api.call("PUT", f"{url}?path={path}&parents=1&mode=600", data=chunks())
        assert info["size"] == len(data)
        assert info["mode"] & 0o777 == 0o600
        assert info["name"].endswith("ä.bin")
        async with api.session.get(f"{url}?path={path}") as answer:
            assert answer.headers["content-type"] == "application/octet-stream"
            assert await answer.read() == data
        async with api.session.get(f"{url}?path={path}&offset=10&length=5") as answer:
            assert await answer.read() == data[10:15]


@pytest.mark.parametrize("size", [1, 7, 65_535, 65_537, 300_000])
async def test_body_is_whole_however_it_is_cut_into_chunks(stand, size: int) -> None:
    """Chunks of HTTP reach the node by themselves, many in one read, or in several reads."""
    async with stand.serving() as (node, api):
        sid = await api.create()
        data = bytes(range(251)) * (80 if size < 10 else 5_000)
        cut = [data[at : at + size] for at in range(0, len(data), size)]
        body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in cut) + b"0\r\n\r\n"
        head = (
            f"PUT /v1/sandboxes/{sid}/files?path=/tmp/cut HTTP/1.1\r\nhost: node\r\n"
            "transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        )
        reader, writer = await asyncio.open_unix_connection(node.config.socket_path)
        writer.write(head.encode() + body)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
        async with api.session.get(f"/v1/sandboxes/{sid}/files?path=/tmp/cut") as answer:
            assert await answer.read() == data


async def test_empty_file_and_missing_file_are_told_apart(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        url = f"/v1/sandboxes/{sid}/files?path=/tmp/x"
        error = await api.call("GET", url, status=404)
        assert error["code"] == "not_found"
        assert error["fields"]["errno"] == 2
        await api.call("PUT", url, data=b"")
        async with api.session.get(url) as answer:
            assert (answer.status, await answer.read()) == (200, b"")


async def test_broken_upload_changes_nothing(stand) -> None:
    async with stand.serving() as (node, api):
        sid = await api.create()
        url = f"/v1/sandboxes/{sid}/files?path=/tmp/x"
        await api.call("PUT", url, data=b"old")
        sent = asyncio.Event()

        async def chunks():
            yield b"half"
            sent.set()
            await asyncio.sleep(60)

        upload = asyncio.create_task(api.call("PUT", url, data=chunks()))
        await sent.wait()
        await asyncio.sleep(0.05)
        upload.cancel()
        await asyncio.wait([upload])
        await asyncio.sleep(0.1)
        async with api.session.get(url) as answer:
            assert await answer.read() == b"old"
        assert node.sandboxes.get(sid).busy == 0


async def test_operations_on_names(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        url = f"/v1/sandboxes/{sid}/files/op"
        assert await api.call("POST", url, {"op": "mkdir", "path": "/d/e", "parents": True}) == []
        await api.call("PUT", f"/v1/sandboxes/{sid}/files?path=/d/e/f", data=b"x")
        await api.call("POST", url, {"op": "rename", "path": "/d/e/f", "to": "/d/e/g"})
        await api.call("POST", url, {"op": "chmod", "path": "/d/e/g", "mode": 0o700})
        (listed,) = await api.call("POST", url, {"op": "list", "path": "/d/e"})
        assert (listed["name"].rpartition("/")[2], listed["mode"] & 0o777) == ("g", 0o700)
        (seen,) = await api.call("POST", url, {"op": "stat", "path": "/d"})
        assert seen["type"] == "d"
        error = await api.call("POST", url, {"op": "remove", "path": "/d"}, status=400)
        assert error["code"] == "file_refused"
        await api.call("POST", url, {"op": "remove", "path": "/d", "recursive": True})
        await api.call("POST", url, {"op": "stat", "path": "/d"}, status=404)


async def test_name_that_is_no_text_is_reached_and_shown(stand) -> None:
    from yarl import URL

    async with stand.serving() as (_, api):
        sid = await api.create()
        url = URL(f"/v1/sandboxes/{sid}/files?path=/tmp/a%ffb", encoded=True)
        info = await api.call("PUT", url, data=b"x")
        assert info["name"].endswith("a\ufffdb")
        async with api.session.get(url) as answer:
            assert await answer.read() == b"x"
        op = {"op": "list", "path": "/tmp"}
        listed = await api.call("POST", f"/v1/sandboxes/{sid}/files/op", op)
        assert any("\ufffd" in entry["name"] for entry in listed)


async def test_transfer_is_activity(stand, manual) -> None:
    from skerry.spec.sandbox import SandboxSpec, State

    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec(idle_timeout_s=10))
        with sandbox.active_while(manual):
            await manual.advance(100)
            assert sandbox.state is State.RUNNING
        await manual.advance(11)
        assert sandbox.state is State.STOPPED


async def test_diff_archive_and_commit(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        base = f"/v1/sandboxes/{sid}"
        await api.call("PUT", f"{base}/files?path=/tmp/new", data=b"x")
        diff = await api.call("GET", f"{base}/diff")
        assert [change["path"] for change in diff["changes"]] == ["/tmp/new"]
        async with api.session.get(f"{base}/diff/tar?under=/tmp") as answer:
            assert await answer.read() == b"tar of /tmp."
        body = {"name": "workspace/x", "exclude": ["/tmp/y"]}
        layer = await api.call("POST", f"{base}/commit", body)
        assert layer["name"] == "workspace/x:latest"
        await api.call("POST", f"{base}/commit", {"name": "w", "exclude": ["rel"]}, status=422)
        again = await api.create(layers=["workspace/x"])
        error = await api.call("DELETE", "/v1/images/workspace/x:latest", status=409)
        assert "in use" in error["message"]
        await api.call("DELETE", f"/v1/sandboxes/{again}")
        await api.call("DELETE", "/v1/images/workspace/x:latest")
        await api.call("POST", "/v1/sandboxes", {"layers": ["workspace/x"]}, status=404)


async def test_images_are_listed_imported_and_built(stand) -> None:
    async with stand.serving() as (_, api):
        assert [m["name"] for m in await api.call("GET", "/v1/images")] == ["base/debian:12"]
        assert (await api.call("GET", "/v1/images/debian:12"))["digest"].startswith("sha256:")

        async def chunks():
            for _ in range(100):
                yield b"t" * 10_000

        made = await api.call("POST", "/v1/images/base/mine/import?kind=tar", data=chunks())
        assert made["name"] == "base/mine:latest"
        assert stand.library.imported["base/mine"] == b"t" * 1_000_000
        await api.create(image="mine")
        await api.call("POST", "/v1/images/base/x/import?kind=zip", data=b"", status=422)


@pytest.mark.parametrize("suite", ["trixie", "nowhere"])
async def test_building_a_base_streams_its_log(stand, suite) -> None:
    async with stand.serving() as (_, api):
        body = msgspec.json.encode({"suite": suite, "packages": ["git"]})
        headers = {"content-type": "application/json"}
        url = "/v1/images/debian:13/debian"
        async with api.session.post(url, data=body, headers=headers) as answer:
            data = await answer.read()
        events, at = [], 0
        while at < len(data):
            (length,) = struct.unpack_from("<I", data, at)
            events.append(msgspec.msgpack.decode(data[at + 4 : at + 4 + length], type=StreamEvent))
            at += 4 + length
        assert [event.log for event in events[:-1]] == [f"suite {suite}", "1 packages"]
        if suite == "nowhere":
            assert events[-1].error is not None
        else:
            assert events[-1].manifest is not None


async def test_import_whose_client_vanishes_ends(stand) -> None:
    async with stand.serving() as (node, api):
        sent = asyncio.Event()

        async def chunks():
            yield b"t" * 1000
            sent.set()
            await asyncio.sleep(60)

        call = asyncio.create_task(api.call("POST", "/v1/images/base/x/import", data=chunks()))
        await sent.wait()
        await asyncio.sleep(0.05)
        call.cancel()
        await asyncio.wait([call])
        for _ in range(100):
            if node.images._threads._value == 4:
                break
            await asyncio.sleep(0.01)
        assert node.images._threads._value == 4
        assert "base/x" not in stand.library.imported


async def test_plans_are_remembered_for_a_moment_only(stand, manual) -> None:
    from skerry.spec.sandbox import SandboxSpec

    async with stand.alive() as node:
        for _ in range(3):
            await node.lives.create(SandboxSpec())
        assert stand.library.resolved == 1
        await manual.advance(1.1)
        await node.lives.create(SandboxSpec())
        assert stand.library.resolved == 2


async def test_health_names_the_backends(stand, manual) -> None:
    async with stand.serving() as (node, api):
        await api.create()
        health = await api.call("GET", "/v1/health")
        assert health["node"] == node.identity.name
        assert health["sandboxes"] == 1
        assert health["backends"] == {"container": "usable"}
        stand.backend.knobs.unusable = "no user namespaces"
        await manual.advance(1)
        health = await api.call("GET", "/v1/health")
        assert health["backends"]["container"] == "no user namespaces"


def file_events(data: bytes) -> list[FileEvent]:
    found = []
    while data:
        (length,) = struct.unpack_from("<I", data)
        found.append(msgspec.msgpack.decode(data[4 : 4 + length], type=FileEvent))
        data = data[4 + length :]
    return found


async def test_walk_streams_entries_and_says_that_it_is_done(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        base = f"/v1/sandboxes/{sid}/files"
        for name in ("a.py", "d/b.py", "d/c.txt"):
            await api.call("PUT", f"{base}?path=/w/{name}&parents=1", data=b"x")
        async with api.session.get(f"{base}/walk?path=/w&glob=*.py") as answer:
            assert answer.headers["content-type"] == FILES_STREAM
            *entries, done = file_events(await answer.read())
        assert done == FileEvent(done=True)
        names = [info.name for event in entries for info in event.entries or ()]
        assert names == ["a.py", "d/b.py"]
        for bad in ("types=z", "depth=0", "glob=" + "**/" * 5 + "x", "glob=%00"):
            await api.call("GET", f"{base}/walk?path=/w&{bad}", status=422)
        await api.call("GET", f"{base}/walk?path=/none", status=404)


async def test_watch_streams_events_until_the_client_goes(stand) -> None:
    async with stand.serving() as (node, api):
        sid = await api.create()
        base = f"/v1/sandboxes/{sid}/files"
        await api.call("POST", f"{base}/op", {"op": "mkdir", "path": "/w"})
        async with api.session.get(f"{base}/watch?path=/w&recursive=1") as answer:
            (ready,) = file_events(await answer.content.readany())
            assert ready.watch == WatchEvent(WatchKind.READY, "/w", directory=True)
            assert node.sandboxes.get(sid).busy == 0  # looking on is no activity
            await api.call("PUT", f"{base}?path=/w/f", data=b"x")
            (created,) = file_events(await answer.content.readany())
            assert created.watch == WatchEvent(WatchKind.CREATED, "/w/f")
        async with api.session.get(f"{base}/watch?path=/w") as answer:
            await answer.content.readany()
            await api.call("POST", f"{base}/op", {"op": "remove", "path": "/w", "recursive": True})
            last = file_events(await answer.content.read())[-1]
            assert last == FileEvent(done=True)


async def test_names_that_are_no_utf8_come_back_as_bytes(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        base = f"/v1/sandboxes/{sid}/files"
        await api.call("PUT", f"{base}?path=/%FF", data=b"x")
        op = {"op": "stat", "path_bytes": base64.b64encode(b"/\xff").decode()}
        (info,) = await api.call("POST", f"{base}/op", op)
        assert base64.b64decode(info["raw_name"]) == b"\xff"
        assert info["name"] == "\ufffd"


@pytest.mark.parametrize(
    "op",
    [
        {"op": "copy", "path": "/a"},
        {"op": "chown", "path": "/a"},
        {"op": "chown", "path": "/a", "owner": ":"},
        {"op": "truncate", "path": "/a"},
        {"op": "truncate", "path": "/a", "size": -1},
        {"op": "utime", "path": "/a", "mtime": 1e300},
        {"op": "symlink", "path": "/a", "to": ""},
        {"op": "melt", "path": "/a"},
        {"op": "stat"},
    ],
)
async def test_operation_that_lacks_something_is_refused_before_it_goes_inside(stand, op) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        error = await api.call("POST", f"/v1/sandboxes/{sid}/files/op", op, status=422)
        assert error["code"] == "invalid"
