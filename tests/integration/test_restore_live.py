"""Commits restored on another node: at once, by the chunk, whatever became of the names below."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from live_node import LiveNode
from s3_place import s3_options
from skerry.errors import InvalidRequest, LayerDamaged, NotFound
from skerry.images.format.chunks import CHUNK_BYTES, decode_list
from skerry.images.objects.s3 import S3Objects
from skerry.images.store.store import LayerStore
from skerry.spec.layers import MountMode
from skerry.testing.rootfs import container_reason

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(container_reason()), reason=str(container_reason())),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="there is no /dev/fuse"),
]

MIB = 1 << 20
# All that a sandbox shows of its disk: names, kinds, owners, modes, sizes, contents.
TREE = (
    "cd / && find . -xdev ! -path './proc*' ! -path './dev*' ! -path './sys*' ! -path './run*' "
    "! -path './tmp*' \\( -type d -printf '%p %y %m %U %G\\n' -o -printf '%p %y %m %U %G %s %n %l\\n' "
    "\\) | LC_ALL=C sort && "
    "find srv opt etc home -xdev -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum"
)


def cached_bytes(node: LiveNode) -> int:
    """Returns what lies in a node's chunk cache."""
    files = [path for path in Path(node.state, "chunks").iterdir() if len(path.name) == 64]
    return sum(path.stat().st_blocks * 512 for path in files)


async def shown(sandbox) -> list[bytes]:
    """Returns what a sandbox shows of its disk, a line each."""
    told = await sandbox.run(TREE, timeout=300, output_limit=64 * MIB)
    assert told.ok, told.stderr
    assert not told.truncated
    return told.stdout.splitlines()


async def test_restore_on_another_node_of_a_directory_shows_the_same_and_reads_what_it_needs(
    layer_store,
) -> None:
    options = 'mounts = "verified"'
    with LiveNode(layer_store, options=options).running() as one:
        async with one.client() as client:
            sandbox = await client.sandboxes.create(env={"A": "1"})
            made = await sandbox.run(
                "useradd -m bob && mkdir -p /srv/d && head -c 64M /dev/urandom > /srv/d/random &&"
                " echo few > /srv/few && chown bob /srv/few && ln /srv/few /srv/again &&"
                " cp /bin/dash /srv/suid && chmod 4755 /srv/suid && rm -r /usr/share/doc /etc/motd"
            )
            assert made.ok, made
            layer = await sandbox.commit("workspace/moved", scrub=[])
            before = await shown(sandbox)
            await sandbox.destroy()
    assert layer.data_bytes >= 64 * MIB
    with LiveNode(layer_store, options=options).running() as two:
        async with two.client() as client:
            made = await client.sandboxes.restore("workspace/moved", memory="512MiB")
            info = await made.info()
            assert info.restored == f"workspace/moved:latest@{layer.digest}"
            assert info.digests == (*layer.parents, layer.digest)
            assert {one.mode for one in info.mounts} == {MountMode.VERIFIED}
            assert (await made.run("cat /srv/few")).stdout == b"few\n"
            whole = layer.data_bytes + (await client.images.inspect("debian:12")).data_bytes
            assert 0 < cached_bytes(two) < whole / 4  # with what first runs before had touched
            assert await shown(made) == before
            assert cached_bytes(two) > 64 * MIB  # now it has all been read, through the cache
            await made.destroy()
            await client.images.remove("workspace/moved")


@pytest.fixture
def objects(s3_server, s3_link, tmp_path: Path) -> S3Objects:
    made = s3_options(s3_server, tmp_path, endpoint=s3_link.endpoint)
    return S3Objects(f"s3://{s3_server.bucket}/{tmp_path.name}", made)


def bucket(objects: S3Objects) -> str:
    """The lines of a node's configuration for that bucket."""
    given = objects.options
    return f"""
store = "{objects.where}"
collect_every_s = 0
[s3]
endpoint = "{given.endpoint}"
access_key = "{given.access_key}"
secret_key = "{given.secret_key}"
"""


@pytest.mark.slow
async def test_restore_from_a_bucket_takes_little_over_the_link(
    objects: S3Objects, s3_link
) -> None:
    with LiveNode(store="", options=bucket(objects)).running() as one:
        async with one.client() as client:
            base = await client.images.debian("debian:12", "bookworm")
            sandbox = await client.sandboxes.create()
            await sandbox.run("head -c 64M /dev/urandom > /srv/random; echo few > /srv/few")
            wanted = (await sandbox.run("sha256sum < /srv/random")).stdout
            layer = await sandbox.commit("workspace/moved")
            await sandbox.destroy()
            await client.images.remove("debian:12")  # the commit needs no name below it
    chunks = decode_list(b"".join(LayerStore(objects).chunk_list(layer.data_digest)))
    assert chunks.size == layer.data_bytes
    assert chunks.count == -(-layer.data_bytes // CHUNK_BYTES)
    assert CHUNK_BYTES == 256 << 10
    with LiveNode(store="", options=bucket(objects)).running() as two:
        async with two.client() as client:
            s3_link.reset()
            made = await client.sandboxes.restore("workspace/moved")
            assert (await made.run("cat /srv/few")).stdout == b"few\n"
            taken = s3_link.counts().down
            assert taken < (base.total_bytes + layer.total_bytes) / 4, s3_link.log()
            assert taken - cached_bytes(two) < 24 * MIB  # the rest is metadata and lists
            assert (await made.run("sha256sum < /srv/random")).stdout == wanted
            taken = s3_link.counts().down
            assert taken >= 64 * MIB
            (fork,) = await made.fork()
            assert (await fork.run("sha256sum < /srv/random")).stdout == wanted
            assert s3_link.counts().down - taken < 8 * MIB  # once a node, not once a sandbox
            assert (await fork.info()).restored == (await made.info()).restored


async def test_what_cannot_be_restored_is_said_and_leaves_nothing(node_client) -> None:
    with pytest.raises(NotFound, match="workspace/none"):
        await node_client.sandboxes.restore("workspace/none")
    with pytest.raises(InvalidRequest, match="is a base"):
        await node_client.sandboxes.restore("base/debian:12")
    with pytest.raises(InvalidRequest, match="no image, no layers"):
        await node_client.sandboxes.restore("workspace/x", image="debian:13")
    assert await node_client.sandboxes.list() == []


async def test_layer_below_that_is_gone_from_the_store_is_named(tmp_path, layer_store) -> None:
    node = LiveNode(layer_store)
    with node.running():
        async with node.client() as client:
            first = await client.sandboxes.create()
            await first.run("echo 1 > /srv/one")
            below = await first.commit("workspace/below")
            second = await client.sandboxes.restore("workspace/below")
            await second.run("echo 2 > /srv/two")
            await second.commit("workspace/above")
            await client.sandboxes.destroy_many([first, second])
            digits = below.digest.removeprefix("sha256:")
            blob = Path(layer_store, "blobs/sha256", digits[:2], digits)
            blob.rename(blob.with_suffix(".away"))
            with pytest.raises(LayerDamaged, match="workspace/below:latest, on which") as caught:
                await client.sandboxes.restore("workspace/above")
            assert caught.value.fields["digest"] == below.digest
            blob.with_suffix(".away").rename(blob)
            await (await client.sandboxes.restore("workspace/above")).destroy()
            for name in ("workspace/above", "workspace/below"):
                await client.images.remove(name)
