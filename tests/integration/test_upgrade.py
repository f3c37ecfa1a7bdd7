"""An upgrade under live sandboxes: other binaries, another version, and everything goes on."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from live_node import LiveNode
from skerry.backends.shared import binaries
from skerry.spec.sandbox import State

pytestmark = pytest.mark.root

PROGRAM = Path(__file__).parents[1] / "versioned_node.py"
COUNTING = "i=0; while [ $i -lt 60 ]; do echo $i; i=$((i + 1)); sleep 0.1; done"


def digest(pid: int) -> bytes:
    return Path(f"/proc/{pid}/exe").read_bytes()[-16:]


def keep_on_exit(node: LiveNode, keep: bool) -> None:
    lines = node._config.read_text().splitlines()
    lines = [line for line in lines if not line.startswith("keep_on_exit")]
    node._config.write_text("\n".join([f"keep_on_exit = {str(keep).lower()}", *lines]) + "\n")


@pytest.fixture
def release():
    """A directory of native programs: as built, or of another build (bytes behind the image)."""
    place = Path(tempfile.mkdtemp(prefix="skerry-release-"))

    def make(build: bytes) -> Path:
        for name in ("skerry-spawn", "skerry-init"):
            target = place / name
            # Put in place by a rename: a running program keeps the file that it was started from.
            fresh = place / f"{name}.new"
            fresh.write_bytes(binaries.find(name).read_bytes() + build.ljust(16, b"."))
            fresh.chmod(0o755)
            fresh.rename(target)
        return place

    yield make
    shutil.rmtree(place)


@pytest.mark.parametrize("crash", [False, True], ids=["in-order", "node-and-launcher-killed"])
async def test_running_and_paused_sandboxes_go_on_under_new_binaries(layer_store, release, crash):
    place = release(b"old")
    version = place / "version"
    version.write_text("1.0.0")
    program = (sys.executable, str(PROGRAM), str(place), str(version))
    node = LiveNode(layer_store, program=program)
    keep_on_exit(node, True)
    node.start()
    try:
        async with node.client() as client:
            assert (await client.health()).version == "1.0.0"
            busy = await client.sandboxes.create(key="busy")
            still = await client.sandboxes.create(key="still")
            await still.run("echo kept > /root/file; nohup sleep 1000 >/dev/null 2>&1 &")
            await still.pause()
            running = asyncio.create_task(busy.run(COUNTING, op_id="c1" * 16))
            await asyncio.sleep(0.5)
            old = node.launcher()
            assert digest(old).startswith(b"old")
            release(b"new")
            version.write_text("1.1.0")
            if crash:
                os.kill(old, signal.SIGKILL)
                node.kill()
            else:
                os.kill(node.pid, signal.SIGTERM)
                await asyncio.to_thread(node._process.wait, 60)
            await asyncio.to_thread(node.start)
            # the same client, which has asked again meanwhile
            assert (await client.health()).version == "1.1.0"
            assert (await still.info()).state is State.PAUSED
            fresh = await client.sandboxes.create()
            assert (await fresh.run("echo new")).stdout == b"new\n"
            result = await asyncio.wait_for(running, 60)
            assert [int(line) for line in result.stdout.split()] == list(range(60))
            assert await client.sandboxes.create(key="busy") is not None
            assert (await still.run("cat /root/file; pgrep -c sleep || true")).text.startswith(
                "kept"
            )
            # the launcher is exchanged as soon as it ends, with everything alive
            if not crash:
                assert node.launcher() == old
                os.kill(old, signal.SIGKILL)
                assert (await busy.run("echo again")).stdout == b"again\n"
            # commands need no launcher, so nothing above waited for the next one
            async with asyncio.timeout(30):
                while node.launcher() in {0, old}:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.05)
            assert digest(node.launcher()).startswith(b"new")
            assert len(await client.sandboxes.list(state="running")) == 3
            await client.sandboxes.destroy_many([busy, still, fresh])
    finally:
        node.kill()
        keep_on_exit(node, False)
        node.start()
        left = node.stop()
    assert not left
