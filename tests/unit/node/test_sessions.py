"""Sessions through the API: made, found again, used in turns, carried over restarts, ended."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from skerry.errors import InvalidRequest
from skerry.spec.command import CommandSpec

OP = "0123456789abcdef" * 2
OTHER = "f" * 32


def out(result: dict[str, Any]) -> bytes:
    return base64.b64decode(result.get("stdout", ""))


def line(text: str, **more: Any) -> dict[str, Any]:
    return {"shell": text, "session": "one", **more}


async def made(api: Any, **spec: Any) -> tuple[str, str]:
    """A sandbox with the session `one` in it."""
    sid = await api.create()
    root = f"/v1/sandboxes/{sid}"
    info = await api.call("POST", f"{root}/sessions", {"id": "one", **spec})
    assert (info["id"], info["shell"]) == ("one", spec.get("shell", "bash"))
    return sid, root


async def running(node: Any, sid: str) -> None:
    for _ in range(1000):
        session = node.sandboxes.get(sid).sessions["one"]
        if session.running is not None and session.running.running is not None:
            return
        await asyncio.sleep(0.002)
    raise AssertionError("no command has its turn")


async def begun(node: Any, count: int) -> None:
    for _ in range(1000):
        if node.admission.operations >= count:
            return
        await asyncio.sleep(0.002)
    raise AssertionError(f"{node.admission.operations} commands were begun, not {count}")


async def test_what_a_command_sets_the_next_one_finds(stand) -> None:
    async with stand.serving() as (node, api):
        _, root = await made(api, env={"A": "1"})
        run = f"{root}/run"
        result = await api.call("POST", run, line("export B=2; echo hi; err no; exit 3"))
        assert (out(result), base64.b64decode(result["stderr"])) == (b"hi\n", b"no\n")
        assert result["exit_code"] == 3
        assert b"A=1\nB=2\n" in out(await api.call("POST", run, line("env")))
        info = await api.call("GET", f"{root}/sessions/one")
        assert info["commands"] == 2
        assert "running" not in info
        node.check_invariants()


async def test_a_repeated_create_finds_it_and_another_is_a_conflict(stand) -> None:
    async with stand.serving() as (_, api):
        _, root = await made(api)
        first, second = await asyncio.gather(
            *(api.call("POST", f"{root}/sessions", {"id": "two"}) for _ in range(2))
        )
        assert first == second
        other = {"id": "two", "env": {"A": "1"}}
        assert (await api.call("POST", f"{root}/sessions", other, status=409))["code"] == "conflict"
        assert len(await api.call("GET", f"{root}/sessions")) == 2
        for body in ({"id": "a/b"}, {"shell": "python"}, {"cwd": "/none"}, {"typo": 1}):
            refused = await api.call("POST", f"{root}/sessions", body, status=422)
            assert refused["code"] == "invalid", body


async def test_there_are_bounds_on_sessions_and_on_what_waits(stand) -> None:
    async with stand.serving() as (node, api):
        sid, root = await made(api)
        tasks = [asyncio.create_task(api.call("POST", f"{root}/run", line("sleep 1000")))]
        await running(node, sid)
        more = [api.call("POST", f"{root}/run", line("true")) for _ in range(32)]
        tasks += map(asyncio.create_task, more)
        await begun(node, 33)
        refused = await api.call("POST", f"{root}/run", line("true"), status=429)
        assert refused["fields"]["limit"] == "session_queue"
        assert (await api.call("GET", f"{root}/sessions/one"))["waiting"] == 32
        for _ in range(15):
            await api.call("POST", f"{root}/sessions", {})
        refused = await api.call("POST", f"{root}/sessions", {}, status=429)
        assert refused["fields"]["limit"] == "sessions"
        (op,) = [o.id for o in node.sandboxes.get(sid).under_way() if o.spec.shell == "sleep 1000"]
        await api.call("POST", f"{root}/ops/{op}/cancel")
        results = await asyncio.gather(*tasks)
        assert [r.get("cancelled", False) for r in results] == [True] + 32 * [False]
        node.check_invariants()


async def test_commands_have_their_turns_in_order_and_one_that_waits_can_be_cancelled(
    stand,
) -> None:
    async with stand.serving() as (node, api):
        sid, root = await made(api)
        first = asyncio.create_task(api.call("POST", f"{root}/run?op={OP}", line("sleep 1000")))
        await running(node, sid)
        second = asyncio.create_task(api.call("POST", f"{root}/run?op={OTHER}", line("echo never")))
        third = asyncio.create_task(api.call("POST", f"{root}/run", line("echo third")))
        await begun(node, 3)
        await api.call("POST", f"{root}/ops/{OTHER}/cancel")
        withdrawn = await second
        assert (withdrawn["cancelled"], out(withdrawn)) == (True, b"")
        assert not first.done()
        assert not third.done()
        await api.call("POST", f"{root}/ops/{OP}/cancel")
        assert (await first)["cancelled"]
        assert out(await third) == b"third\n"
        node.check_invariants()


async def test_a_command_runs_once_and_a_repeat_gets_the_recorded_answer(stand) -> None:
    async with stand.serving() as (_, api):
        _, root = await made(api)
        run = f"{root}/run?op={OP}"
        assert out(await api.call("POST", run, line("write /x once; echo ran"))) == b"ran\n"
        await api.call("POST", f"{root}/run", line("write /x changed"))
        assert out(await api.call("POST", run, line("write /x once; echo ran"))) == b"ran\n"
        assert out(await api.call("POST", f"{root}/run", line("show /x"))) == b"changed"
        again = await api.call("POST", run, line("other"), status=409)
        assert again["code"] == "conflict"


async def test_only_a_shell_line_is_taken(stand) -> None:
    async with stand.serving() as (_, api):
        _, root = await made(api)
        for body in (
            {"argv": ["true"], "session": "one"},
            line("true", env={"A": "1"}),
            line("true", cwd="/"),
            line("true", user="root"),
            line("true", stdin=""),
            line("true", terminal={"rows": 1, "cols": 1}),
            line("true", interactive=True),
            {"shell": "true", "session": "../x"},
        ):
            refused = await api.call("POST", f"{root}/run", body, status=422)
            assert refused["code"] == "invalid"
        missing = await api.call(
            "POST", f"{root}/run", line("true") | {"session": "no"}, status=404
        )
        assert missing["code"] == "not_found"


def test_a_script_has_a_longest_length() -> None:
    CommandSpec(shell="x" * (15 << 20), session="one").check()
    with pytest.raises(InvalidRequest):
        CommandSpec(shell="x" * (17 << 20), session="one").check()


async def test_a_lost_shell_is_told_and_a_long_script_arrives(stand) -> None:
    async with stand.serving() as (_, api):
        _, root = await made(api)
        result = await api.call("POST", f"{root}/run", line("export A=1; kill 9"))
        assert (result["signal"], result["session_reset"]) == (9, True)
        assert b"A=1" not in out(await api.call("POST", f"{root}/run", line("env")))
        text = "z" * 200_000
        assert (
            out(await api.call("POST", f"{root}/run", line(f"echo {text}")))
            == text.encode() + b"\n"
        )


async def test_closing_ends_the_command_and_the_session(stand) -> None:
    async with stand.serving() as (node, api):
        sid, root = await made(api)
        slow = asyncio.create_task(api.call("POST", f"{root}/run", line("sleep 1000")))
        await running(node, sid)
        waits = asyncio.create_task(api.call("POST", f"{root}/run", line("true"), status=404))
        await begun(node, 2)
        await api.call("DELETE", f"{root}/sessions/one")
        assert (await slow)["cancelled"]
        assert (await waits)["code"] == "not_found"
        await api.call("DELETE", f"{root}/sessions/one")
        assert await api.call("GET", f"{root}/sessions") == []
        await api.call("POST", f"{root}/sessions", {"id": "one"})  # the name is free again
        node.check_invariants()


async def test_a_restarted_node_goes_on_with_the_command_and_the_session(stand) -> None:
    async with stand.serving() as (node, api):
        sid, root = await made(api)
        await api.call("POST", f"{root}/run", line("export A=1; echo x"))
        lost = asyncio.create_task(
            api.call("POST", f"{root}/run?op={OP}", line("echo begun; sleep 1000; echo never"))
        )
        await running(node, sid)
        lost.add_done_callback(lambda task: task.exception())
    async with stand.serving() as (node, api):
        await running(node, sid)
        await api.call("POST", f"{root}/ops/{OP}/cancel")
        status = await api.call("GET", f"{root}/ops/{OP}?wait=10")
        assert (status["result"]["cancelled"], out(status["result"])) == (True, b"begun\n")
        assert b"A=1\n" in out(await api.call("POST", f"{root}/run", line("env")))
    async with stand.serving() as (_, api):
        assert b"A=1\n" in out(await api.call("POST", f"{root}/run", line("env")))
        info = await api.call("GET", f"{root}/sessions/one")
        assert info["commands"] == 4


async def test_a_session_that_ended_without_the_node_leaves_its_command_unknown(stand) -> None:
    async with stand.serving() as (node, api):
        sid, root = await made(api)
        lost = asyncio.create_task(api.call("POST", f"{root}/run?op={OP}", line("sleep 1000")))
        await running(node, sid)
        lost.add_done_callback(lambda task: task.exception())
    agent = stand.world.instances[sid].agent
    (shell,) = [one for one in agent.operations.values() if one.shell is not None]
    shell.shell.close()
    await shell.task
    async with stand.serving() as (node, api):
        # It may have run: a repeat must not run it again, in a new session of that name either.
        await api.call("POST", f"{root}/sessions", {"id": "one"})
        status = await api.call("GET", f"{root}/ops/{OP}?wait=10")
        assert (status["state"], status["error"]["code"]) == ("lost", "outcome_unknown")
        repeat = await api.call("POST", f"{root}/run?op={OP}", line("sleep 1000"), status=502)
        assert repeat["code"] == "outcome_unknown"
        node.check_invariants()


async def test_a_command_cancelled_before_its_turn_is_remembered_over_a_restart(stand) -> None:
    async with stand.serving() as (node, api):
        sid, root = await made(api)
        await api.call("POST", f"{root}/run", line("true"))
        first = asyncio.create_task(api.call("POST", f"{root}/run?op={OP}", line("sleep 1000")))
        await running(node, sid)
        second = asyncio.create_task(api.call("POST", f"{root}/run?op={OTHER}", line("echo never")))
        await begun(node, 2)
        await api.call("POST", f"{root}/ops/{OTHER}/cancel")
        withdrawn = await second
        await api.call("POST", f"{root}/ops/{OP}/cancel")
        assert (await first)["cancelled"]
    async with stand.serving() as (_, api):
        repeat = await api.call("POST", f"{root}/run?op={OTHER}", line("echo never"))
        assert repeat == withdrawn
        info = await api.call("GET", f"{root}/sessions/one")
        assert info["commands"] == 2


async def test_a_lost_connection_repeats_nothing(stand) -> None:
    async with stand.serving() as (node, api):
        sid, root = await made(api)
        running_ = asyncio.create_task(
            api.call("POST", f"{root}/run?op={OP}", line("echo a; sleep 0.3; echo b"))
        )
        await running(node, sid)
        link = node.sandboxes.get(sid).link
        client = await link.ready()
        await client.close()
        assert out(await running_) == b"a\nb\n"
        assert out(await api.call("POST", f"{root}/run", line("echo c"))) == b"c\n"


async def test_a_session_that_ended_unheard_refuses_its_next_command(stand) -> None:
    """Its end was told to nobody: the next command gets a typed error and is not waited for."""
    async with stand.serving() as (node, api):
        sid, root = await made(api)
        sandbox = node.sandboxes.get(sid)
        agent = sandbox.instance.agent
        await (await sandbox.link.ready()).close()
        (operation,) = agent.operations.values()
        operation.shell.close()
        for _ in range(1000):
            if operation.done is not None:
                break
            await asyncio.sleep(0.002)
        async with asyncio.timeout(10):
            refused = await api.call("POST", f"{root}/run?op={OP}", line("true"), status=404)
        assert refused["code"] == "not_found"
        assert await api.call("GET", f"{root}/sessions") == []
        node.check_invariants()
