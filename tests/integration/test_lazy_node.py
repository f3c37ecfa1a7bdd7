"""A node whose layers are mounted verified: read by the chunk, through processes that may die.

What is promised: only what a sandbox touches is fetched; reads under way survive the death of the
process that serves them, and of the node; no sandbox's end waits for a read that nobody answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest

from live_node import LiveNode
from skerry.spec.layers import MountMode
from skerry.testing.rootfs import container_reason
from waiting import until

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(container_reason()), reason=str(container_reason())),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="there is no /dev/fuse"),
]

OPTIONS = """
mounts = "verified"
[lazy]
disk_free_min_bytes = 0
[lazy.fetch]
wait_s = 5.0
[lazy.server]
request_timeout_s = 60
"""


@pytest.fixture
def node(layer_store):
    with LiveNode(layer_store, options=OPTIONS).running() as node:
        yield node


def blobs_pid(node: LiveNode) -> int:
    """Returns the process that serves the node's blobs."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                comm = Path(f"/proc/{name}/comm").read_text()
                files = {os.readlink(one) for one in Path(f"/proc/{name}/fd").iterdir()}
            except OSError:
                continue
            if comm == "skerry-blobs\n" and f"{node.state}/chunks" in files:
                return int(name)
    return 0


def cached_bytes(node: LiveNode) -> int:
    """Returns what lies in the chunk cache."""
    files = [path for path in Path(node.state, "chunks").iterdir() if len(path.name) == 64]
    return sum(path.stat().st_blocks * 512 for path in files)


# Reads all that is below some directories, each time from the file system below.
READ = """
import hashlib, os, sys
for n in range(int(sys.argv[1])):
    found = hashlib.sha256()
    for top, names, files in (step for root in sys.argv[2:] for step in os.walk(root)):
        names.sort()
        for name in sorted(files):
            path = os.path.join(top, name)
            if os.path.isfile(path) and not os.path.islink(path):
                with open(path, 'rb', buffering=0) as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                    found.update(file.read())
    print(found.hexdigest(), flush=True)
"""


def reading(times: int, *roots: str) -> list[str]:
    return ["python3", "-c", READ, str(times), *(roots or ("/usr/lib", "/usr/share"))]


async def test_a_sandbox_on_a_lazily_read_layer_fetches_what_it_touches(node: LiveNode) -> None:
    async with node.client() as client:
        async with await client.sandboxes.create() as sandbox:
            said = await sandbox.run(["python3", "-c", "import json; print(json.dumps([1]))"])
            assert (said.exit_code, said.stdout) == (0, b"[1]\n"), said.stderr
            info = await sandbox.info()
            assert {mount.mode for mount in info.mounts} == {MountMode.VERIFIED}
            layer = (await client.images.list())[0]
            cached = cached_bytes(node)
            assert 0 < cached < layer.data_bytes / 3, (cached, layer.data_bytes)
        status = Path(f"/proc/{blobs_pid(node)}/status").read_text()
        assert "Uid:\t2999999999\t2999999999" in status
        assert int(status.split("CapEff:\t")[1].split()[0], 16) == 1 << 2
        assert int(status.split("VmRSS:")[1].split()[0]) < 120_000


async def test_reads_go_on_when_the_process_is_killed_again_and_again(
    node: LiveNode, node_client
) -> None:
    async with await node_client.sandboxes.create() as trusted:
        wanted = (await trusted.run(reading(1))).stdout
    async with node.client() as client, await client.sandboxes.create() as sandbox:
        running = asyncio.create_task(sandbox.run(reading(6), timeout=120))
        killed: set[int] = set()
        while len(killed) < 4 and not running.done():
            pid = blobs_pid(node)
            if pid and pid not in killed:
                await asyncio.sleep(0.3)
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            await asyncio.sleep(0.05)
        assert len(killed) == 4
        assert not running.done()
        said = await running
        assert (said.exit_code, said.stdout) == (0, wanted * 6), said.stderr
        await until(lambda: blobs_pid(node) not in {0, *killed})


