"""The record of a sandbox on a real node that is killed, loses its store, or finds a changed record."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from live_node import LiveNode
from skerry.errors import DiskFull, NotFound, OutcomeUnknown, SkerryError, StorageFailed
from skerry.spec.sandbox import Durability
from skerry.trajectory.format.index import decode_index, index_of
from skerry.trajectory.format.scan import scan_bytes
from soak.host import Disk
from waiting import until

pytestmark = pytest.mark.root

PROGRAM = Path(__file__).parents[1] / "killing_node.py"
OPTIONS = "[trajectory]\nseal_after_s = 0.3\n"
OP = "0123456789abcdef" * 2
SANDBOX: dict[str, Any] = {"memory": "128MiB", "pids": 64}


class Place:
    """A node that dies where it is told to, and what its store has of it."""

    def __init__(self, store: str) -> None:
        self.orders = tempfile.mkdtemp(prefix="skerry-order-")
        self.order = Path(self.orders, "order")
        program = (sys.executable, str(PROGRAM), str(self.order))
        self.node = LiveNode(store, options=OPTIONS, program=program).start()
        self.store = Path(store, "trajectories")

    @property
    def name(self) -> str:
        return Path(self.node.state, "name").read_text().strip()

    async def revived(self) -> None:
        """Returns once the node has died where it was told to, and was started again."""
        await until(lambda: not self.order.exists(), within_s=60)
        await asyncio.to_thread(self.node._process.wait, 20)
        await asyncio.to_thread(self.node.start)

    def records(self) -> list:
        """Every record in the store, in order; each segment that an index names is whole there."""
        found = []
        for path in sorted((self.store / self.name).glob("*.idx")):
            index = decode_index(path.read_bytes())
            data = path.with_suffix(".seg").read_bytes()
            assert index == index_of(self.name, index.number, data)
            for digest in index.blobs:
                blob = (self.store / "blobs" / digest).read_bytes()
                assert hashlib.sha256(blob).hexdigest() == digest
            found += [one.record for one in scan_bytes(index.number, data)]
        return found

    async def settled(self) -> None:
        """Returns once everything that was recorded so far is in the store."""
        end = await self.gauge("skerry_journal_records_total")

        async def shipped() -> bool:
            last = max((record.seq for record in self.records()), default=0)
            return last >= end

        await until(shipped, within_s=60, pause_s=0.1)

    async def gauge(self, name: str) -> float:
        text = await asyncio.to_thread(self._metrics)
        values = [line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")]
        assert len(values) == 1, name
        return float(values[0])

    def _metrics(self) -> str:
        with socket.socket(socket.AF_UNIX) as api:
            api.connect(self.node.url.removeprefix("unix://"))
            api.sendall(b"GET /v1/metrics HTTP/1.0\r\n\r\n")
            return b"".join(iter(lambda: api.recv(1 << 16), b"")).decode()

    def stop(self) -> list[str]:
        left = self.node.stop()
        self.order.unlink(missing_ok=True)
        os.rmdir(self.orders)
        return left


@pytest.fixture(scope="module")
def place(layer_store):
    made = Place(str(layer_store))
    try:
        yield made
    finally:
        left = made.stop()
    assert not left


async def mkdir(sandbox, path: str, op: str) -> None:
    """Makes a directory under an operation id; asks again while the node is away."""
    body = {"op": "mkdir", "path": path}
    await sandbox._transport.call(
        "POST", f"{sandbox._root}/files/op", body=body, params={"op": op}, repeatable=True
    )


@pytest.mark.parametrize(
    ("point", "unknown", "there"),
    [
        ("append:doing before", False, True),
        ("append:doing after", True, False),
        ("append:did before", True, True),
        ("append:did after", False, True),
    ],
)
async def test_node_killed_in_the_middle_of_a_change_of_files(place, point, unknown, there) -> None:
    async with place.node.client() as client:
        sandbox = await client.sandboxes.create("container", detached=True, **SANDBOX)
        place.order.write_text(f"{point} node")
        asked = asyncio.create_task(mkdir(sandbox, "/made", OP))
        await place.revived()
        for _ in range(2):  # what is told once is told again
            if unknown:
                with pytest.raises(OutcomeUnknown):
                    await asked
            else:
                await asked
            asked = asyncio.create_task(mkdir(sandbox, "/made", OP))
        await asyncio.wait((asked,))
        assert asked.exception() is None or unknown
        assert await sandbox.files.exists("/made") == there
        await sandbox.destroy()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["blob", "seg", "idx"])
async def test_node_killed_while_it_ships_loses_nothing_and_doubles_nothing(
    place, kind, when
) -> None:
    async with place.node.client() as client:
        sandbox = await client.sandboxes.create("container", detached=True, **SANDBOX)
        content = os.urandom(100_000)
        place.order.write_text(f"put:{kind} {when} node")
        await sandbox.files.write("/f", content)
        await place.revived()
        assert await sandbox.files.read("/f") == content
        await sandbox.destroy()
        await place.settled()
        seqs = [record.seq for record in place.records()]
        assert sorted(set(seqs)) == list(range(1, max(seqs) + 1))
        assert len(seqs) == len(set(seqs))
        assert not list(place.store.rglob(".part-*"))


async def test_node_killed_while_it_seals_goes_on_where_it_was(place) -> None:
    async with place.node.client() as client:
        sandbox = await client.sandboxes.create("container", detached=True, **SANDBOX)
        await sandbox.run("true")
        for _ in range(4):  # about when a segment is sealed
            await asyncio.sleep(0.29)
            place.node.kill()
            await asyncio.to_thread(place.node.start)
            assert (await sandbox.run("true")).ok
        await sandbox.destroy()
        await place.settled()
        seqs = [record.seq for record in place.records()]
        assert sorted(set(seqs)) == list(range(1, max(seqs) + 1))


async def test_store_that_is_gone_and_back_holds_no_sandbox_up(place) -> None:
    async with place.node.client() as client:
        sandbox = await client.sandboxes.create("container", detached=True, **SANDBOX)
        await place.settled()
        own, aside = place.store / place.name, place.store / f"aside-{place.name}"
        own.rename(aside)
        own.write_text("no directory")
        try:
            for _ in range(3):
                assert (await sandbox.run("true")).ok
                await asyncio.sleep(0.4)

            async def noticed() -> bool:
                return await place.gauge("skerry_trajectory_ship_failures_total") > 0

            await until(noticed, within_s=60)
            assert await place.gauge("skerry_trajectory_segments_waiting") > 0
        finally:
            own.unlink()
            aside.rename(own)
        await place.settled()
        await sandbox.destroy()


@pytest.mark.parametrize("part", ["seg", "blob"])
async def test_change_of_what_was_shipped_is_found(place, part) -> None:
    async with place.node.client() as client:
        sandbox = await client.sandboxes.create("container", detached=True, **SANDBOX)
        content = os.urandom(50_000)
        await sandbox.files.write("/f", content)
        await sandbox.destroy()
        await place.settled()
        url = f"/v1/trajectories/{sandbox.id}/verify"
        good = await client._transport.call("GET", url, dict)
        assert not good.get("findings"), good
        digest = hashlib.sha256(content).hexdigest()
        segments = (place.store / place.name).glob("*.seg")
        (segment,) = [path for path in segments if digest.encode() in path.read_bytes()]
        victim = segment if part == "seg" else place.store / "blobs" / digest
        data = victim.read_bytes()
        at = data.index(digest.encode()) - 20 if part == "seg" else 100
        await asyncio.to_thread(_replace, victim, data[:at] + b"\x5a" + data[at + 1 :])
        try:
            bad = await client._transport.call("GET", url, dict)
            assert bad.get("findings"), bad
        finally:
            await asyncio.to_thread(_replace, victim, data)


def _replace(path: Path, data: bytes) -> None:
    """Gives a file other bytes, and is no link to any other copy of it."""
    path.unlink()
    path.write_bytes(data)


async def test_full_local_disk_is_a_typed_error_and_nothing_is_half_recorded(layer_store) -> None:
    disk = Disk()
    try:
        node = LiveNode(str(layer_store), options=OPTIONS, below=disk.root)
        with node.running():
            async with node.client() as client:
                sandbox = await client.sandboxes.create("container", **SANDBOX)
                await sandbox.files.write("/kept", b"kept")
                disk.fill(0)
                full, done = 0, []
                for number in range(60):
                    try:
                        name = f"/f{number}"
                        await sandbox.files.write(name, os.urandom(600_000))
                    except (DiskFull, StorageFailed):
                        full += 1
                    else:
                        done.append(name)
                assert full
                disk.free()
                assert await sandbox.files.read("/kept") == b"kept"
                await sandbox.files.write("/after", b"after")
                url = f"/v1/trajectories/{sandbox.id}"
                check = await client._transport.call("GET", f"{url}/verify", dict)
                assert not check.get("findings"), check
                page = await client._transport.call("GET", f"{url}/events", dict)
                writes = [one for one in page["events"] if one["action"] == "file.write"]
                told = [one["request"]["path"] for one in writes if one.get("result") is not None]
                assert told == ["/kept", *done, "/after"]
                assert sum(one.get("error") is not None for one in writes) == full
                await sandbox.destroy()
    finally:
        disk.close()


async def test_collection_of_layers_leaves_trajectories_alone(place) -> None:
    async with place.node.client() as client:
        await place.settled()
        before = {path: path.stat().st_size for path in (place.store / place.name).glob("*.*")}
        await client._transport.call("POST", "/v1/store/collect", dict)
        after = {path: path.stat().st_size for path in (place.store / place.name).glob("*.*")}
        assert before.items() <= after.items()
        assert before


async def test_shared_record_is_in_the_store_when_the_answer_is_there(place) -> None:
    async with place.node.client() as client:
        sandbox = await client.sandboxes.create(
            "container", detached=True, durability=Durability.SHARED, **SANDBOX
        )
        await sandbox.run("echo seen")
        held = b"".join(
            path.read_bytes()
            for path in (place.store / place.name).rglob("*")
            if path.is_file() and path.suffix in {".seg", ""}
        )
        assert b"seen\n" in held
        await sandbox.destroy()
        with pytest.raises((NotFound, SkerryError)):
            await sandbox.run("true")


async def test_copy_of_a_state_directory_ships_nothing_under_its_name(layer_store, tmp_path):
    """The copy of a machine's image, say: on one host both cannot run at the same time."""
    store = shutil.copytree(layer_store, tmp_path / "store", symlinks=True)
    first, copy = (LiveNode(str(store), options=OPTIONS) for _ in range(2))

    async def works(node: LiveNode) -> None:
        async with (
            node.client() as client,
            await client.sandboxes.create(durability="shared", **SANDBOX) as sandbox,
        ):
            assert (await sandbox.run("echo kept")).text == "kept\n"

    def ends(node: LiveNode) -> None:
        assert node._process is not None
        node._process.terminate()
        assert node._process.wait(60) == 0

    try:
        first.start()
        await works(first)
        await asyncio.to_thread(ends, first)
        for name in ("name", "epoch", "journal", "trajectory"):
            source, target = Path(first.state, name), Path(copy.state, name)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
        first.start()
        await works(first)
        await asyncio.to_thread(ends, first)
        before = everything(store / "trajectories")
        copy.start()
        with pytest.raises(StorageFailed, match="was this one copied"):
            await works(copy)
        async with (
            copy.client() as client,
            await client.sandboxes.create(durability="process", **SANDBOX) as sandbox,
        ):
            assert (await sandbox.run("echo here")).text == "here\n"
        await asyncio.to_thread(ends, copy)
        assert "was this one copied" in copy.tail()
        assert everything(store / "trajectories") == before
        first.start()
        await works(first)
    finally:
        left = [*copy.stop(), *first.stop()]
    assert not left, left


def everything(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}
