"""Python in a sandbox, for a harness that needs a newer one than this machine has (decision 26).

An environment of this kind has a `bin/python` that is this program: it runs pytest in a sandbox of a
newer Debian suite, where the harness is installed in a layer. From there the harness talks to the same
node as all others, over a socket: a port inside that leads to it. Tests that kill a node are left out,
as a sandbox cannot start one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import skerry
from interop.tools import ROOT, Tool, tools

SUITE, VERSION = "trixie", "3.13"
IMAGE = f"base/interop-{SUITE}"
# As in node.py, and what makes an environment.
PACKAGES = (
    *("python3", "python3-venv", "python3-pytest", "python-is-python3"),
    *("adduser", "ca-certificates", "curl", "git", "procps", "tmux"),
)
PLACE = "/opt/harness"
PORT = 7070
INSTALL_TIMEOUT_S = 1200.0
ENDS_S = 60.0
UPLOADED = ("src", "interop", "docs", "examples")


def program(tool: Tool, cache: Path) -> Path:
    """Returns a `python` for the tool, which this module is; nothing is installed before it runs."""
    key = hashlib.sha256(f"{ROOT}\n".encode() + (tool.place / "lock.txt").read_bytes()).hexdigest()
    path = cache / f"{tool.name}-inside-{key[:16]}" / "bin" / "python"
    path.parent.mkdir(parents=True, exist_ok=True)
    line = f'exec {sys.executable} -m interop.inside {tool.name} "$@"'
    path.write_text(f"#!/bin/sh\nPYTHONPATH={ROOT}/src:{ROOT} {line}\n")
    path.chmod(0o755)
    return path


def main(name: str, *argv: str) -> int:
    """Runs `python ARGV` in a sandbox; what it reports (--junitxml) is there afterwards."""
    (tool,) = tools((name,))
    url = os.environ["SKERRY_URL"]
    with skerry.connect(url) as client, _reachable(url) as port:
        layer = _installed(client, tool)
        options = {"image": IMAGE, "layers": [layer], "cpu": 2, "memory": "3GiB", "pids": 4096}
        with client.sandboxes.create(**options, ttl=3600, labels={"job": "interop"}) as sandbox:
            for part in UPLOADED:
                sandbox.files.upload(ROOT / part, f"{ROOT}/{part}")
            sandbox.files.mkdir(os.getcwd(), parents=True)
            with sandbox.reverse_forward(PORT, "127.0.0.1", port):
                status = _run(sandbox, [f"{PLACE}/bin/python", *argv, "-m", "not own_node"])
            for word in argv:
                if word.startswith("--junitxml="):
                    report = word.partition("=")[2]
                    with contextlib.suppress(skerry.NotFound):
                        sandbox.files.download(report, report)
    return status


def _run(sandbox: skerry.Sandbox, argv: list[str]) -> int:
    """Passes output on as it comes; an interrupt is one for the tests, which clean up then."""
    env = {
        "SKERRY_URL": f"http://127.0.0.1:{PORT}",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "PATH": f"{PLACE}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        **{
            name: os.environ[name]
            for name in ("INTEROP_IMAGE", "INTEROP_BACKEND")
            if name in os.environ
        },
    }
    command = sandbox.start(argv, env=env, cwd=os.getcwd(), merge_stderr=True)
    try:
        for event in command.output():
            sys.stdout.buffer.write(event.stdout or b"")
            sys.stdout.flush()
    except KeyboardInterrupt:
        command.signal(signal.SIGINT)
    result = command.wait(ENDS_S)
    return 1 if result.exit_code is None else result.exit_code


def _installed(client: skerry.Client, tool: Tool) -> str:
    """Returns the layer with the tool's locked versions, made once.

    They are fetched here, where pip is set up for it: an index may be one that no sandbox reaches.
    """
    lock = tool.place / "lock.txt"
    layer = f"workspace/interop-{tool.name}:{hashlib.sha256(lock.read_bytes()).hexdigest()[:16]}"
    client.images.debian(IMAGE, SUITE, PACKAGES)
    if layer in {one.name for one in client.images.list()}:
        return layer
    with tempfile.TemporaryDirectory(prefix="skerry-interop-", dir="/var/tmp") as wheels:
        fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
        fetch += ["--python-version", VERSION, "-d", wheels, "-r", str(lock)]
        subprocess.run(fetch, check=True, timeout=INSTALL_TIMEOUT_S)
        shutil.copy2(lock, wheels)
        install = f"{PLACE}/bin/pip install -q --no-index --no-deps -f . -r lock.txt"
        client.images.build(
            layer,
            image=IMAGE,
            context=wheels,
            steps=[f"python3 -m venv {PLACE}", install],
            memory="3GiB",
            timeout=INSTALL_TIMEOUT_S,
        )
    return layer


@contextlib.contextmanager
def _reachable(url: str) -> Iterator[int]:
    """Gives a port of this machine's loopback that leads to the node's unix socket."""
    path = url.removeprefix("unix://")
    loop = asyncio.new_event_loop()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            back, forth = await asyncio.open_unix_connection(path)
            await asyncio.gather(copy(reader, forth), copy(back, writer))

    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
