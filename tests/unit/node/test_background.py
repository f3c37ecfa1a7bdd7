"""Commands in the background: started, fed by offset, read from an offset, over restarts."""

from __future__ import annotations

import asyncio
import os
import struct
from typing import Any

import msgspec
import pytest
from node_stand import Stand, settle
from test_restart import kill

from skerry.guest.api import Stream
from skerry.node.main import _end_parts
from skerry.node.recovery import recover
from skerry.spec.command import CommandSpec
from skerry.spec.sandbox import SandboxSpec
from skerry.wire.http import StreamEvent

OP = "0123456789abcdef" * 2


def events_in(raw: bytes) -> list[StreamEvent]:
    found, at = [], 0
    while at < len(raw):
        (size,) = struct.unpack_from("<I", raw, at)
        found.append(msgspec.msgpack.decode(raw[at + 4 : at + 4 + size], type=StreamEvent))
        at += 4 + size
    return found


async def output(api, root: str, query: str = "") -> list[StreamEvent]:
    async with api.session.get(f"{root}/output{query}") as answer:
        assert answer.status == 200
        return events_in(await answer.read())


async def feed(api, root: str, offset: int, data: bytes, *, status: int = 200, **query) -> Any:
    path = f"{root}/stdin?offset={offset}" + "".join(f"&{k}={v}" for k, v in query.items())
    return await api.call("POST", path, status=status, data=data)


async def start(api, sid: str, op: str = OP, **command) -> tuple[str, dict[str, Any]]:
    status = await api.call("POST", f"/v1/sandboxes/{sid}/ops?op={op}", command)
    return f"/v1/sandboxes/{sid}/ops/{status['op_id']}", status


