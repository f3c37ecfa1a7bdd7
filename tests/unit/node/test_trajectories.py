"""Trajectories over a node's API: of sandboxes that live, of others, and across its restarts."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
from pathlib import Path

import msgspec
import pytest
from node_stand import FREE, settle

from skerry.errors import InvalidRequest, LayerDamaged, NotFound
from skerry.node import trajectories as module
from skerry.node.config import Limits
from skerry.sdk.trajectories import AsyncTrajectories
from skerry.sdk.transport import Transport
from skerry.spec.command import CommandSpec
from skerry.spec.trajectory import Outcome, as_json, request_digest


@pytest.fixture
async def client(stand):
    """Returns the SDK's trajectories of a node that serves, and its API."""
    limits = Limits(**FREE, loop_lag_max_s=0)  # the machine may be busy
    async with stand.serving(limits=limits) as (node, api):
        transport = Transport("http://node", socket_path=node.config.socket_path)
        yield AsyncTrajectories(transport), api, node
        await transport.close()


async def run(api, sandbox: str, *argv: str) -> dict:
    return await api.call("POST", f"/v1/sandboxes/{sandbox}/run", {"argv": list(argv)})


async def test_living_sandbox_tells_what_was_done_to_it(client):
    trajectories, api, _ = client
    sandbox = await api.create(rollout="r-7")
    await run(api, sandbox, "echo", "one")
    await run(api, sandbox, "exit", "3")
    told = [event async for event in trajectories.events(sandbox)]
    assert [event.action for event in told] == ["create", "run", "run"]
    assert told[1].result["stdout"]["text"] == "one\n"
    assert (told[2].outcome, told[2].result["exit_code"]) == (Outcome.DONE, 3)
    assert {event.rollout for event in told} == {"r-7"}
    await run(api, sandbox, "echo", "two")
    assert len((await trajectories.page(sandbox, 3)).events) == 1


async def test_deleted_sandbox_is_on_record(client):
    trajectories, api, _ = client
    sandbox = await api.create()
    await run(api, sandbox, "echo", "one")
    await api.call("DELETE", f"/v1/sandboxes/{sandbox}")
    told = [event async for event in trajectories.events(sandbox)]
    assert told[0].action == "create"
    assert told[-1].action == "delete"
    (info,) = await trajectories.list(sandbox=sandbox)
    assert (info.state, info.complete) == ("deleted", True)
    check = await trajectories.verify(sandbox)
    assert (check.sound, check.events) == (True, len(told))


async def test_record_goes_on_over_a_restart_of_the_node(stand):
    async with stand.serving() as (_, api):
        sandbox = await api.create(detached=True)
        await run(api, sandbox, "echo", "one")
    async with stand.serving() as (node, api):
        await run(api, sandbox, "echo", "two")
        page = await node.trajectories.page(sandbox, 0, 10)
        assert [e.request.get("argv", [""])[-1] for e in page.events] == ["", "one", "two"]
        await api.call("DELETE", f"/v1/sandboxes/{sandbox}")


async def test_listing_finds_rollouts_and_jobs_page_by_page(client, monkeypatch):
    trajectories, api, _ = client
    for number in range(5):
        await api.call("POST", "/v1/jobs", {"id": f"j-{number}"})
    made = [await api.create(rollout=f"r-{n % 2}", job=f"j-{n}") for n in range(5)]
    assert [info.sandbox for info in await trajectories.list()] == made
    of_one = await trajectories.list(rollout="r-1")
    assert [(info.sandbox, info.job) for info in of_one] == [(made[1], "j-1"), (made[3], "j-3")]
    assert [info.sandbox for info in await trajectories.list(job="j-4")] == [made[4]]
    assert await trajectories.list(rollout="none") == []
    page = await api.call("GET", "/v1/trajectories?limit=2")
    rest = await api.call("GET", f"/v1/trajectories?limit=10&cursor={page['cursor']}")
    assert [item["sandbox"] for item in page["items"] + rest["items"]] == made
    assert "cursor" not in rest
    monkeypatch.setattr("skerry.sdk.trajectories.TRAJECTORIES_PAGE_MAX", 2)
    assert [info.sandbox async for info in trajectories.iterate()] == made


async def test_what_is_none_is_refused_by_name(client):
    trajectories, api, _ = client
    with pytest.raises(InvalidRequest, match="not a sandbox id"):
        await trajectories.page("sandbox")
    with pytest.raises(NotFound):
        await trajectories.page("s" + "a" * 20)
    with pytest.raises(InvalidRequest, match="no sha256"):
        await trajectories.blob("passwd")
    with pytest.raises(NotFound):
        await trajectories.blob("0" * 64)
    for query in ("cursor=x", "limit=0", "limit=1001", "from=1", "cursor=1.s"):
        await api.call("GET", f"/v1/trajectories?{query}", status=422)
    sandbox = await api.create()
    await api.call("GET", f"/v1/trajectories/{sandbox}/events?from=-1", status=422)
    await api.call("GET", f"/v1/trajectories/{sandbox}/events?limit=1001", status=422)
    beyond = await api.call("GET", f"/v1/trajectories/{sandbox}/events?from=999")
    assert beyond == {"events": []}


