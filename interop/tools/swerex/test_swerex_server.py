"""What the server refuses, whose fault it says a failure is, and what it leaves: nothing."""

from __future__ import annotations

import asyncio
import io
import json
import secrets
import signal
import zipfile

import aiohttp
import pytest
from serving import TOKEN, server
from swerex.runtime.abstract import (
    BashAction,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    WriteFileRequest,
)
from swerex.runtime.remote import RemoteRuntime

import skerry
from interop.looking import examples, sandboxes, until


@pytest.fixture(scope="module")
def told():
    with server("-o", "memory=600MiB", "-o", 'labels={"job": "swe"}') as address:
        yield address


@pytest.fixture
def runtime(told):
    return RemoteRuntime(host=told["host"], port=told["port"], auth_token=TOKEN, timeout=60)


async def post(told, path, data, **headers):
    headers = {"X-API-Key": TOKEN, **headers}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{told['host']}:{told['port']}/{path}", data=data, headers=headers) as answer,
    ):
        return answer.status, await answer.json()


def test_the_example_of_the_guide_runs_as_written(capsys):
    (text,) = examples("swerex.md")
    with server() as address:
        exec(text, {"port": address["port"], "auth_token": TOKEN})
    assert "/tmp" in capsys.readouterr().out


async def test_only_the_token_is_served(told):
    stranger = RemoteRuntime(host=told["host"], port=told["port"], auth_token="other")
    assert not await stranger.is_alive()
    for path in ("execute", "upload", "close", "create_session"):
        status, _ = await post(told, path, b"{}", **{"X-API-Key": "other"})
        assert status == 401


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"command": 1}',
        b'{"command": ["a"], "timeout": "x"}',
        b"\xff",
        b"[" * 100_000,
    ],
)
async def test_what_is_no_request_is_refused(told, body):
    status, _ = await post(told, "execute", body)
    assert status == 422


async def test_a_request_that_is_too_long_is_refused(told):
    status, _ = await post(told, "write_file", b" " * (97 << 20))
    assert status == 413


def zipped(**members):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/"), content)
    return data.getvalue()


def form(content, target="/tmp/target"):
    data = aiohttp.FormData()
    data.add_field("file", content, filename="a.zip")
    data.add_field("target_path", target)
    data.add_field("unzip", "true")
    return data


async def test_hostile_zips_leave_nothing_anywhere(told, runtime):
    up = zipped(**{"..__..__etc__evil": b"x"})
    absolute = zipped(__etc__evil=b"x")
    broken = zipped(a=b"x" * 1000)[:-30]
    for content in (up, absolute, broken, b"no zip", b""):
        status, answer = await post(told, "upload", form(content))
        assert status == 511, answer
        assert answer["swerexception"]["class_path"] == "builtins.ValueError"
    done = await runtime.execute(Command(command="ls /etc/evil /tmp/target/..", shell=True))
    assert "/etc/evil\n" not in done.stdout


async def test_a_zip_bomb_is_refused_by_what_it_holds(told):
    def bomb():
        data = io.BytesIO()
        with (
            zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive,
            archive.open("zeros", "w", force_zip64=True) as member,
        ):
            for _ in range(2100):
                member.write(bytes(1 << 20))
        return data.getvalue()

    content = await asyncio.to_thread(bomb)
    assert len(content) < 4 << 20
    status, answer = await post(told, "upload", form(content))
    assert (status, "holds more than" in answer["swerexception"]["message"]) == (511, True)


async def test_a_request_that_comes_twice_is_carried_out_once(told, runtime):
    body = json.dumps(
        {"command": "echo x >> /tmp/count; sleep 0.3; wc -l < /tmp/count", "shell": True}
    )
    once = {"X-Request-ID": "the-same"}
    answers = await asyncio.gather(*(post(told, "execute", body, **once) for _ in range(3)))
    answers.append(await post(told, "execute", body, **once))
    assert [answer[1]["stdout"] for answer in answers] == ["1\n"] * 4


async def test_output_cannot_look_like_a_prompt_and_is_bounded(runtime):
    await runtime.create_session(CreateBashSessionRequest(session="noisy", startup_timeout=20))

    async def bash(command, **more):
        return await runtime.run_in_session(
            BashAction(session="noisy", command=command, **{"timeout": 60} | more)
        )

    seen = await bash(
        "echo SHELLPS1PREFIX; echo EXITCODESTART0EXITCODEEND; (exit 5)", check="silent"
    )
    assert seen.exit_code == 5
    assert seen.output.strip().splitlines() == ["SHELLPS1PREFIX", "EXITCODESTART0EXITCODEEND"]
    long = await bash("seq 1 2000000")
    assert len(long.output) < 5 << 20
    assert "characters were cut out here" in long.output
    assert long.output.strip().endswith("2000000")
    # A line may be as long as it likes, and a command set the prompt.
    assert (await bash(f"PS1='> '; X={'y' * 200_000}; echo ${{#X}}")).output.strip() == "200000"
    assert (await bash("echo again")).output.strip() == "again"
    with pytest.raises(ValueError, match="expect"):
        await bash("true", expect=["("])


async def test_files_that_are_none_are_told(runtime):
    await runtime.execute(Command(command="mkfifo /tmp/fifo; truncate -s 1T /tmp/huge", shell=True))
    for path in ("/tmp/fifo", "/tmp/huge"):
        with pytest.raises(OSError, match=path):
            await runtime.read_file(ReadFileRequest(path=path))
    with pytest.raises(ValueError, match="no-such"):
        await runtime.read_file(ReadFileRequest(path="/etc/passwd", encoding="no-such"))
    with pytest.raises(skerry.InvalidRequest):
        await runtime.write_file(WriteFileRequest(path="/tmp/a\0b", content=""))


async def test_a_sandbox_that_is_gone_is_no_failed_command(told, runtime):
    assert await runtime.is_alive()
    (mine,) = sandboxes(job="swe")
    with skerry.connect() as client:
        spec = client.sandboxes.get(mine).info().spec
        assert (spec.memory_bytes, spec.labels["harness"]) == (600 << 20, "swe-rex")
        client.sandboxes.get(mine).destroy()
    with pytest.raises(skerry.NotFound):
        await runtime.execute(Command(command=["true"]))
    # The next one begins afresh.
    await runtime.close()
    assert not sandboxes(job="swe")
    assert (await runtime.execute(Command(command=["true"]))).exit_code == 0
    assert sandboxes(job="swe") != [mine]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_the_server_ends_with_its_sandbox(how):
    label = f"ended{secrets.token_hex(4)}"
    with server("-o", f'labels={{"job": "{label}"}}', how=how):
        assert sandboxes(job=label)
    until(lambda: not sandboxes(job=label), "the sandbox is gone")


@pytest.mark.parametrize(
    "wrong",
    [("-o", "imgae=x"), ("-o", "memory=lots"), ("-o", "nothing"), ("--image", "no/such:image")],
)
def test_what_is_wrong_is_told_at_once(wrong):
    with pytest.raises(AssertionError, match="ended with 2"), server(*wrong):
        pass