async def test_reads_go_on_when_the_node_dies_with_the_process(node: LiveNode, node_client) -> None:
    async with await node_client.sandboxes.create() as trusted:
        wanted = (await trusted.run(reading(1))).stdout
    async with node.client() as client:
        sandbox = await client.sandboxes.create()
        operation = await sandbox.start(reading(3), timeout=120)
        await asyncio.sleep(0.5)
        serving = blobs_pid(node)
        node.kill()
        try:
            os.kill(serving, signal.SIGKILL)
            await asyncio.sleep(1.0)  # by now the command waits for bytes that nobody brings
            assert blobs_pid(node) == 0
        finally:
            node.start()
        said = await operation.wait()
        assert (said.exit_code, said.stdout) == (0, wanted * 3), said.stderr
        await sandbox.destroy()


async def test_the_session_outlives_the_launcher_and_then_the_process(node: LiveNode) -> None:
    async with node.client() as client, await client.sandboxes.create() as sandbox:
        old = node.launcher()
        os.kill(old, signal.SIGKILL)
        await until(lambda: node.launcher() not in (0, old))
        async with await client.sandboxes.create() as other:  # the launcher is back
            first = blobs_pid(node)
            os.kill(first, signal.SIGKILL)
            await until(lambda: blobs_pid(node) not in (0, first))
            for one in (sandbox, other):
                said = await one.run(["python3", "-c", "import xml.dom.minidom; print(7)"])
                assert (said.exit_code, said.stdout) == (0, b"7\n"), said.stderr


async def test_no_end_waits_for_a_read_that_nobody_answers(node: LiveNode) -> None:
    """Seconds later another process takes the place of the one that hangs, and would answer.

    On a busy machine an end may last as long as that by itself, but not each time.
    """
    for _ in range(5):
        async with node.client() as client:
            sandbox = await client.sandboxes.create()
            await sandbox.run("true")
            pid = blobs_pid(node)
            os.kill(pid, signal.SIGSTOP)
            try:
                await sandbox.start(reading(1))
                await asyncio.sleep(0.7)
                await sandbox.destroy()
                if blobs_pid(node) == pid:
                    return
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            await until(lambda old=pid: blobs_pid(node) not in (0, old))
    pytest.fail("each end waited until somebody answered")


async def test_a_process_that_hangs_is_replaced(node: LiveNode) -> None:
    async with node.client() as client, await client.sandboxes.create() as sandbox:
        pid = blobs_pid(node)
        os.kill(pid, signal.SIGSTOP)
        said = await sandbox.run(["python3", "-c", "import email.parser; print(3)"], timeout=60)
        assert (said.exit_code, said.stdout) == (0, b"3\n"), said.stderr
        assert blobs_pid(node) not in (0, pid)


async def counted(node: LiveNode, name: str, prefix: str = "blobs") -> float:
    """Returns what the node's metrics say."""
    reader, writer = await asyncio.open_unix_connection(f"{node.run}/node.sock")
    writer.write(b"GET /v1/metrics HTTP/1.0\r\n\r\n")
    page = (await reader.read()).decode()
    writer.close()
    lines = [line for line in page.splitlines() if line.startswith(f"skerry_{prefix}_{name} ")]
    return float(lines[0].split()[1]) if lines else 0.0


async def test_what_a_first_run_touches_is_there_at_the_first_run_on_another_node(
    layer_store,
) -> None:
    options = f"{OPTIONS}\n[lazy.profile]\nrecord_s = 1.0\n"
    command = ["python3", "-c", "import email.parser; print(3)"]

    def profiles() -> list[Path]:
        return list(Path(layer_store).glob("blobs/sha256/*/*.profile"))

    for path in profiles():
        path.unlink()
    with LiveNode(layer_store, options=options).running() as node:
        async with node.client() as client, await client.sandboxes.create() as sandbox:
            assert (await sandbox.run(command)).exit_code == 0
            await until(lambda: len(profiles()) == 1, 30)
            await asyncio.sleep(2.5)  # until the node has asked the process again
            fetched = await counted(node, "fetched_chunks_total")
            assert fetched > 0
    with LiveNode(layer_store, options=options).running() as node:
        async with node.client() as client, await client.sandboxes.create() as sandbox:
            assert (await sandbox.run(command)).exit_code == 0
            await until(lambda: counted(node, "prefetched_chunks_total"))
            await asyncio.sleep(2.5)  # until the node has asked the process again
            assert await counted(node, "fetched_chunks_total") <= fetched * 1.5
            assert await counted(node, "faults_total") == 0
    for path in profiles():
        path.unlink()
