"""What the API refuses, and that it always does so by a typed error."""

from __future__ import annotations

import io
import math
import random
from typing import Any

import aiohttp
import msgspec
import pytest
from yarl import URL

OP = "0123456789abcdef" * 2
JSON = {"content-type": "application/json"}
PACKED = {"content-type": "application/msgpack"}


async def refused(api: Any, method: str, path: str, status: int = 422, **kwargs: Any) -> str:
    async with api.session.request(method, path, **kwargs) as answer:
        data = await answer.read()
        assert answer.status == status, (answer.status, data[:300])
        packed = "msgpack" in answer.headers["content-type"]
        error = msgspec.msgpack.decode(data) if packed else msgspec.json.decode(data)
        assert error["fault"] == "caller"
        return str(error["message"])


BAD_SPECS: list[dict[str, Any]] = [
    {"image": "../../etc"},
    {"image": "a" * 10_000},
    {"image": "base/debian@sha256:1"},
    {"layers": ["x"] * 100},
    {"cpu": -1},
    {"cpu": 1e9},
    {"cpu": "4"},
    {"memory_bytes": 1},
    {"memory_bytes": -(1 << 70)},
    {"memory_bytes": 1.5},
    {"pids": 10**9},
    {"env": {"A": "x\x00"}},
    {"env": {"A=B": "x"}},
    {"env": {"": "x"}},
    {"env": {"A\nB": "x"}},
    {"env": {"A": "x" * 70_000}},
    {"hostname": "UPPER.case"},
    {"user": ""},
    {"user": "a\x00b"},
    {"workdir": "relative"},
    {"workdir": "/a\x00b"},
    {"ttl_s": 0},
    {"ttl_s": -5},
    {"ttl_s": 1e300},
    {"idle_timeout_s": -1},
    {"on_idle": "explode"},
    {"labels": {"x": "y" * 1000}},
    {"labels": {f"l{n}": "" for n in range(100)}},
    {"labels": {"a": "\x00"}},
    {"key": ""},
    {"key": "k" * 200},
    {"network": ["10.0.0.0/8"]},
    {"backend": "nope"},
    {"typo": 1},
    {"disk_bytes": 3},
    {"shm_bytes": 0},
    {"nofile": 1},
]


@pytest.mark.parametrize("spec", BAD_SPECS, ids=lambda spec: str(spec)[:40])
async def test_bad_sandbox_is_refused_and_nothing_is_made(stand, spec) -> None:
    async with stand.serving() as (node, api):
        data = msgspec.json.encode(spec)
        await refused(api, "POST", "/v1/sandboxes", data=data, headers=JSON)
        assert len(node.sandboxes) == 0
        assert node.admission.sandboxes == 0
        assert stand.world.created == 0


BAD_COMMANDS: list[dict[str, Any]] = [
    {},
    {"argv": []},
    {"argv": [""]},
    {"argv": ["a"], "shell": "b"},
    {"argv": ["a\x00b"]},
    {"argv": "true"},
    {"argv": [1]},
    {"argv": ["x" * 2_200_000]},
    {"argv": ["x"] * 400_000},
    {"shell": "x" * 2_200_000},
    {"shell": "x" * 1_300_000, "env": {"A": "y" * 1_300_000}},
    {"argv": ["a"], "env": {"A": "\x00"}},
    {"argv": ["a"], "env": {"A=": "b"}},
    {"argv": ["a"], "cwd": ""},
    {"argv": ["a"], "cwd": "x" * 5000},
    {"argv": ["a"], "user": "\x00"},
    {"argv": ["a"], "timeout_s": -1},
    {"argv": ["a"], "timeout_s": 0},
    {"argv": ["a"], "timeout_s": 1e12},
    {"argv": ["a"], "timeout_s": "10"},
    {"argv": ["a"], "no_output_timeout_s": 0},
    {"argv": ["a"], "output_limit": -1},
    {"argv": ["a"], "output_limit": 1 << 40},
    {"argv": ["a"], "terminal": {"rows": 0, "cols": 10}},
    {"argv": ["a"], "terminal": {"rows": 70_000, "cols": 10}},
    {"argv": ["a"], "stdin": "not base64!"},
    {"argv": ["a"], "stdin": "aGk=", "interactive": True},
    {"argv": ["a"], "typo": 1},
]


@pytest.mark.parametrize("command", BAD_COMMANDS, ids=lambda command: str(command)[:40])
async def test_bad_command_is_refused_and_nothing_runs(stand, command) -> None:
    async with stand.serving() as (node, api):
        sid = await api.create()
        for way in ("run", "stream"):
            data = io.BytesIO(msgspec.json.encode(command))
            await refused(api, "POST", f"/v1/sandboxes/{sid}/{way}", data=data, headers=JSON)
        assert stand.world.instances[sid]._operations == 0
        assert node.admission.operations == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
