"""A node as a process of its own, with real containers: kills, adoption, limits, what is left."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from skerry.aio import connect
from skerry.spec.sandbox import State
from skerry.testing import rootfs

pytestmark = pytest.mark.root

OP = "0123456789abcdef" * 2
SERVE = """
import asyncio, json, sys, uvloop
from skerry.node.config import NodeConfig
from skerry.node.main import serve
config = NodeConfig(**json.loads(sys.argv[1]))
with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(serve(config))
"""


class Daemon:
    """A node process on directories that outlive it."""

    def __init__(self, top: str, store: str) -> None:
        self.config = {
            "state_dir": f"{top}/s",
            "run_dir": f"{top}/r",
            "store_dir": store,
        }
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> str:
        return f"{self.config['run_dir']}/node.sock"

    def start(self, **changes: Any) -> None:
        argv = [sys.executable, "-c", SERVE, json.dumps(self.config | changes)]
        self.process = subprocess.Popen(argv)

    async def ready(self, client: aiohttp.ClientSession) -> None:
        for _ in range(600):
            assert self.process is not None
            assert self.process.poll() is None, "the node ended while it started"
            with contextlib.suppress(aiohttp.ClientError):
                async with client.get("/v1/health") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.05)
        raise AssertionError("the node did not answer")

    def end(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(60)


def listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """A layer store with base/debian:12."""
    reason = rootfs.container_reason()
    if reason:
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="sk-store-", dir="/var/tmp") as path:
        yield path


@pytest.fixture
def daemon(store: str) -> Iterator[Daemon]:
    top = tempfile.mkdtemp(prefix="sk-", dir="/run")
    one = Daemon(top, store)
    yield one
    if one.process is not None and one.process.poll() is None:
        one.end(signal.SIGTERM)
    one.start(keep_on_exit=False)
    until = time.monotonic() + 30
    while not listens(one.socket) and time.monotonic() < until:
        time.sleep(0.02)
    assert one.end(signal.SIGTERM) == 0
    assert os.listdir(f"{top}/r/container") == [] or not os.path.exists(f"{top}/r/container")
    shutil.rmtree(top)


@asynccontextmanager
async def client_of(daemon: Daemon) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.UnixConnector(daemon.socket, limit=0)
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(
        connector=connector, base_url="http://node", timeout=timeout
    ) as client:
        await daemon.ready(client)
        async with client.get("/v1/images/debian:12") as answer:
            there = answer.status == 200
        if not there:
            tar = max(Path(rootfs.CACHE, "debian").glob("bookworm-*.tar"))
            with tar.open("rb") as file:
                async with client.post("/v1/images/base/debian:12/import", data=file) as answer:
                    assert answer.status == 200, await answer.text()
        yield client


async def call(
    client: aiohttp.ClientSession, method: str, path: str, body: Any = None, status: int = 200
) -> Any:
    async with client.request(method, path, json=body) as answer:
        text = await answer.text()
        assert answer.status == status, (path, answer.status, text[:500])
        return json.loads(text)


async def create(client: aiohttp.ClientSession, **spec: Any) -> str:
    info = await call(client, "POST", "/v1/sandboxes", spec)
    return str(info["id"])


async def sh(
    client: aiohttp.ClientSession, sid: str, line: str, query: str = "", **more: Any
) -> Any:
    return await call(client, "POST", f"/v1/sandboxes/{sid}/run{query}", {"shell": line, **more})


def out(result: dict[str, Any]) -> bytes:
    return base64.b64decode(result.get("stdout", ""))


async def test_container_lives_through_the_api(daemon: Daemon) -> None:
    daemon.start()
    async with client_of(daemon) as client:
        sid = await create(client, env={"A": "b"}, hostname="box", memory_bytes=128 << 20)
        result = await sh(client, sid, "echo $A $(hostname) $(id -u) $PWD; echo e >&2; exit 3")
        assert out(result) == b"b box 0 /root\n"
        assert base64.b64decode(result["stderr"]) == b"e\n"
        assert result["exit_code"] == 3
        slow = await sh(client, sid, "echo a; (setsid sleep 60 &) ; sleep 60", timeout_s=0.5)
        assert (slow["timed_out"], out(slow)) == (True, b"a\n")
        assert out(await sh(client, sid, "pgrep -c sleep")) == b"0\n"
        oom = await sh(client, sid, "head -c 500M /dev/zero | tail")
        assert oom.get("oom_killed") or oom.get("signal") == 9 or oom.get("exit_code") != 0
        for command, text in (
            ({"argv": ["frobnicate"]}, "exec: No such file or directory: frobnicate"),
            ({"argv": ["true"], "cwd": "/x"}, "cwd: No such file or directory: /x"),
            ({"argv": ["true"], "user": "bob"}, "user: unknown user bob"),
        ):
            result = await call(client, "POST", f"/v1/sandboxes/{sid}/run", command)
            assert result["start_error"] == text
        usage = await call(client, "GET", f"/v1/sandboxes/{sid}/usage")
        assert usage["memory_peak_bytes"] > 0
        await call(client, "DELETE", f"/v1/sandboxes/{sid}")


async def test_shell_line_runs_where_bash_is_gone(daemon: Daemon) -> None:
    daemon.start()
    async with client_of(daemon) as client:
        sid = await create(client)
        await sh(client, sid, "rm /bin/bash /usr/bin/bash 2>/dev/null; true")
        assert out(await sh(client, sid, "echo $0")) == b"/bin/sh\n"
        await call(client, "DELETE", f"/v1/sandboxes/{sid}")


async def test_files_diff_and_commit(daemon: Daemon) -> None:
    daemon.start()
    async with client_of(daemon) as client:
        sid = await create(client)
        data = os.urandom(8 << 20)
        url = f"/v1/sandboxes/{sid}/files?path=/srv/d/blob"
        async with client.put(url + "&parents=1&mode=640", data=data_stream(data)) as answer:
            assert answer.status == 200, await answer.text()
            assert (await answer.json())["size"] == len(data)
        async with client.get(url) as answer:
            assert await answer.read() == data
        diff = await call(client, "GET", f"/v1/sandboxes/{sid}/diff")
        assert "/srv/d/blob" in {change["path"] for change in diff["changes"]}
        body = {"name": "workspace/blob"}
        await call(client, "POST", f"/v1/sandboxes/{sid}/commit", body)
        twin = await create(client, layers=["workspace/blob"])
        digest = out(await sh(client, twin, "sha256sum < /srv/d/blob"))
        assert digest.split()[0].decode() == hashlib.sha256(data).hexdigest()
        for one in (sid, twin):
            await call(client, "DELETE", f"/v1/sandboxes/{one}")


async def data_stream(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), 100_000):
        yield data[at : at + 100_000]


async def test_killed_node_comes_back_to_its_running_command(daemon: Daemon) -> None:
    daemon.start()
    line = "echo x >> /root/ran; for i in $(seq 30); do echo $i; sleep 0.1; done"
    async with client_of(daemon) as client:
        sid = await create(client)
        run = asyncio.create_task(sh(client, sid, line, f"?op={OP}"))
        await asyncio.sleep(0.7)
        daemon.end(signal.SIGKILL)
        with pytest.raises(aiohttp.ClientError):
            await run
    daemon.start()
    async with client_of(daemon) as client:
        result = await sh(client, sid, line, f"?op={OP}")
        assert out(result) == b"".join(b"%d\n" % number for number in range(1, 31))
        assert out(await sh(client, sid, "cat /root/ran")) == b"x\n"
        assert await sh(client, sid, line, f"?op={OP}") == result
        await call(client, "DELETE", f"/v1/sandboxes/{sid}")


async def test_node_killed_while_it_makes_many_leaves_only_what_it_knows(daemon: Daemon) -> None:
    daemon.start()
    async with client_of(daemon) as client:
        await create(client)
        many = [asyncio.create_task(create(client)) for _ in range(60)]
        await asyncio.sleep(0.25)
        daemon.end(signal.SIGKILL)
        await asyncio.gather(*many, return_exceptions=True)
    daemon.start()
    async with client_of(daemon) as client:
        page = await call(client, "GET", "/v1/sandboxes?limit=1000")
        assert page["items"]
        for item in page["items"]:
            assert item["state"] == "running", item
            assert (await sh(client, item["id"], "true"))["exit_code"] == 0
        ids = [item["id"] for item in page["items"]]
        await call(client, "POST", "/v1/sandboxes/batch/delete", {"ids": ids})


async def test_orderly_end_keeps_containers_and_a_second_daemon_is_told_who_holds_it(
    daemon: Daemon,
) -> None:
    daemon.start()
    async with client_of(daemon) as client:
        sid = await create(client, detached=True)
        argv = [sys.executable, "-c", SERVE, json.dumps(daemon.config)]
        second = await asyncio.to_thread(
            subprocess.run, argv, capture_output=True, check=False, timeout=60
        )
        assert second.returncode != 0
        assert daemon.process is not None
        assert f"pid={daemon.process.pid}".encode() in second.stderr
        await sh(client, sid, "echo kept > /root/x")
        assert daemon.end(signal.SIGTERM) == 0
    daemon.start()
    async with client_of(daemon) as client:
        assert out(await sh(client, sid, "cat /root/x")) == b"kept\n"
        await call(client, "DELETE", f"/v1/sandboxes/{sid}")


async def test_embedded_daemon_ends_after_its_owner_was_lost(daemon: Daemon) -> None:
    daemon.start(embedded=True, lease_s=0.5, exit_grace_s=0.2, first_owner_s=30)
    async with client_of(daemon) as client:
        async with client.ws_connect("/v1/connection?owner=integration-test") as socket:
            await socket.receive(timeout=5)
            headers = {"x-skerry-owner": "integration-test"}
            async with client.post("/v1/sandboxes", json={}, headers=headers) as answer:
                assert answer.status == 200
        assert daemon.process is not None
        assert await asyncio.to_thread(daemon.process.wait, 30) == 0


async def test_client_given_the_address_of_an_embedded_daemon_owns_what_it_makes(
    daemon: Daemon,
) -> None:
    daemon.start(embedded=True, lease_s=30, exit_grace_s=0.2, first_owner_s=30)
    url = f"unix://{daemon.socket}"
    async with client_of(daemon):
        pass  # it answers
    async with connect(url) as client:
        sandbox = await client.sandboxes.create()
        assert (await sandbox.run("echo here")).text == "here\n"
        async with connect(url) as other:  # that another one leaves takes nothing away
            assert [one.id for one in await other.sandboxes.list()] == [sandbox.id]
        assert (await sandbox.run("echo still")).text == "still\n"
    assert daemon.process is not None
    assert await asyncio.to_thread(daemon.process.wait, 30) == 0  # nothing was left to stay for


async def test_what_a_killed_client_leaves_at_a_node_that_stays_lives_on(daemon: Daemon) -> None:
    daemon.start(lease_s=0.3)
    url = f"unix://{daemon.socket}"
    script = f"import os, skerry\nclient = skerry.connect({url!r})\n"
    script += "print(client.sandboxes.create(ttl=TTL).id, flush=True)\nos.kill(os.getpid(), 9)\n"
    async with client_of(daemon):
        made = []
        for ttl in ("None", "1.5"):
            argv = [sys.executable, "-c", script.replace("TTL", ttl)]
            client = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
            out, _ = await client.communicate()
            assert client.returncode == -signal.SIGKILL
            made.append(out.decode().strip())
        async with connect(url) as client:
            kept, bounded = [await client.sandboxes.get(one) for one in made]
            # By then the lease that it does not have would have run out many times.
            assert (await bounded.wait(timeout=60)).state is State.STOPPED
            assert (await kept.run("echo here")).text == "here\n"
            await kept.destroy()
            await bounded.destroy()


async def test_hundred_commands_at_once_in_one_container(daemon: Daemon) -> None:
    daemon.start()
    async with client_of(daemon) as client:
        sid = await create(client, pids=2000)
        lines = [sh(client, sid, f"sleep 0.2; echo {number}") for number in range(100)]
        results = await asyncio.gather(*lines)
        assert [out(result) for result in results] == [b"%d\n" % number for number in range(100)]
        await call(client, "DELETE", f"/v1/sandboxes/{sid}")


async def test_port_inside_is_forwarded_to_the_client(daemon: Daemon) -> None:
    daemon.start()
    talk = "exec 3<>/dev/tcp/127.0.0.1/9000; printf 'hello %s' $0 >&3; cat <&3"
    async with client_of(daemon) as client:
        sid = await create(client)
        async with client.ws_connect(f"/v1/sandboxes/{sid}/forward") as socket:
            await socket.send_str('{"port": 9000}')
            assert json.loads((await socket.receive(timeout=20)).data) == {"conn": 0}  # it is open
            runs = [asyncio.create_task(sh(client, sid, talk)) for _ in range(3)]
            served = 0
            while served < 3:
                frame = json.loads((await socket.receive(timeout=20)).data)
                data = base64.b64decode(frame.get("data", ""))
                if data:
                    assert data == b"hello /bin/bash"
                    answer = base64.b64encode(b"x" * 200_000).decode()
                    await socket.send_str(json.dumps({"conn": frame["conn"], "data": answer}))
                    await socket.send_str(json.dumps({"conn": frame["conn"], "eof": True}))
                    served += 1
            for result in await asyncio.gather(*runs):
                assert out(result) == b"x" * 200_000
        await asyncio.sleep(0.3)
        refused = await sh(client, sid, "exec 3<>/dev/tcp/127.0.0.1/9000")
        assert refused["exit_code"] != 0  # nobody listens once the socket is closed
        info = await call(client, "GET", f"/v1/sandboxes/{sid}")
        assert info.get("running_commands", 0) == 0
        await call(client, "DELETE", f"/v1/sandboxes/{sid}")


async def test_terminal_is_attached_resized_and_left(daemon: Daemon) -> None:
    daemon.start()
    async with client_of(daemon) as client:
        sid = await create(client)
        async with client.ws_connect(f"/v1/sandboxes/{sid}/attach?op={OP}") as socket:
            command = {"shell": "read x; stty size; echo got $x", "interactive": True}
            command["terminal"] = {"rows": 10, "cols": 20}
            await socket.send_str(json.dumps(command))
            await socket.send_str('{"resize": {"rows": 33, "cols": 44}}')
            await socket.send_str(json.dumps({"stdin": base64.b64encode(b"word\n").decode()}))
            text = b""
            async for message in socket:
                event = json.loads(message.data)
                text += base64.b64decode(event.get("stdout", ""))
                if "result" in event:
                    assert event["result"]["exit_code"] == 0
        assert b"33 44" in text
        assert b"got word" in text
        await call(client, "DELETE", f"/v1/sandboxes/{sid}")


async def test_kernel_death_of_a_container_is_reported(daemon: Daemon) -> None:
    daemon.start()
    async with client_of(daemon) as client:
        sid = await create(client)
        run = asyncio.create_task(
            call(client, "POST", f"/v1/sandboxes/{sid}/run", {"argv": ["sleep", "60"]}, 502)
        )
        await asyncio.sleep(0.5)
        assert daemon.process is not None
        killed = kill_agents(daemon)
        assert killed == 1
        assert (await run)["code"] == "outcome_unknown"
        info = await call(client, "GET", f"/v1/sandboxes/{sid}/wait?state=failed&timeout=10")
        assert info["state"] == "failed"
        await call(client, "DELETE", f"/v1/sandboxes/{sid}")


def kill_agents(daemon: Daemon) -> int:
    """Kills the first processes of this node's containers; returns how many there were."""
    run_dir, killed = daemon.config["run_dir"], 0
    launchers = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if words[0].endswith(b"skerry-spawn") and run_dir.encode() in b" ".join(words):
                    launchers.add(entry.name)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text()
                parent = stat.rpartition(")")[2].split()[1]
                if parent in launchers and (entry / "cmdline").read_bytes() == b"skerry-init\0":
                    os.kill(int(entry.name), signal.SIGKILL)
                    killed += 1
    return killed
