"""SIGKILL at every step of what a sandbox goes through: of node, launcher, or both.

After the restart the states are true, everything can be used or deleted, and nothing is left. The
points are the records of the journal and the requests to the launcher, before, between and after.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

import pytest

from live_node import LiveNode
from skerry.cli import holdings
from skerry.errors import SkerryError
from waiting import until

pytestmark = pytest.mark.root

PROGRAM = Path(__file__).parents[1] / "killing_node.py"
ASKED = ("before", "sent", "after")
KEPT = ("before", "after")


def points(*steps: str) -> list[str]:
    """A record is there or not; a request may also have been sent and not been answered."""
    return [
        f"{step} {when}" for step in steps for when in (ASKED if step.startswith("ask:") else KEPT)
    ]


POINTS = {
    "create": points("append:began", "ask:START", "append:made"),
    "pause": points("ask:FREEZE", "append:stood"),
    "resume": points("append:stood", "ask:THAW"),
    "commit": points(
        "ask:UPPER_SNAPSHOT",
        "ask:FREEZE",
        "ask:UPPER_SNAPSHOT/2",
        "ask:THAW",
        "append:acknowledged",
        "append:packed",
        "ask:UPPER_DROP/2",
    ),
    "fork": points(
        "ask:UPPER_SNAPSHOT/2", "append:began", "ask:START", "append:made", "ask:UPPER_DROP/2"
    ),
    "stop": points("append:ending", "ask:STOP"),
    "delete": points("append:ending", "ask:STOP", "append:forgotten"),
}


class Matrix:
    """A node that dies when it is told to, and is started again."""

    def __init__(self, store: str) -> None:
        self.place = tempfile.mkdtemp(prefix="skerry-order-")
        self.order = Path(self.place, "order")
        self.node = LiveNode(store, program=(sys.executable, str(PROGRAM), str(self.order))).start()

    async def strike(self, where: str, victim: str, action):
        """Carries out the action while its death is ordered; returns what it returned or raised."""
        old = self.node.launcher()
        self.order.write_text(f"{where} {victim}")
        task = asyncio.create_task(action())
        if victim != "launcher":
            await asyncio.to_thread(self._revive, task)
        try:
            async with asyncio.timeout(60):
                return await task
        except SkerryError as error:
            return error
        finally:
            # What is done after the answer (a view that is dropped) may be where it dies.
            await until(lambda: not self.order.exists())
            if victim == "launcher":  # what is asked until the node has noticed may be refused
                await until(lambda: self.node.launcher() not in (0, old))

    def _revive(self, task) -> None:
        """Starts the node again once it is dead; the order is taken just before it dies."""
        until = time.monotonic() + 60
        while self.order.exists():
            assert not task.done() or not self.order.exists(), "the point was never reached"
            assert time.monotonic() < until, "the point was not reached in time"
            time.sleep(0.01)
        self.node._process.wait(20)
        self.node.start()

    async def sweep(self, client) -> None:
        """Everything that is there can be used or deleted, and then nothing is there."""
        assert not self.order.exists(), "the point was never reached"
        for info in await client.sandboxes.list():
            sandbox = await client.sandboxes.get(info.id)
            state = (await sandbox.info()).state
            assert state in ("running", "paused", "stopped", "failed"), state
            if state in ("running", "paused"):
                assert (await sandbox.run("echo alive")).stdout == b"alive\n"
            await sandbox.destroy()
        assert await client.sandboxes.list() == []
        for _ in range(100):
            if not self.remains():
                break
            await asyncio.sleep(0.05)
        assert not self.remains()

    def remains(self) -> list[str]:
        """What a sandbox would leave: sockets, uppers, agents and their commands."""
        launcher = self.node.launcher()
        name = Path(self.node.state, "name").read_text().strip()
        found = [*os.listdir(f"{self.node.run}/container/i")]
        try:
            uppers = os.listdir(f"/proc/{launcher}/root/upper")
        except FileNotFoundError:
            return ["nothing can be said: the next launcher is not ready"]
        found += [name for name in uppers if not name.startswith(".")]
        kinds = ("agent", "process in a sandbox")
        found += [
            thing.what
            for process in holdings._processes()
            for thing in holdings._of_process(process)
            if thing.node == name and thing.kind in kinds
        ]
        return found


@pytest.fixture(scope="module")
def matrix(layer_store):
    made = Matrix(layer_store)
    try:
        yield made
    finally:
        left = made.node.stop()
        made.order.unlink(missing_ok=True)
        os.rmdir(made.place)
    assert not left


# Both die at every point; one of them alone where the other is left with half of it.
HALF = {
    "both": ("before", "sent", "after"),
    "node": (
        "sent",
        "SNAPSHOT after",
        "append:began after",
        "append:stood after",
        "append:ending after",
        "append:acknowledged after",
        "append:packed after",
    ),
    "launcher": ("sent",),
}
CASES = [
    pytest.param(action, where, victim, id=f"{action}-{where.replace(' ', '-')}-{victim}")
    for action, wheres in POINTS.items()
    for where in wheres
    for victim, ends in HALF.items()
    if where.endswith(ends)
]


@pytest.mark.parametrize(("action", "where", "victim"), CASES)
async def test_death_at_this_point_loses_nothing_and_leaves_nothing(matrix, action, where, victim):
    async with asyncio.timeout(120), matrix.node.client() as client:
        if action == "create":
            made = await matrix.strike(where, victim, lambda: client.sandboxes.create(key="k"))
            if isinstance(made, SkerryError):
                assert made.retryable, made
            again = await client.sandboxes.create(key="k")
            assert (await again.run("echo x")).stdout == b"x\n"
            assert len(await client.sandboxes.list()) == 1
        else:
            sandbox = await client.sandboxes.create()
            await sandbox.run("echo kept > /root/file")
            if action == "resume":
                await sandbox.pause()
            name = f"workspace/killed-{os.urandom(4).hex()}"
            do = {
                "pause": sandbox.pause,
                "resume": sandbox.resume,
                "commit": lambda: sandbox.commit(name),
                "fork": lambda: sandbox.fork(2, key="forks"),
                "stop": sandbox.stop,
                "delete": sandbox.destroy,
            }[action]
            said = await matrix.strike(where, victim, do)
            if isinstance(said, SkerryError):
                assert said.fault == "platform" or said.code == "sandbox_failed", said
            if action == "stop":
                assert (await sandbox.info()).state in ("stopped", "failed")
            elif action == "delete":
                await sandbox.destroy()
            else:
                if action == "pause" and not isinstance(said, SkerryError):
                    assert (await sandbox.info()).state == "paused"
                assert await sandbox.files.read("/root/file") == b"kept\n"
            if action == "fork":
                forks = said if isinstance(said, list) else await sandbox.fork(2, key="forks")
                assert len({fork.id for fork in forks}) == 2
                for fork in forks:
                    assert await fork.files.read("/root/file") == b"kept\n"
                assert len(await client.sandboxes.list()) == 3
            if action == "commit":
                if not isinstance(said, SkerryError):  # then it was acknowledged, or asked again
                    assert said.name == f"{name}:latest"
                again = await sandbox.commit(f"{name}-again")
                assert again.size_bytes > 0
                for made in (name, f"{name}-again"):
                    if made in [
                        layer.name.partition(":")[0] for layer in await client.images.list()
                    ]:
                        await client.images.remove(made)
        await matrix.sweep(client)
