"""Forwards both ways of a real sandbox, from the SDK's two faces and the command line."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import urllib.request

import pytest

from live_node import LiveNode
from skerry import connect
from skerry.errors import PortRefused, SkerryError

pytestmark = pytest.mark.root

SITE = "mkdir -p /srv && echo 'hello from inside' > /srv/index.html"
SERVER = (
    "cd /srv && python3 -u -m http.server --bind 127.0.0.1 8000 >/tmp/log 2>&1 & "
    "until grep -q ':1F40 ' /proc/net/tcp; do sleep 0.02; done"
)


async def with_server(sandbox) -> None:
    for line in (SITE, SERVER):
        assert (await sandbox.run(line, timeout=30)).ok


def fetch(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as answer:
        return answer.read()


async def test_web_server_inside_is_reached_by_a_browser_of_this_side(node_client) -> None:
    async with await node_client.sandboxes.create() as sandbox:
        with pytest.raises(PortRefused, match="nothing listens on port 8000"):
            async with sandbox.connect(8000):
                pass
        await with_server(sandbox)
        async with sandbox.forward(8000) as where:
            pages = await asyncio.gather(
                *(asyncio.to_thread(fetch, where.port) for _ in range(100))
            )
        assert set(pages) == {b"hello from inside\n"}


async def test_gigabytes_would_fit_what_a_slow_reader_takes_is_what_is_sent(node_client) -> None:
    """A reader here that does not read stops the writer inside: nothing in between grows."""
    writer = (
        "import socket; s = socket.create_server(('::1', 9000), family=socket.AF_INET6); "
        "print('ready', flush=True); c = s.accept()[0]; n = 0\n"
        "while n < 64 << 20: n += c.send(bytes(1 << 16)); open('/tmp/sent', 'w').write(str(n))\n"
    )
    async with await node_client.sandboxes.create() as sandbox:
        async with sandbox.attach(["python3", "-c", writer]) as live:
            events = aiter(live)
            while (await anext(events)).stdout != b"ready\n":
                pass
            async with sandbox.connect(9000) as raw:
                total = len(await raw.read())
                seen = -1
                while (now := int(await sandbox.files.read_text("/tmp/sent") or 0)) != seen:
                    seen = now
                    await asyncio.sleep(0.3)
                assert seen < 32 << 20
                while data := await raw.read():
                    total += len(data)
        assert total == 64 << 20


async def test_sync_face_forwards_both_ways(live_node) -> None:
    def work() -> None:
        with connect(live_node.url) as client, client.sandboxes.create() as sandbox:
            assert sandbox.run(SITE).ok
            assert sandbox.run(SERVER, timeout=30).ok
            with sandbox.forward(8000) as where:
                assert fetch(where.port) == b"hello from inside\n"
                with sandbox.reverse_forward(81, "127.0.0.1", where.port):
                    script = (
                        "import urllib.request as u; print(u.urlopen('http://127.0.0.1:81').read())"
                    )
                    assert "hello from inside" in sandbox.run(["python3", "-c", script]).text
            with sandbox.connect(8000) as raw:
                raw.write(b"GET / HTTP/1.0\r\n\r\n")
                raw.write_eof()
                answer = b""
                while data := raw.read():
                    answer += data
            assert answer.endswith(b"hello from inside\n")

    await asyncio.to_thread(work)


async def test_node_that_was_killed_forwards_new_connections_and_the_old_one_is_told(
    layer_store,
) -> None:
    node = LiveNode(layer_store).start()
    try:
        async with node.client() as client:
            sandbox = await client.sandboxes.create(detached=True)
            await with_server(sandbox)
            async with sandbox.forward(8000) as where:
                assert await asyncio.to_thread(fetch, where.port) == b"hello from inside\n"
                async with contextlib.AsyncExitStack() as stack:
                    raw = await stack.enter_async_context(sandbox.connect(8000))
                    node.kill()
                    with pytest.raises(SkerryError):
                        await raw.read()
                node.start()
                assert await asyncio.to_thread(fetch, where.port) == b"hello from inside\n"
            await sandbox.destroy()
    finally:
        left = node.stop()
    assert not left


async def test_reverse_forward_is_opened_again_after_the_node_was_killed(layer_store) -> None:
    node = LiveNode(layer_store).start()
    try:
        async with node.client() as client:
            sandbox = await client.sandboxes.create(detached=True)
            await with_server(sandbox)
            script = (
                "import time, urllib.request as u\n"
                "for _ in range(200):\n"
                "    try: print(u.urlopen('http://127.0.0.1:83', timeout=5).read()); break\n"
                "    except OSError: time.sleep(0.1)\n"
            )
            async with (
                sandbox.forward(8000) as where,
                sandbox.reverse_forward(83, "127.0.0.1", where.port),
            ):
                for kill in (False, True):
                    if kill:
                        node.kill()
                        node.start()
                    result = await sandbox.run(["python3", "-c", script], timeout=60)
                    assert "hello from inside" in result.text, result
            await sandbox.destroy()
    finally:
        node.stop()


async def test_command_line_forwards_until_it_is_interrupted(live_node, node_client) -> None:
    async with await node_client.sandboxes.create() as sandbox:
        await with_server(sandbox)
        argv = [sys.executable, "-m", "skerry.cli.main", "--url", live_node.url, "forward"]
        with subprocess.Popen([*argv, sandbox.id, "8000"], stdout=subprocess.PIPE) as process:  # noqa: ASYNC220
            assert process.stdout is not None
            line = (await asyncio.to_thread(process.stdout.readline)).decode()
            here, arrow, there = line.split()
            assert (arrow, there) == ("->", f"{sandbox.id}:8000")
            port = int(here.rpartition(":")[2])
            assert await asyncio.to_thread(fetch, port) == b"hello from inside\n"
            reverse = [*argv, "-R", sandbox.id, f"82:{port}"]
            with subprocess.Popen(reverse, stdout=subprocess.PIPE) as other:  # noqa: ASYNC220
                assert other.stdout is not None
                assert b":82 -> " in await asyncio.to_thread(other.stdout.readline)
                script = (
                    "import urllib.request as u; print(u.urlopen('http://127.0.0.1:82').read())"
                )
                assert "hello from" in (await sandbox.run(["python3", "-c", script])).text
                other.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGINT)
        assert (process.returncode, other.returncode) == (130, 130)
