"""Commands through the API: results, idempotency, joins, streams, clients that vanish."""

from __future__ import annotations

import asyncio
import base64
import errno
import os
import struct
from typing import Any

import aiohttp
import msgspec
import pytest

from skerry.backends.api import Exit
from skerry.spec.command import RunResult
from skerry.testing.fake_commands import Call, Ended, run_program
from skerry.wire.http import StreamEvent

OP = "0123456789abcdef" * 2
OTHER = "f" * 32
JSON = {"content-type": "application/json"}


def out(result: dict[str, Any]) -> bytes:
    return base64.b64decode(result.get("stdout", ""))


async def read_stream(answer: aiohttp.ClientResponse) -> list[StreamEvent]:
    data = await answer.read()
    events, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        events.append(msgspec.msgpack.decode(data[at + 4 : at + 4 + length], type=StreamEvent))
        at += 4 + length
    return events


async def started(node: Any, count: int) -> None:
    for _ in range(1000):
        if node.admission.operations == count:
            return
        await asyncio.sleep(0.002)
    raise AssertionError(f"{node.admission.operations} commands run, not {count}")


async def test_sandbox_is_made_used_and_destroyed(stand) -> None:
    async with stand.serving() as (node, api):
        sid = await api.create()
        result = await api.call("POST", f"/v1/sandboxes/{sid}/run", {"argv": ["echo", "hi"]})
        assert out(result) == b"hi\n"
        assert result["exit_code"] == 0
        gone = await api.call("DELETE", f"/v1/sandboxes/{sid}")
        assert gone["state"] == "stopped"
        assert stand.world.instances == {}
        assert len(node.sandboxes) == 0
        assert node.ledger._journal.subjects() == []


async def test_environment_and_defaults_of_the_sandbox_reach_the_command(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create(env={"A": "1", "B": "2"}, workdir="/tmp")
        url = f"/v1/sandboxes/{sid}/run"
        env = out(await api.call("POST", url, {"argv": ["env"], "env": {"B": "3\nx"}}))
        assert b"A=1\n" in env
        assert b"B=3\nx" in env
        assert out(await api.call("POST", url, {"argv": ["pwd"]})).strip() == b"/tmp"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ({"argv": ["frobnicate"]}, "exec: No such file or directory: frobnicate"),
        ({"argv": ["true"], "cwd": "/x"}, "cwd: No such file or directory: /x"),
        ({"argv": ["true"], "user": "bob"}, "user: unknown user bob"),
    ],
)
async def test_command_that_cannot_start_says_why(stand, command, text) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        result = await api.call("POST", f"/v1/sandboxes/{sid}/run", command)
        assert result["start_error"] == text
        assert "exit_code" not in result
        assert "signal" not in result


async def test_shell_line_runs_under_sh_where_bash_is_missing(stand, monkeypatch) -> None:
    tried = []

    async def without_bash(call: Call) -> Ended:
        tried.append(call.argv[0])
        if call.argv[0] == "/bin/bash":
            return Ended(error_step="exec", errno=errno.ENOENT)
        return await run_program(call)

    monkeypatch.setattr("skerry.testing.fake_operation.run_program", without_bash)
    async with stand.serving() as (_, api):
        sid = await api.create()
        for op in (OP, OTHER):
            url = f"/v1/sandboxes/{sid}/run?op={op}"
            result = await api.call("POST", url, {"shell": "echo a; exit 3"})
            assert out(result) == b"a\n"
            assert result["exit_code"] == 3
            assert result["op_id"] == op
        assert tried == ["/bin/bash", "/bin/sh", "/bin/sh"]  # asked once an image


