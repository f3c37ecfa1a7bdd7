"""A node whose layers lie in a bucket: made there, listed, collected; the store away, slow, and back."""

from __future__ import annotations

import io
import random
import re
import socket
import tarfile
from pathlib import Path

import pytest

from live_node import LiveNode
from s3_place import s3_options
from skerry.errors import StorageFailed
from skerry.images.archives.tarimport import ImportLimits
from skerry.images.format.chunks import CHUNK_BYTES, Codec
from skerry.images.objects.s3 import S3Objects
from skerry.images.scratch import Spool, scratch_directory
from skerry.images.store.blobread import BlobReader, fetch_list
from skerry.images.store.keys import blob
from skerry.images.store.local import LocalLayers
from skerry.images.store.opened import read_layer
from skerry.images.store.store import LIST, SUFFIXES, LayerStore
from skerry.testing.link import Fault
from skerry.testing.rootfs import container_reason

pytestmark = pytest.mark.skipif(bool(container_reason()), reason=str(container_reason()))

FILES = {f"srv/data-{number}": random.Random(number).randbytes(700_000) for number in range(4)}


def archive() -> io.BytesIO:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, content in FILES.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    made.seek(0)
    return made


def node_options(objects: S3Objects) -> str:
    """The lines of a node's configuration for that bucket."""
    given = objects.options
    table = {"endpoint": given.endpoint, "access_key": given.access_key,
             "secret_key": given.secret_key}  # fmt: skip
    words = [f'{name} = "{value}"' for name, value in table.items()]
    words += [f"timeout_s = {given.timeout_s}", f"patience_s = {given.patience_s}"]
    return "\n".join([f'store = "{objects.where}"', "collect_every_s = 0", "[s3]", *words])


