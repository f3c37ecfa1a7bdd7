"""A layer store on a file system that stops to answer: what waits, what goes on, what is told."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import signal
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from live_node import LiveNode
from skerry.backends.shared import proc
from skerry.errors import Fault, StorageFailed
from skerry.images.sources import debian
from skerry.spec.layers import MountMode
from skerry.testing import filesystems, rootfs
from waiting import until

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(rootfs.container_reason()), reason=str(rootfs.container_reason())),
]

CONTENT = os.urandom(3 << 20)
OPTIONS = """
collect_every_s = 0
scrub_every_s = 0
[limits]
plan_s_max = 4.0
"""


class Server:
    """The process behind the file system that the node's store is on."""

    def __init__(self, place: str) -> None:
        self.place = place
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if os.fsencode(place) in words:
                found.append(int(name))
        (self.pid,) = found

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    if reason := filesystems.missing():
        pytest.skip(reason)
    with filesystems.shim(tmp_path / "fs", 1.0) as places:
        server = Server(places[0])
        try:
            yield server
        finally:
            server.go_on()


def archive() -> io.BytesIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        info = tarfile.TarInfo("content")
        info.size = len(CONTENT)
        tar.addfile(info, io.BytesIO(CONTENT))
    out.seek(0)
    return out


async def test_what_reads_waits_and_goes_on_and_what_begins_is_told_in_bounded_time(
    server: Server,
) -> None:
    node = LiveNode(f"{server.place}/store", options=OPTIONS)
    try:
        node.start()
        base = debian.root_tar("bookworm", (), rootfs.CACHE, lambda _line: None)
        async with node.client() as client:
            await client.images.import_tar("base/debian:12", base)
            await client.images.import_tar("workspace/w", archive())
            sandbox = await client.sandboxes.create(layers=["workspace/w"])
            info = await sandbox.info()
            assert {mount.mode for mount in info.mounts} == {MountMode.TRUSTED}
            # From now on in memory, with all that its start and its word take.
            await sandbox.run("sha256sum /bin/sh")
            assert (await sandbox.run("echo here")).text == "here\n"
            server.stop()
            reading = await sandbox.start("sha256sum < /content")
            await asyncio.sleep(1.5)  # its layers are looked up again, not taken from memory
            began = time.monotonic()
            with pytest.raises(StorageFailed, match="has not answered for 4 s") as told:
                await client.sandboxes.create(layers=["workspace/w"])
            assert told.value.fault is Fault.PLATFORM
            assert time.monotonic() - began < 30
            # Who reads waits; what is in memory works, and so does the node.
            assert (await sandbox.run("echo here", timeout=20)).text == "here\n"
            assert (await client.health()).sandboxes == 1
            server.go_on()
            said = await reading.wait()
            assert said.text.split()[0] == hashlib.sha256(CONTENT).hexdigest()
            async with await client.sandboxes.create(layers=["workspace/w"]) as other:
                assert await other.files.read("/content") == CONTENT
            await sandbox.destroy()
    finally:
        server.go_on()
        left = node.stop()
    assert not left


async def test_node_ends_in_bounded_time_while_its_store_does_not_answer(server: Server) -> None:
    node = LiveNode(f"{server.place}/store", options="end_within_s = 5\n" + OPTIONS)
    try:
        node.start()
        async with node.client() as client:
            await client.images.import_tar("workspace/w", archive())
            server.stop()
            creates = [
                asyncio.create_task(client.sandboxes.create("container", image="base/none"))
                for _ in range(3)
            ]
            done, _ = await asyncio.wait(creates, timeout=30)
            assert len(done) == 3
            assert all(isinstance(one.exception(), StorageFailed) for one in done)
        os.kill(node.pid, signal.SIGTERM)
        # Three parts of an orderly end have five seconds each, threads have ten.
        await until(lambda: not proc.runs(node.pid), within_s=60)
    finally:
        server.go_on()
        left = node.stop()
    assert not left
