"""The two faces stay one implementation; streams and commands are checked at the edge."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

import skerry
from skerry.errors import Conflict, InvalidRequest, Unavailable
from skerry.sdk.client import AsyncClient
from skerry.sdk.command import AsyncCommandHandle
from skerry.sdk.options import spec_of
from skerry.sdk.patience import Patience
from skerry.sdk.portal import Portal
from skerry.sdk.running import command_of
from skerry.sdk.sandbox import AsyncSandbox
from skerry.sdk.session import AsyncSession
from skerry.sdk.stream import events_of
from skerry.sdk.transport import Transport
from skerry.spec.command import RunResult
from skerry.spec.sandbox import SandboxInfo, SandboxSpec, State
from skerry.spec.session import SessionSpec
from skerry.spec.uplink import Uplink
from skerry.wire.http import ErrorBody, OpStatus, StreamEvent
from skerry.wire.sessions import SessionInfo

ROOT = Path(__file__).parents[3]


def framed(*events: StreamEvent) -> bytes:
    encoded = [msgspec.msgpack.encode(event) for event in events]
    return b"".join(struct.pack("<I", len(item)) + item for item in encoded)


async def byte_by_byte(data: bytes) -> AsyncIterator[bytes]:
    for value in data:
        yield bytes([value])


async def test_events_split_at_every_byte_arrive_whole() -> None:
    data = framed(StreamEvent(stdout=b"a\x00b"), StreamEvent(result=RunResult(exit_code=3)))
    events = [event async for event in events_of(byte_by_byte(data))]
    assert events[0].stdout == b"a\x00b"
    assert events[1].result is not None
    assert events[1].result.exit_code == 3


@pytest.mark.parametrize("keep", [0, 7, -1])
async def test_a_stream_without_its_end_is_never_a_success(keep: int) -> None:
    data = framed(StreamEvent(stdout=b"half"), StreamEvent(result=RunResult(exit_code=0)))[:keep]
    with pytest.raises(Unavailable):
        _ = [event async for event in events_of(byte_by_byte(data))]


async def test_an_error_event_is_raised_as_its_own_class() -> None:
    data = framed(StreamEvent(error=ErrorBody.of(Conflict("busy", holder="me"))))
    with pytest.raises(Conflict, match="busy") as caught:
        _ = [event async for event in events_of(byte_by_byte(data))]
    assert caught.value.fields == {"holder": "me"}


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ([], {}),
        ("x", {"timeout": float("nan")}),
        ("x", {"timeout": -1}),
        ("x", {"timeout": float("inf")}),
        (["a\x00b"], {}),
        (["x" * 2_200_000], {}),
        ("x", {"env": {"A=B": "1"}}),
        ("x", {"env": {"A": "1\x00"}}),
        ("x", {"cwd": ""}),
        ("x", {"output_limit": -1}),
    ],
)
def test_a_bad_command_is_refused_before_it_is_sent(
    command: object, extra: dict[str, object]
) -> None:
    with pytest.raises(InvalidRequest):
        command_of(command, **extra)  # type: ignore[arg-type]


def test_a_newline_in_a_value_is_no_fault() -> None:
    assert command_of("x", env={"A": "1\n2"}).env == {"A": "1\n2"}


@pytest.mark.parametrize(
    "change",
    [
        {"memory": "lots"},
        {"cpu": float("nan")},
        {"pids": 0},
        {"priority": 11},
        {"on_idle": "sleep"},
        {"ttl": -1},
        {"hostname": "a b"},
        {"image": "../x"},
        {"layers": ["nokind"]},
        {"network": ["10.0.0.0/8"]},
        {"network": "pypi"},
        {"layers": "workspace/a"},
        {"env": {"PORT": 8080}},
        {"cpu": "2"},
        {"memory": 1.5},
        {"image": None},
        {"labels": {"epoch": 1}},
        {"cpu_class": "quick"},
        {"cpu_weight": 0},
        {"cpu_weight": 50, "cpu_class": "best-effort"},
        {"cpu_burst": 1.5},
        {"cpu_burst": float("nan")},
        {"rollout": ""},
        {"rollout": "a\nb"},
        {"rollout": "x" * 257},
        {"job": "Job"},
        {"job": "a/b"},
        {"job": "x" * 65},
        {"durability": "disk"},
        {"readonly": "/etc"},
        {"readonly": ["etc"]},
        {"hidden": ["/etc"]},
        {"uplinks": [{"port": 0}]},
        {"uplinks": [{"port": 80, "worker": -1}]},
        {"uplinks": [{"port": 80, "host": "h"}]},
        {"uplinks": [{"port": 80}, {"port": 80, "worker": 1}]},
        {"uplinks": [{"port": number} for number in range(80, 85)]},
        {"uplinks": "80"},
    ],
)
def test_a_bad_spec_is_refused_before_it_is_sent(change: dict[str, object]) -> None:
    good: dict[str, object] = {
        "memory": "1GiB",
        "disk": None,
        "layers": (),
        "network": (),
        "idle_timeout": None,
        "on_idle": "stop",
        "ttl": None,
        "env": None,
        "labels": None,
        "image": "debian:12",
        "cpu": 1.0,
        "cpu_class": "latency-sensitive",
        "cpu_weight": 100,
        "cpu_burst": 0.0,
        "pids": 64,
        "nofile": 1024,
        "user": "root",
        "workdir": "/root",
        "hostname": "h",
        "key": None,
        "detached": False,
        "priority": 0,
        "rollout": "step 3/rollout 17",
        "job": "grpo-1.a_b",
        "durability": "local",
        "readonly": ["/etc"],
        "hidden": ["/opt/x"],
        "uplinks": [{"port": 8017, "worker": 3}, Uplink(port=8018)],
    }
    spec_of("container", **good)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        spec_of("container", **(good | change))  # type: ignore[arg-type]


def test_option_that_there_is_not_is_told_by_name() -> None:
    with pytest.raises(TypeError, match="no option 'memry'"):
        spec_of("container", memry="1GiB")  # type: ignore[call-arg]


def test_options_have_the_defaults_of_a_spec() -> None:
    assert spec_of("container") == SandboxSpec()
    assert spec_of("container", env=None, labels=None, disk=None, ttl=None) == SandboxSpec()


@pytest.mark.parametrize(
    ("command", "more", "told"),
    [
        (3, {}, "shell line"),
        (b"ls", {}, "argv"),
        (["ls", 3], {}, "argv"),
        ("ls", {"env": {"PORT": 8080}}, "env"),
        ("ls", {"stdin": 3}, "stdin"),
        ("ls", {"timeout": "5"}, "^timeout: "),
    ],
)
def test_a_value_of_a_wrong_type_is_told_by_name(
    command: object, more: dict[str, object], told: str
) -> None:
    with pytest.raises(InvalidRequest, match=told):
        command_of(command, **more)  # type: ignore[arg-type]
    for good in ("ls", ["ls", "-l"], ("ls",)):
        assert command_of(good).check()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda sb: sb.run(3), "shell line"),
        (lambda sb: sb.files.chmod("/a", "640"), "^mode: expected"),
        (lambda sb: sb.set_network("pypi"), r"network is a list: write network=\['pypi'\]"),
        (lambda sb: sb.signal("ab" * 16, "TERM"), "^signal: expected `int`"),
        (lambda sb: sb.extend(ttl="10m"), "^ttl: expected `float"),
        (lambda sb: sb.update(labels={"a": 1}), "^labels"),
    ],
)
async def test_a_value_of_a_wrong_type_is_refused_before_it_is_sent(
    call: Callable[[AsyncSandbox], Awaitable[object]], told: str
) -> None:
    nowhere = Transport("http://node", socket_path="/nowhere", token=None)
    info = SandboxInfo(id="s" + "a" * 20, state=State.RUNNING, spec=SandboxSpec())
    try:
        with pytest.raises(InvalidRequest, match=told):
            await call(AsyncSandbox(nowhere, info))
    finally:
        await nowhere.close()


async def test_a_session_and_an_open_input_say_what_they_take() -> None:
    nowhere = Transport("http://node", socket_path="/nowhere", token=None)
    known = SessionInfo(id="s", spec=SessionSpec(), shell="bash", created=1.0)
    session = AsyncSession(nowhere, "/v1/sandboxes/x", known)
    handle = AsyncCommandHandle(
        nowhere, "/v1/sandboxes/x", OpStatus(op_id="ab" * 16, state="running")
    )
    try:
        with pytest.raises(InvalidRequest, match="give a text"):
            await session.run(["ls"])  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="bytes or a text"):
            await handle.send(5)  # type: ignore[arg-type]
    finally:
        await nowhere.close()


async def test_waiting_and_addresses_of_a_wrong_type_are_told() -> None:
    with pytest.raises(InvalidRequest, match="number of seconds"):
        Patience("x")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="no node's address"):
        async with AsyncClient(5):  # type: ignore[arg-type]
            pass


def test_lazy_names_are_listed_for_completion() -> None:
    code = "import skerry, sys; sys.exit(not set(skerry.__all__) <= set(dir(skerry)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_sync_face_is_what_the_generator_writes() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/generate_sync.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_public_names_are_sorted_and_load() -> None:
    assert skerry.__all__ == sorted(skerry.__all__)
    for name in skerry.__all__:
        assert getattr(skerry, name).__name__ == name


def test_importing_the_package_loads_no_http_client() -> None:
    code = "import sys, skerry; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_portal_runs_calls_from_many_threads_and_ends() -> None:
    portal = Portal()
    results: list[int] = []

    async def double(value: int) -> int:
        await asyncio.sleep(0)
        return value * 2

    threads = [
        threading.Thread(target=lambda n=n: results.append(portal.call(double(n))))
        for n in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    portal.close()
    assert sorted(results) == [2 * n for n in range(20)]
    with pytest.raises(RuntimeError, match="closed"):
        portal.call(double(1))


async def test_a_portal_is_joined_from_another_loop_and_cancelled_with_the_caller() -> None:
    portal = Portal()
    there = threading.Event()
    told: list[str] = []

    async def command() -> str:
        try:
            there.set()
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
            told.append("cancelled inside")
            raise
        return ""

    async def double(value: int) -> int:
        return value * 2

    assert await asyncio.gather(*(portal.join(double(n)) for n in range(5))) == [0, 2, 4, 6, 8]
    task = asyncio.create_task(portal.join(command()))
    assert await asyncio.to_thread(there.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told == ["cancelled inside"]
    portal.close()
    with pytest.raises(RuntimeError, match="closed"):
        await portal.join(double(1))


def test_an_iteration_left_early_closes_the_async_side() -> None:
    portal = Portal()
    closed = []

    async def numbers() -> AsyncIterator[int]:
        try:
            for value in range(100):
                yield value
        finally:
            closed.append(True)

    iterator = portal.iterate(numbers())
    assert next(iterator) == 0
    iterator.close()  # type: ignore[attr-defined]
    portal.close()
    assert closed == [True]


def test_an_interrupt_cancels_the_call_and_waits_for_its_clean_up() -> None:
    portal = Portal()
    told: list[str] = []

    async def command() -> None:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
            told.append("cancelled inside")
            raise

    # In the background of a script SIGINT is ignored, and Python then leaves it so.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            portal.call(command())
    finally:
        signal.signal(signal.SIGINT, before)
    assert told == ["cancelled inside"]
    portal.close()