async def test_numbers_that_are_none_are_refused(stand, value) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        url = f"/v1/sandboxes/{sid}/run"
        data = msgspec.msgpack.encode({"argv": ["true"], "timeout_s": value})
        await refused(api, "POST", url, data=data, headers=PACKED)
        for name in ("cpu", "ttl_s", "idle_timeout_s"):
            data = msgspec.msgpack.encode({name: value})
            await refused(api, "POST", "/v1/sandboxes", data=data, headers=PACKED)
        await refused(api, "GET", f"/v1/sandboxes/{sid}/ops/{OP}?wait={value}")


@pytest.mark.parametrize(
    ("data", "headers"),
    [
        (b"", JSON),
        (b"{", JSON),
        (b"[]", JSON),
        (b'{"argv": ["\xff\xfe"]}', JSON),
        (b'{"argv": ["\\ud800"]}', JSON),
        (b'{"timeout_s": NaN, "argv": ["a"]}', JSON),
        (b"[" * 100_000, JSON),
        (b"\xc1", PACKED),
        (b"\xdf\xff\xff\xff\xff", PACKED),
        (b"\x81\xa4argv\x91\xa2\xff\xff", PACKED),
        (b"argv=true", {"content-type": "application/x-www-form-urlencoded"}),
        (b"<a/>", {"content-type": "text/xml"}),
    ],
)
async def test_body_that_is_no_command_is_refused(stand, data, headers) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        await refused(api, "POST", f"/v1/sandboxes/{sid}/run", data=data, headers=headers)


async def test_random_bodies_never_make_an_internal_error(stand) -> None:
    dice = random.Random(7)
    async with stand.serving() as (_, api):
        sid = await api.create()
        for _ in range(300):
            data = dice.randbytes(dice.randrange(60))
            headers = dice.choice((JSON, PACKED))
            await refused(api, "POST", f"/v1/sandboxes/{sid}/run", data=data, headers=headers)


async def test_oversized_body_is_refused_with_and_without_its_length(stand) -> None:
    async with stand.serving() as (_, api):
        await refused(api, "POST", "/v1/sandboxes", data=io.BytesIO(b" " * (1 << 21)), headers=JSON)

        async def chunks():
            for _ in range(64):
                yield b" " * (1 << 16)

        await refused(api, "POST", "/v1/sandboxes", data=chunks(), headers=JSON)
        await api.create()


@pytest.mark.parametrize(
    "path",
    [
        "/v1/sandboxes/%2e%2e",
        "/v1/sandboxes/..%2f..%2fetc%2fpasswd",
        "/v1/sandboxes/S" + "a" * 20,
        "/v1/sandboxes/" + "a" * 5000,
        "/v1/sandboxes/%00",
        "/v1/sandboxes/s%ff",
    ],
)
async def test_id_that_is_none_is_refused(stand, path) -> None:
    async with stand.serving() as (_, api), api.session.get(URL(path, encoded=True)) as answer:
        assert answer.status in {404, 422}
        assert (await answer.json())["fault"] == "caller"


async def test_unknown_sandbox_operation_path_and_method_are_told_apart(stand) -> None:
    async with stand.serving() as (node, api):
        unknown = "s" + node.identity.name + "a" * 15
        message = await refused(api, "GET", f"/v1/sandboxes/{unknown}", 404)
        assert "deleted" in message
        other = "s" + ("bbbbb" if node.identity.name != "bbbbb" else "ccccc") + "a" * 15
        assert "belongs to node" in await refused(api, "GET", f"/v1/sandboxes/{other}", 404)
        assert (await api.call("DELETE", f"/v1/sandboxes/{unknown}"))["state"] == "stopped"
        sid = await api.create()
        await refused(api, "GET", f"/v1/sandboxes/{sid}/ops/{OP}", 404)
        await refused(api, "GET", f"/v1/sandboxes/{sid}/ops/xyz")
        await refused(api, "GET", "/v1/nothing", 404)
        await refused(api, "GET", "/", 404)
        async with api.session.patch(f"/v1/sandboxes/{sid}/usage") as answer:
            assert answer.status == 405
            assert answer.headers["allow"] == "GET"


@pytest.mark.parametrize(
    "query",
    [
        "op=xyz",
        "op=" + "0" * 31,
        f"op={OP}&op={OP}",
        "on_disconnect=maybe",
        "typo=1",
        "&".join(f"a{n}=1" for n in range(100)),
    ],
)
async def test_bad_query_of_a_command_is_refused(stand, query) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        data = msgspec.json.encode({"argv": ["true"]})
        await refused(api, "POST", f"/v1/sandboxes/{sid}/run?{query}", data=data, headers=JSON)


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=x", "limit=99999", "state=odd", "label=x", "cursor=x", "cursor=nan_x"],
)
async def test_bad_query_of_a_listing_is_refused(stand, query) -> None:
    async with stand.serving() as (_, api):
        await refused(api, "GET", f"/v1/sandboxes?{query}")