async def test_start_answers_while_the_command_runs(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        root, status = await start(api, sid, shell="echo hi; sleep 0.2; exit 3")
        assert (status["state"], status["op_id"]) == ("running", OP)
        ended = await api.call("GET", f"{root}?wait=5")
        assert ended["result"]["exit_code"] == 3  # (report 23)


async def test_start_of_a_missing_program_answers_with_its_result(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        _, status = await start(api, sid, argv=["frobnicate"])
        assert status["state"] == "done"
        assert status["result"]["start_error"].startswith("exec: No such file")


async def test_start_with_the_same_id_joins_and_another_command_is_a_conflict(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        await start(api, sid, shell="sleep 0.1; exit 4")
        _, again = await start(api, sid, shell="sleep 0.1; exit 4")
        assert again["state"] == "running"
        path = f"/v1/sandboxes/{sid}/ops?op={OP}"
        await api.call("POST", path, {"shell": "other"}, status=409)
        assert stand.world.instances[sid]._operations == 1


async def test_input_by_offset_skips_what_came_and_names_a_gap(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        root, _ = await start(api, sid, argv=["cat"], interactive=True)
        assert await feed(api, root, 0, b"abc") == {"offset": 3, "open": True}
        assert await feed(api, root, 0, b"abc") == {"offset": 3, "open": True}
        assert await feed(api, root, 2, b"cde") == {"offset": 5, "open": True}
        gap = await feed(api, root, 9, b"x", status=409)
        assert gap["fields"]["expected"] == 5
        taken = await feed(api, root, 5, b"f", eof=1)
        assert taken["offset"] in (6, 0)
        ended = await api.call("GET", f"{root}?wait=5")
        assert ended["result"]["stdout_total"] == 6
        late = await feed(api, root, 6, b"x", status=409)
        assert "ended" in late["message"]


async def test_input_of_a_command_that_has_none_is_a_conflict(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        root, _ = await start(api, sid, shell="sleep 0.2")
        assert "interactive" in (await feed(api, root, 0, b"x", status=409))["message"]
        await api.call("POST", f"{root}/stdin", status=422, data=b"x")


async def test_input_longer_than_a_window_flows_at_the_readers_pace(stand) -> None:
    """(report 27)"""
    async with stand.serving() as (_, api):
        sid = await api.create()
        root, _ = await start(api, sid, argv=["cat"], interactive=True, output_limit=4 << 20)
        data = os.urandom(1 << 20)
        reading = asyncio.ensure_future(output(api, root))
        assert (await feed(api, root, 0, data, eof=1))["offset"] in (len(data), 0)
        got = b"".join(event.stdout or b"" for event in await reading)
        assert got == data


async def test_output_is_read_from_an_offset_with_positions(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        root, _ = await start(api, sid, shell="echo abcdef; err xyz; sleep 0.1; echo gh")
        events = await output(api, root, "?stdout=4&stderr=1")
        assert events[0].started == OP
        pieces = [(e.at, e.stdout or e.stderr) for e in events if e.at is not None]
        assert sorted(pieces) == [(1, b"yz\n"), (4, b"ef\n"), (7, b"gh\n")]
        assert events[-1].result is not None
        after = await output(api, root, "?stdout=7")  # the end does not change what is asked for
        assert [(e.at, e.stdout) for e in after if e.stdout] == [(7, b"gh\n")]


async def test_gap_in_the_middle_of_kept_output_shows_in_the_positions(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        root, _ = await start(api, sid, shell="flood 100000 a; echo end", output_limit=10_000)
        await api.call("GET", f"{root}?wait=5")
        events = await output(api, root)
        spans = [(e.at, len(e.stdout)) for e in events if e.stdout]
        assert spans == [(0, 5000), (95_004, 5000)]


async def test_reader_that_sets_no_pace_is_cut_and_delays_nothing(stand) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        view = await node.operations.view(
            sandbox, OP, CommandSpec(shell="flood 3000000"), paced=False
        )
        status = await node.operations.status(sandbox, OP, 10)
        assert status.result is not None
        with pytest.raises(Exception, match="too slow"):
            [event async for event in view]


async def test_cancel_is_not_delayed_by_a_reader_that_stands_still(stand) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        view = await node.operations.view(sandbox, OP, CommandSpec(shell="flood 3000000"))
        op = sandbox.ops[OP]
        await asyncio.sleep(0.2)
        before = op.sink.total(Stream.STDOUT)
        await asyncio.sleep(0.1)
        assert op.sink.total(Stream.STDOUT) == before < 3_000_000  # it is held up by the view
        node.operations.cancel(sandbox, OP)
        status = await node.operations.status(sandbox, OP, 10)
        assert status.result is not None
        assert status.result.cancelled
        view.close()


async def test_silence_ends_a_command_and_says_so(stand) -> None:
    """(report 22)"""
    async with stand.serving() as (_, api):
        sid = await api.create()
        command = {"shell": "echo a; sleep 0.05; echo b; sleep 60", "no_output_timeout_s": 0.3}
        result = await api.call("POST", f"/v1/sandboxes/{sid}/run", command)
        assert (result["timed_out"], result["no_output"]) == (True, True)
        assert "exit_code" not in result


async def test_list_says_what_is_known_of_a_running_command(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        root, _ = await start(api, sid, argv=["cat"], interactive=True)
        await feed(api, root, 0, b"four")
        await settle()
        (listed,) = await api.call("GET", f"/v1/sandboxes/{sid}/ops")
        assert (listed["interactive"], listed["stdin_total"]) == (True, 4)
        assert listed["stdout_total"] == 4
        await feed(api, root, 4, b"", eof=1)


@pytest.fixture(params=["ended", "killed"])
def restart(request, stand: Stand):
    async def first():
        node = stand.build()
        await stand.backend.start()
        await recover(node)
        return node

    async def end(node) -> None:
        if request.param == "killed":
            await kill(node)
        else:
            await _end_parts(node, ["container"])

    return first, end


@pytest.mark.parametrize("size", [10, 64 * 1024, 3_000_000])
async def test_inline_input_goes_on_after_a_restart(stand, restart, size: int) -> None:
    first, end = restart
    data = os.urandom(size)
    node = await first()
    sandbox = await node.lives.create(SandboxSpec())
    agent = stand.world.instances[sandbox.id].agent
    agent.running.clear()  # it is started, and reads nothing yet
    spec = CommandSpec(argv=("cat",), stdin=data, output_limit=4 << 20)
    await node.operations.view(sandbox, OP, spec)
    await asyncio.sleep(0.1)
    await end(node)
    agent.running.set()
    async with stand.alive() as again:
        status = await again.operations.status(again.sandboxes.get(sandbox.id), OP, 20)
        assert status.result is not None
        assert status.result.stdout == data
        assert stand.world.instances[sandbox.id]._operations == 1
        left = os.listdir(f"{stand.root}/state/spool")
        assert [name for name in left if name.endswith(".stdin")] == []


async def test_long_inline_input_is_in_a_file_and_not_in_memory(stand) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        agent = stand.world.instances[sandbox.id].agent
        agent.running.clear()
        spec = CommandSpec(argv=("cat",), stdin=bytes(500_000))
        await node.operations.view(sandbox, OP, spec, watch=False)
        await asyncio.sleep(0.1)
        assert os.path.getsize(f"{stand.root}/state/spool/{sandbox.id}-{OP}.stdin") == 500_000
        assert sandbox.ops[OP].spec.stdin == b""
        agent.running.set()
        status = await node.operations.status(sandbox, OP, 10)
        assert status.result is not None
        assert status.result.stdout_total == 500_000
        assert (await node.operations.run(sandbox, OP, spec)).stdout_total == 500_000  # a repeat


async def test_input_file_that_is_lost_fails_the_command_and_not_in_silence(stand) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        agent = stand.world.instances[sandbox.id].agent
        agent.running.clear()
        spec = CommandSpec(argv=("cat",), stdin=bytes(500_000))
        await node.operations.view(sandbox, OP, spec)
        await asyncio.sleep(0.1)
        os.truncate(f"{stand.root}/state/spool/{sandbox.id}-{OP}.stdin", 1000)
        agent.running.set()
        status = await node.operations.status(sandbox, OP, 10)
        assert status.error is not None
        assert status.error.code == "storage_failed"


async def test_interactive_input_goes_on_after_a_restart(stand, restart) -> None:
    first, end = restart
    node = await first()
    sandbox = await node.lives.create(SandboxSpec())
    spec = CommandSpec(argv=("cat",), interactive=True)
    await node.operations.start(sandbox, OP, spec)

    async def once(data: bytes):
        yield data

    await node.operations.feed(sandbox, OP, 0, once(b"before "), eof=False)
    await end(node)
    async with stand.alive() as again:
        sandbox = again.sandboxes.get(sandbox.id)
        taken = await again.operations.feed(sandbox, OP, 0, once(b"before after"), eof=True)
        assert taken.offset in (12, 0)
        result = await again.operations.run(sandbox, OP, spec)
        assert result.stdout == b"before after"


async def test_input_goes_on_over_a_lost_connection_inside(stand) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        await node.operations.start(sandbox, OP, CommandSpec(argv=("cat",), interactive=True))
        agent = stand.world.instances[sandbox.id].agent
        data = os.urandom(600_000)

        async def pieces():
            for at in range(0, len(data), 100_000):
                yield data[at : at + 100_000]
                if agent.connection is not None:
                    agent.connection.close()

        await node.operations.feed(sandbox, OP, 0, pieces(), eof=True)
        status = await node.operations.status(sandbox, OP, 20)
        assert status.result is not None
        assert status.result.stdout_total == len(data)
        assert status.result.stdout == data


async def test_output_after_a_restart_repeats_nothing_for_a_reader_that_was_ahead(
    stand, restart
) -> None:
    first, end = restart
    node = await first()
    sandbox = await node.lives.create(SandboxSpec())
    await node.operations.view(sandbox, OP, CommandSpec(shell="echo 12345; sleep 0.3; echo 67"))
    await settle(60)
    await end(node)  # what came is not safe yet: it comes again
    async with stand.alive() as again:
        view = await again.operations.view(
            again.sandboxes.get(sandbox.id), OP, None, since=(3, 0), positions=True
        )
        with view:
            pieces = [(event.at, event.stdout) async for event in view]
        assert b"".join(data or b"" for _, data in pieces) == b"45\n67\n"
        assert pieces[0][0] == 3


# --- holds


async def test_pause_holds_the_agents_timers_and_ours(stand, tmp_path) -> None:
    from node_stand import ManualClock

    from skerry.lifecycle.table import Event

    stand.clock = ManualClock()
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        agent = stand.world.instances[sandbox.id].agent
        await node.operations.view(sandbox, OP, CommandSpec(shell="sleep 600", timeout_s=10))
        await settle(60)
        await node.lives.drive(sandbox, Event.PAUSE)
        assert agent.held
        await stand.clock.advance(3600)
        assert sandbox.state.value == "paused"
        await node.lives.drive(sandbox, Event.RESUME)
        assert not agent.held
        await stand.clock.advance(14)  # of the 10 s and the 15 s after them
        assert sandbox.state.value == "running"
        assert sandbox.running == 1
        await node.lives.delete(sandbox)


async def test_running_command_is_found_again_after_a_day(stand) -> None:
    """(report 62) Nothing of it, and nothing of its reader, has a time limit of its own."""
    from node_stand import ManualClock

    stand.clock = ManualClock()
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec(idle_timeout_s=60))
        first = await node.operations.view(sandbox, OP, CommandSpec(shell="echo begun; sleep 600"))
        await settle(60)
        first.close()  # its client goes away
        for _ in range(24):
            await stand.clock.advance(3600)
        assert (await node.operations.status(sandbox, OP, 0.0)).state == "running"
        again = await node.operations.view(sandbox, OP, None, since=(0, 0), positions=True)
        events = aiter(again)
        assert (await anext(events)).stdout == b"begun\n"
        node.operations.cancel(sandbox, OP)
        assert (await again.result()).cancelled
        again.close()
        await node.lives.delete(sandbox)


async def test_hold_is_said_again_after_a_lost_connection(stand) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        agent = stand.world.instances[sandbox.id].agent
        assert agent.held_frames == 0  # a fresh agent holds nothing: not a frame for that
        await sandbox.link.hold(held=True)
        assert (agent.held, agent.held_frames) == (True, 1)
        agent.connection.close()
        for _ in range(200):
            await asyncio.sleep(0.01)
            if agent.held_frames == 2:
                break
        assert (agent.held, agent.held_frames) == (True, 2)
        await sandbox.link.hold(held=False)
        assert not agent.held