async def test_content_comes_whole_and_a_changed_one_is_told(client):
    trajectories, _, node = client
    data = os.urandom(3_000_000)
    digest = hashlib.sha256(data).hexdigest()
    path = Path(node.config.state_dir) / "trajectory" / "blobs" / digest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    assert await trajectories.blob(digest) == data
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(LayerDamaged):
        await trajectories.blob(digest)


async def test_reads_beyond_the_bound_are_refused_and_the_rest_come_in_turn(client, monkeypatch):
    trajectories, api, node = client
    sandbox = await api.create()
    monkeypatch.setattr(module, "WAITING_MAX", 2)
    held = asyncio.Event()
    loop = asyncio.get_running_loop()
    pages = node.trajectories._pages
    real = pages.archive.page

    def slow(*args):
        asyncio.run_coroutine_threadsafe(held.wait(), loop).result()
        return real(*args)

    monkeypatch.setattr(pages.archive, "page", slow)
    waiting = [asyncio.create_task(trajectories.page(sandbox)) for _ in range(2)]
    while pages.waiting < 2:
        await settle()
    answer = await api.call("GET", f"/v1/trajectories/{sandbox}/events", status=429)
    assert answer["fields"]["limit"] == "trajectories"
    assert len(await trajectories.list()) == 1  # which waits for no page
    held.set()
    pages = await asyncio.gather(*waiting)
    assert [len(page.events) for page in pages] == [1, 1]


async def test_commands_go_on_while_a_long_record_is_read(client):
    trajectories, api, _ = client
    sandbox = await api.create()
    for _ in range(50):
        await run(api, sandbox, "echo", "x" * 1000)
    reading = asyncio.create_task(trajectories.verify(sandbox))
    await run(api, sandbox, "echo", "meanwhile")
    assert (await reading).sound


async def test_export_of_a_client_is_a_whole_file(client, tmp_path):
    trajectories, api, _ = client
    sandbox = await api.create(rollout="r-1")
    await api.create(rollout="r-2")
    await run(api, sandbox, "echo", "one")
    path = tmp_path / "events.jsonl"
    assert await trajectories.export(path, rollout="r-1") == 2
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["action"] for line in lines] == ["create", "run"]
    assert await trajectories.export(tmp_path / "all.parquet") == 3
    with pytest.raises(InvalidRequest, match="csv"):
        await trajectories.export(path, format="csv")


async def test_reader_of_a_client_that_left_stops_and_the_next_one_has_its_turn(
    client, monkeypatch
):
    trajectories, api, node = client
    sandbox = await api.create()
    surveys = node.trajectories._surveys
    reading, stopped = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def endless(archive, _sandbox):
        loop.call_soon_threadsafe(reading.set)
        try:
            while True:
                archive.breathe()
        finally:
            loop.call_soon_threadsafe(stopped.set)

    with monkeypatch.context() as patch:
        patch.setattr(module, "check_sandbox", endless)
        task = asyncio.create_task(trajectories.verify(sandbox))
        await reading.wait()
        task.cancel()
        await asyncio.wait((task,))
        await asyncio.wait_for(stopped.wait(), 20)
    assert (await trajectories.verify(sandbox)).sound
    assert surveys.waiting == 0


@pytest.mark.parametrize("size", [0, 10, 100_000, 2_000_000])
async def test_digest_of_a_command_is_what_a_client_computes_of_what_it_asks(client, size):
    """So that a client can tell a repeat from another request, wherever its input is kept."""
    trajectories, api, _ = client
    sandbox = await api.create()
    spec = CommandSpec(argv=("cat",), env={"B": "2", "A": "1"}, stdin=b"x" * size, timeout_s=60)
    body = io.BytesIO(msgspec.json.encode(spec))
    await api.call(
        "POST",
        f"/v1/sandboxes/{sandbox}/run",
        data=body,
        headers={"content-type": "application/json"},
    )
    (event,) = (await trajectories.page(sandbox, 1)).events
    assert event.request_digest == request_digest(as_json(spec))
    apart = event.request["stdin"].keys() & {"blob", "dropped"}  # by its digest
    assert bool(apart) == (size > 64 << 10)


def nested(depth: int) -> object:
    value: object = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("field", ["request", "result", "usage"])
async def test_no_event_of_a_harness_keeps_others_from_being_read(client, field):
    trajectories, api, _ = client
    sandbox = await api.create()
    url = f"/v1/sandboxes/{sandbox}/events"
    for refused in (nested(200), nested(600), 1 << 70, {"bytes": 1, "blob": "0" * 64}):
        event = {"action": "verdict", field: {"x": refused}}
        await api.call("POST", url, {"events": [event]}, status=422)
    like_content = [
        {"base64": "a"},
        {"base64": 5},
        {"base64": "\u00e9"},
        {"text": 5},
        {"dropped": 0},
    ]
    kept = [nested(100), *({"bytes": 3, **one} for one in like_content)]
    events = [{"action": "verdict", field: {"x": one}} for one in kept]
    await api.call("POST", url, {"events": events})
    told = [event async for event in trajectories.events(sandbox)][1:]
    assert [getattr(event, field)["x"] for event in told] == kept
    assert [event.request_digest for event in told] == [request_digest(e.request) for e in told]
    assert (await trajectories.verify(sandbox)).sound
    assert (await trajectories.list(sandbox=sandbox))[0].events == 1 + len(kept)