def counted(node: LiveNode, name: str) -> float:
    """One value of the node's metrics."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(node.url.removeprefix("unix://"))
        client.sendall(b"GET /v1/metrics HTTP/1.0\r\n\r\n")
        page = b"".join(iter(lambda: client.recv(65_536), b"")).decode()
    found = re.search(rf"^skerry_{name} ([0-9.e+]+)$", page, re.MULTILINE)
    assert found, page
    return float(found[1])


@pytest.fixture
def objects(s3_server, s3_link, tmp_path: Path) -> S3Objects:
    options = s3_options(s3_server, tmp_path, endpoint=s3_link.endpoint, timeout_s=2, patience_s=8)
    return S3Objects(f"s3://{s3_server.bucket}/{tmp_path.name}", options)


@pytest.fixture
def node(objects: S3Objects):
    with LiveNode(store="", options=node_options(objects)).running() as node:
        yield node


async def test_imported_layer_lies_in_the_bucket_and_not_on_the_node(
    node: LiveNode, objects: S3Objects, s3_link
) -> None:
    s3_link.faults(Fault("status", times=3, share=0.2), Fault("cut", times=2, share=0.1))
    async with node.client() as client:
        made = await client.images.import_tar("workspace/one", archive())
        assert [one.name for one in await client.images.list()] == ["workspace/one:latest"]
    s3_link.faults()
    assert made.data_digest is not None
    assert objects.stat(blob(made.digest)) is not None
    chunks = fetch_list(objects, blob(made.data_digest, LIST), made.data_digest)
    reader = BlobReader(objects, blob(made.data_digest, SUFFIXES[chunks.codec]), chunks)
    data = reader.read(0, chunks.size)
    assert all(content in data for content in FILES.values())
    assert (chunks.codec, made.data_codec) == (Codec.ZSTD, "zstd")
    big = [path for path in Path(node.state).rglob("*") if path.is_file()]
    assert sum(path.stat().st_blocks * 512 for path in big if "uppers" not in path.name) < 1 << 20


async def test_metadata_and_data_that_come_damaged_are_fetched_again(
    node: LiveNode, objects: S3Objects, s3_link, tmp_path: Path
) -> None:
    async with node.client() as client:
        made = await client.images.import_tar("workspace/one", archive())
    store = LayerStore(objects)
    local = LocalLayers(str(tmp_path / "layers"))
    digest = str(made.data_digest)
    s3_link.faults(Fault("flip", match="^GET .*/blobs/", after=100, times=1))
    local.metadata(made, lambda: store.pieces(made.digest))
    s3_link.faults(Fault("flip", match="^GET .*/blobs/", after=100, times=1))
    local.chunk_list(digest, lambda: store.chunk_list(digest))
    assert s3_link.counts().injected["flip"] == 2
    s3_link.faults(Fault("flip", after=2000, share=0.3))
    with scratch_directory(str(tmp_path / "scratch")) as scratch:
        spool = Spool(scratch)
        tree = read_layer(store, made, scratch, spool, ImportLimits())
        seen = {
            entry.path.decode(): b"".join(entry.data())
            for entry in tree.entries(spool)
            if entry.data is not None
        }
        spool.close()
    assert seen == FILES


async def test_damage_in_the_bucket_is_found_and_mended(node: LiveNode, objects: S3Objects) -> None:
    async with node.client() as client:
        made = await client.images.import_tar("workspace/one", archive())
        assert (await client.images.verify("workspace/one")).damage == ()
        key = blob(str(made.data_digest), SUFFIXES[Codec(made.data_codec)])
        whole = objects.get(key, 1 << 24)
        assert whole is not None
        at = whole.index(FILES["srv/data-1"][:4096]) + 100
        objects.put_bytes(key, whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :], replace=True)
        (damage,) = (await client.images.verify("workspace/one", remove_damaged=True)).damage
        assert damage.chunks == (at // CHUNK_BYTES,)
        assert "/srv/data-1" in damage.files
        again = await client.images.import_tar("workspace/one", archive())
        assert again.digest == made.digest
        assert (await client.images.verify("workspace/one")).damage == ()
    assert objects.get(key, 1 << 24) == whole


async def test_layers_of_the_bucket_are_collapsed_there(node: LiveNode, objects: S3Objects) -> None:
    async with node.client() as client:
        await client.images.import_tar("workspace/one", archive())
        await client.images.import_tar("workspace/two", archive())
        made = await client.images.collapse(["workspace/one", "workspace/two"], "workspace/both")
        assert (await client.images.verify("workspace/both")).damage == ()
    assert objects.stat(blob(made.digest)) is not None


async def test_removed_layer_leaves_the_bucket(node: LiveNode, objects: S3Objects) -> None:
    async with node.client() as client:
        await client.images.import_tar("workspace/one", archive())
        await client.images.remove("workspace/one")
        assert await client.images.list() == []
    assert list(objects.list("tags/")) == []


async def test_store_that_is_away_is_the_platforms_fault_and_comes_back(
    node: LiveNode, s3_link
) -> None:
    async with node.client() as client:
        await client.images.import_tar("workspace/one", archive())
        s3_link.leave()
        with pytest.raises(StorageFailed, match="nothing answers") as caught:
            await client.images.list()
        assert caught.value.fields["reason"] == "unreachable"
        assert caught.value.retryable
        s3_link.come_back()
        assert len(await client.images.list()) == 1
    assert counted(node, "store_failures_total") >= 1
    assert counted(node, "store_repeats_total") >= 3


async def test_node_starts_and_ends_while_its_store_is_away(objects: S3Objects, s3_link) -> None:
    """A node that could not would lose its sandboxes with the store."""
    node = LiveNode(store="", options=node_options(objects))
    s3_link.leave()
    with node.running():
        async with node.client() as client:
            assert (await client.health()).node
            with pytest.raises(StorageFailed):
                await client.images.list()
            s3_link.come_back()
            assert await client.images.list() == []
        s3_link.leave()
    s3_link.come_back()


async def test_secrets_stand_in_no_log_of_the_node(objects: S3Objects, s3_server, s3_link) -> None:
    node = LiveNode(store="", options=node_options(objects))
    with node.running():
        async with node.client() as client:
            s3_link.faults(Fault("status", status=403, code="SignatureDoesNotMatch"))
            with pytest.raises(StorageFailed, match="does not accept") as caught:
                await client.images.list()
        log = Path(node.log).read_text()
    assert s3_server.keys.secret not in log + str(caught.value) + repr(caught.value.fields)


def test_node_with_a_secret_that_is_not_there_does_not_start(objects: S3Objects) -> None:
    options = node_options(objects).replace(objects.options.secret_key, "env:NOT_SET_HERE")
    node = LiveNode(store="", options=options)
    with pytest.raises(AssertionError, match="env:NOT_SET_HERE is not set"):
        node.start()
    node.stop()