@pytest.mark.parametrize(
    ("method", "tail"),
    [
        ("GET", "files"),
        ("GET", "files?path="),
        ("GET", "files?path=%00"),
        ("GET", "files?path=/x&offset=-1"),
        ("GET", "files?path=/x&length=-2"),
        ("GET", "files?path=/x&offset=" + "9" * 30),
        ("GET", "files?path=" + "x" * 5000),
        ("GET", "files?path=/x&user="),
        ("PUT", "files?path=/x&mode=999"),
        ("PUT", "files?path=/x&mode=17777"),
        ("PUT", "files?path=/x&parents=maybe"),
        ("PUT", "tree?path="),
        ("GET", "diff/tar?under=%00"),
        ("GET", "wait?timeout=-1"),
        ("GET", "wait?state=gone"),
    ],
)
async def test_bad_query_of_a_file_is_refused(stand, method, tail) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        await refused(api, method, f"/v1/sandboxes/{sid}/{tail}")


@pytest.mark.parametrize(
    "op",
    [
        {"op": "explode", "path": "/x"},
        {"op": "stat"},
        {"op": "stat", "path": ""},
        {"op": "stat", "path": "a\x00"},
        {"op": "rename", "path": "/x"},
        {"op": "rename", "path": "/x", "to": ""},
        {"op": "chmod", "path": "/x"},
        {"op": "chmod", "path": "/x", "mode": 99999},
        {"op": "mkdir", "path": "/x", "mode": -1},
        {"op": "stat", "path": "/x", "user": ""},
        {"op": "stat", "path": "/x", "typo": 1},
    ],
)
async def test_bad_file_operation_is_refused(stand, op) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        data = msgspec.json.encode(op)
        await refused(api, "POST", f"/v1/sandboxes/{sid}/files/op", data=data, headers=JSON)


@pytest.mark.parametrize("number", [0, -1, 65, 1 << 70, "TERM", None])
async def test_bad_signal_is_refused(stand, number) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        data = msgspec.json.encode({"signal": number})
        url = f"/v1/sandboxes/{sid}/ops/{OP}/signal"
        await refused(api, "POST", url, data=data, headers=JSON)


@pytest.mark.parametrize(
    "body",
    [
        {"spec": {}, "count": 0},
        {"spec": {}, "count": -1},
        {"spec": {}, "count": 20_001},
        {"spec": {"typo": 1}, "count": 1},
        {"spec": {}, "count": 1, "typo": 1},
        {"count": 1},
    ],
)
async def test_bad_batch_is_refused(stand, body) -> None:
    async with stand.serving() as (_, api):
        data = msgspec.json.encode(body)
        await refused(api, "POST", "/v1/sandboxes/batch", data=data, headers=JSON)
        ids = msgspec.json.encode({"ids": ["../x"]})
        await refused(api, "POST", "/v1/sandboxes/batch/delete", data=ids, headers=JSON)


@pytest.mark.parametrize("name", ["../x", "base/..", "Base/UPPER", "base/x@sha256:1", "%00"])
async def test_bad_image_name_is_refused(stand, name) -> None:
    async with stand.serving() as (_, api):
        url = URL("/v1/images/" + name.replace("..", "%2e%2e"), encoded=True)
        async with api.session.get(url) as answer:
            assert answer.status in {404, 422}
            assert (await answer.json())["fault"] == "caller"


async def test_answer_follows_accept_and_then_content_type(stand) -> None:
    async with stand.serving() as (_, api):
        data = msgspec.msgpack.encode({})
        for headers, packed in (
            ({"content-type": "application/msgpack"}, True),
            ({"content-type": "application/msgpack", "accept": "application/json"}, False),
        ):
            async with api.session.post("/v1/sandboxes", data=data, headers=headers) as answer:
                assert answer.status == 200
                assert ("msgpack" in answer.headers["content-type"]) is packed


async def test_tcp_needs_a_token_and_the_unix_socket_does_not(stand) -> None:
    token = "t" * 20
    config = {"tcp": "127.0.0.1:0", "tokens": ("u" * 20, token)}
    async with stand.serving(**config) as (_, api), aiohttp.ClientSession() as tcp:
        url = f"http://{api.tcp[0]}:{api.tcp[1]}"
        async with tcp.get(f"{url}/v1/health") as answer:
            assert answer.status == 200
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {token}"}):
            async with tcp.get(f"{url}/v1/sandboxes", headers=headers) as answer:
                assert answer.status == 401
                told = await answer.json()
                assert told["code"] == "unauthorized"
                assert "SKERRY_TOKEN" in told["message"]
                assert answer.headers["www-authenticate"] == "Bearer"
        good = {"authorization": f"Bearer {token}"}
        async with tcp.get(f"{url}/v1/sandboxes", headers=good) as answer:
            assert answer.status == 200
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await tcp.ws_connect(f"{url}/v1/connection")
        assert caught.value.status == 403
        async with tcp.ws_connect(f"{url}/v1/connection", headers=good) as socket:
            assert (await socket.receive(timeout=5)).data
        await api.call("GET", "/v1/sandboxes")