async def test_repeat_gets_the_recorded_answer_without_running_again(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        url = f"/v1/sandboxes/{sid}/run?op={OP}"
        body = {"argv": ["write", "/tmp/x", "once"]}
        first = await api.call("POST", url, body)
        count = stand.world.instances[sid]._operations
        assert await api.call("POST", url, body) == first
        assert stand.world.instances[sid]._operations == count


async def test_repeat_is_answered_from_the_journal_when_memory_is_full(stand) -> None:
    async with stand.serving() as (node, api):
        node.results._bytes_max = 1  # nothing stays in memory
        sid = await api.create()
        for number in range(3):
            url = f"/v1/sandboxes/{sid}/run?op={number:032x}"
            await api.call("POST", url, {"argv": ["echo", str(number)]})
        for number in range(3):
            url = f"/v1/sandboxes/{sid}/run?op={number:032x}"
            again = await api.call("POST", url, {"argv": ["echo", str(number)]})
            assert out(again) == b"%d\n" % number


async def test_long_output_is_recalled_from_its_spool_file(stand) -> None:
    async with stand.serving() as (node, api):
        node.results._bytes_max = 1
        sid = await api.create()
        url = f"/v1/sandboxes/{sid}/run?op={OP}"
        body = {"argv": ["flood", str(3 << 20)], "output_limit": 4 << 20}
        first = await api.call("POST", url, body)
        assert len(out(first)) == 3 << 20
        assert out(await api.call("POST", url, body)) == out(first)
        await api.call("DELETE", f"/v1/sandboxes/{sid}")
        assert os.listdir(f"{stand.root}/state/spool") == []


async def test_output_past_the_limit_is_cut_in_the_middle(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        body = {"argv": ["flood", "500000"], "output_limit": 1000}
        result = await api.call("POST", f"/v1/sandboxes/{sid}/run", body)
        assert len(out(result)) == 1000
        assert result["truncated"] is True
        assert result["stdout_total"] == 500000


async def test_same_id_with_another_command_is_a_conflict(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        url = f"/v1/sandboxes/{sid}/run?op={OP}"
        await api.call("POST", url, {"argv": ["true"]})
        error = await api.call("POST", url, {"argv": ["false"]}, status=409)
        assert error["code"] == "conflict"


async def test_repeat_of_a_running_command_joins_it(stand) -> None:
    async with stand.serving() as (node, api):
        sid = await api.create()
        url = f"/v1/sandboxes/{sid}/run?op={OP}"
        calls = [api.call("POST", url, {"shell": "sleep 0.2; echo x"}) for _ in range(5)]
        results = await asyncio.gather(*calls)
        assert all(result == results[0] for result in results)
        assert stand.world.instances[sid]._operations == 1
        assert node.admission.operations == 0


async def test_client_that_vanishes_cancels_nothing(stand) -> None:
    async with stand.serving() as (node, api):
        sid = await api.create()
        url = f"/v1/sandboxes/{sid}/run?op={OP}"
        body = {"shell": "sleep 0.2; write /tmp/x done"}
        call = asyncio.create_task(api.call("POST", url, body))
        await started(node, 1)
        call.cancel()
        await asyncio.wait([call])
        status = await api.call("GET", f"/v1/sandboxes/{sid}/ops/{OP}?wait=5")
        assert status["state"] == "done"
        assert stand.world.instances[sid].files.nodes["/tmp/x"].content == b"done"


@pytest.mark.parametrize("way", ["run", "stream"])
async def test_client_that_asked_for_it_ends_its_command_by_vanishing(stand, way) -> None:
    async with stand.serving() as (node, api):
        sid = await api.create()
        url = f"/v1/sandboxes/{sid}/{way}?op={OP}&on_disconnect=kill"
        call = asyncio.create_task(api.call("POST", url, {"argv": ["sleep", "60"]}))
        await started(node, 1)
        call.cancel()
        await asyncio.wait([call])
        status = await api.call("GET", f"/v1/sandboxes/{sid}/ops/{OP}?wait=5")
        assert status["state"] == "done"
        assert status["result"]["cancelled"] is True


async def test_stream_gives_output_then_the_result(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        body = msgspec.json.encode({"shell": "echo a; err b; echo c"})
        url = f"/v1/sandboxes/{sid}/stream?op={OP}"
        async with api.session.post(url, data=body, headers=JSON) as answer:
            events = await read_stream(answer)
        assert events[0].started == OP
        assert b"".join(e.stdout or b"" for e in events) == b"a\nc\n"
        assert b"".join(e.stderr or b"" for e in events) == b"b\n"
        last = events[-1].result
        assert isinstance(last, RunResult)
        assert (last.exit_code, last.stdout, last.stdout_total) == (0, b"", 4)


async def test_joined_stream_gets_what_came_before(stand) -> None:
    async with stand.serving() as (node, api):
        sid = await api.create()
        body = msgspec.json.encode({"shell": "echo a; sleep 0.2; echo b"})
        url = f"/v1/sandboxes/{sid}/stream?op={OP}"

        async def follow() -> bytes:
            async with api.session.post(url, data=body, headers=JSON) as answer:
                events = await read_stream(answer)
            assert events[-1].result is not None
            return b"".join(e.stdout or b"" for e in events)

        first = asyncio.create_task(follow())
        await started(node, 1)
        await asyncio.sleep(0.05)
        assert await follow() == b"a\nb\n"
        assert await first == b"a\nb\n"
        assert await follow() == b"a\nb\n"  # from the record


async def test_slow_reader_of_a_stream_slows_the_command_and_loses_nothing(stand) -> None:
    async with stand.serving() as (node, api):
        sid = await api.create()
        body = msgspec.json.encode({"argv": ["flood", str(8 << 20)], "output_limit": 1000})
        async with api.session.post(
            f"/v1/sandboxes/{sid}/stream", data=body, headers=JSON
        ) as answer:
            await asyncio.sleep(0.3)
            assert node.admission.operations == 1  # held back, not buffered
            events = await read_stream(answer)
        assert sum(len(e.stdout or b"") for e in events) == 8 << 20
        assert events[-1].result is not None
        assert events[-1].result.truncated


async def test_signal_cancel_and_status(stand) -> None:
    async with stand.serving() as (node, api):
        sid = await api.create()
        base = f"/v1/sandboxes/{sid}"
        one = asyncio.create_task(
            api.call("POST", f"{base}/run?op={OP}", {"argv": ["sleep", "60"]})
        )
        two = asyncio.create_task(
            api.call("POST", f"{base}/run?op={OTHER}", {"argv": ["sleep", "61"]})
        )
        await started(node, 2)
        listed = await api.call("GET", f"{base}/ops")
        assert {op["command"] for op in listed} == {"sleep 60", "sleep 61"}
        assert (await api.call("GET", f"{base}/ops/{OP}"))["state"] == "running"
        await api.call("POST", f"{base}/ops/{OP}/signal", {"signal": 15})
        assert (await one)["signal"] == 15
        await api.call("POST", f"{base}/ops/{OTHER}/cancel")
        assert (await two)["cancelled"] is True
        await api.call("POST", f"{base}/ops/{OTHER}/cancel")  # ended: nothing to do
        await api.call("GET", f"{base}/ops/{'0' * 32}", status=404)


async def test_timeout_is_a_result_with_its_partial_output(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        body = {"shell": "echo a; sleep 60", "timeout_s": 0.1}
        result = await api.call("POST", f"/v1/sandboxes/{sid}/run", body)
        assert result["timed_out"] is True
        assert out(result) == b"a\n"


async def test_inline_stdin_reaches_the_command(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        data = bytes(range(256)) * 2000
        body = {"argv": ["cat"], "stdin": base64.b64encode(data).decode()}
        assert out(await api.call("POST", f"/v1/sandboxes/{sid}/run", body)) == data


async def test_lost_channel_is_mended_and_the_command_goes_on(stand) -> None:
    async with stand.serving() as (node, api):
        sid = await api.create()
        body = {"shell": "echo a; sleep 0.3; echo b"}
        call = asyncio.create_task(api.call("POST", f"/v1/sandboxes/{sid}/run", body))
        await started(node, 1)
        await asyncio.sleep(0.05)
        stand.world.instances[sid].drop_channel()
        assert out(await call) == b"a\nb\n"


@pytest.mark.parametrize("frames", [5, 7, 11])  # fewer: no answer could ever get through
async def test_commands_run_once_however_often_the_channel_is_cut(stand, frames) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        instance = stand.world.instances[sid]
        stand.backend.knobs.drop_channel_after = frames
        instance.drop_channel()
        url = f"/v1/sandboxes/{sid}/run"
        for number in range(6):
            body = {"shell": f"echo {number}; flood 100; exit {number}"}
            result = await api.call("POST", f"{url}?op={number:032x}", body)
            assert result["exit_code"] == number
            assert out(result) == b"%d\n" % number + out(result)[2:]
            assert result["stdout_total"] == 102
        assert instance._operations == 6


async def test_stream_whose_client_vanishes_does_not_hold_the_command_up(stand) -> None:
    async with stand.serving() as (node, api):
        sid = await api.create()
        body = msgspec.json.encode({"argv": ["flood", str(8 << 20)], "output_limit": 1000})
        url = f"/v1/sandboxes/{sid}/stream?op={OP}"
        async with api.session.post(url, data=body, headers=JSON) as answer:
            await answer.content.readexactly(1000)
            assert node.admission.operations == 1
        status = await api.call("GET", f"/v1/sandboxes/{sid}/ops/{OP}?wait=10")
        assert status["result"]["stdout_total"] == 8 << 20


async def test_death_of_the_instance_leaves_outcome_unknown_and_frees_it(stand) -> None:
    async with stand.serving() as (node, api):
        sid = await api.create()
        url = f"/v1/sandboxes/{sid}/run?op={OP}"
        call = asyncio.create_task(api.call("POST", url, {"argv": ["sleep", "60"]}, status=502))
        await started(node, 1)
        stand.world.instances[sid].die(Exit(signal=9))
        error = await call
        assert error["code"] == "outcome_unknown"
        assert error["fault"] == "platform"
        for _ in range(200):
            if not stand.world.instances:
                break
            await asyncio.sleep(0.01)
        info = await api.call("GET", f"/v1/sandboxes/{sid}")
        assert info["state"] == "failed"
        assert "signal 9" in info["reason"]
        again = await api.call("POST", url, {"argv": ["sleep", "60"]}, status=502)
        assert again["code"] == "outcome_unknown"  # the recorded answer
        late = await api.call("POST", f"/v1/sandboxes/{sid}/run", {"argv": ["true"]}, status=410)
        assert late["code"] == "sandbox_failed"
        await api.call("DELETE", f"/v1/sandboxes/{sid}")


async def test_agent_that_breaks_the_protocol_fails_its_sandbox_only(stand) -> None:
    async with stand.serving() as (_, api):
        good = await api.create()
        stand.backend.knobs.send_garbage = True
        error = await api.call("POST", "/v1/sandboxes", {}, status=410)
        assert error["code"] == "sandbox_failed"
        stand.backend.knobs.send_garbage = False
        assert set(stand.world.instances) == {good}
        assert out(await api.call("POST", f"/v1/sandboxes/{good}/run", {"argv": ["echo"]})) == b"\n"


async def test_deleting_under_a_running_command_answers_it(stand) -> None:
    async with stand.serving() as (node, api):
        sid = await api.create()
        call = asyncio.create_task(
            api.call("POST", f"/v1/sandboxes/{sid}/run", {"argv": ["sleep", "60"]}, status=410)
        )
        await started(node, 1)
        await api.call("DELETE", f"/v1/sandboxes/{sid}")
        assert (await call)["code"] == "sandbox_failed"


async def test_two_hundred_clients_at_once(stand) -> None:
    async with stand.serving() as (node, api):

        async def life(number: int) -> bytes:
            sid = await api.create(labels={"n": str(number)})
            result = await api.call(
                "POST", f"/v1/sandboxes/{sid}/run", {"argv": ["echo", str(number)]}
            )
            await api.call("DELETE", f"/v1/sandboxes/{sid}")
            return out(result)

        results = await asyncio.gather(*(life(number) for number in range(200)))
        assert results == [b"%d\n" % number for number in range(200)]
        assert node.admission.sandboxes == 0
        assert stand.world.destroyed == 200
