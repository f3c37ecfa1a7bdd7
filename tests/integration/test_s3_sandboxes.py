"""Sandboxes whose layers lie in a bucket, while the store or the way to it is slow, broken, or gone."""

from __future__ import annotations

import asyncio
import hashlib
import io
import random
import re
import tarfile
import time
from pathlib import Path

import pytest

from live_node import LiveNode
from s3_place import s3_options
from skerry.errors import Fault as Blame
from skerry.errors import LayerDamaged
from skerry.images.format.chunks import Codec
from skerry.images.format.erofs import Tools
from skerry.images.library import ImageLibrary
from skerry.images.objects.s3 import S3Objects
from skerry.images.store import keys
from skerry.images.store.store import SUFFIXES, LayerStore
from skerry.spec.layers import LayerManifest
from skerry.testing.link import Fault
from skerry.testing.rootfs import container_reason

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(container_reason()), reason=str(container_reason())),
]

BLOBS = "^GET .*/blobs/"
WAIT_S = 4.0  # a read's bound, so that the tests need not wait half a minute
AHEAD_BYTES = 1 << 20  # less than a file: who has read one has not fetched the next as a whole
LAYERS = ["workspace/data"]
FILES = {f"srv/{name}": random.Random(name).randbytes(3_000_000) for name in "abcd"}
SUMS = "".join(f"{hashlib.sha256(data).hexdigest()}  /{name}\n" for name, data in FILES.items())


@pytest.fixture(scope="module")
def bucket(s3_server, tmp_path_factory: pytest.TempPathFactory):
    """A place in the bucket with base/debian:12, and workspace/data with the FILES."""
    place = tmp_path_factory.mktemp("bucket")
    objects = S3Objects(f"s3://{s3_server.bucket}/{place.name}", s3_options(s3_server, place))
    library = ImageLibrary(LayerStore(objects), Tools(), str(place / "scratch"))
    library.debian("debian:12", "bookworm")
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, content in FILES.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    made.seek(0)
    library.import_tar(LAYERS[0], made)
    return objects


@pytest.fixture
def layers(bucket: S3Objects) -> dict[str, LayerManifest]:
    return {one.name.split("/")[0]: one for one in LayerStore(bucket).catalogue()}


@pytest.fixture
def node(bucket: S3Objects, s3_link):
    """A node with nothing in its cache, which reaches the bucket over a link."""
    given = bucket.options
    options = f"""
store = "{bucket.where}"
collect_every_s = 0
[s3]
endpoint = "{s3_link.endpoint}"
access_key = "{given.access_key}"
secret_key = "{given.secret_key}"
timeout_s = 3.0
patience_s = 8.0
[lazy.fetch]
wait_s = {WAIT_S}
ahead_bytes = {AHEAD_BYTES}
[lazy.profile]
record_s = 0
"""  # no profile: it would outlive its test in the bucket, and fetch what the next one must not have
    with LiveNode(store="", options=options).running() as node:
        yield node


async def test_sandbox_runs_from_a_bucket_and_fetches_little(
    node: LiveNode, s3_link, layers: dict[str, LayerManifest]
) -> None:
    base = layers["base"]
    async with node.client() as client, await client.sandboxes.create() as sandbox:
        result = await sandbox.run("cat /etc/debian_version; ls /usr/share | wc -l")
        assert result.exit_code == 0, result
        assert result.stdout.startswith(b"12.")
        info = await sandbox.info()
        assert [layer.mode for layer in info.mounts] == ["verified"]
    assert 0 < s3_link.counts().down < base.total_bytes / 4
    kept = [path for path in Path(node.state, "chunks").rglob("*") if path.is_file()]
    assert sum(path.stat().st_blocks * 512 for path in kept) < base.total_bytes / 4


async def test_sandbox_waits_for_a_store_that_is_gone_and_goes_on(node: LiveNode, s3_link) -> None:
    async with node.client() as client, await client.sandboxes.create(layers=LAYERS) as sandbox:
        assert (await sandbox.run("sha256sum /dev/null")).exit_code == 0  # the program is here
        s3_link.leave()
        reading = asyncio.create_task(sandbox.run("sha256sum /srv/a", timeout=60))
        await asyncio.sleep(WAIT_S / 3)
        assert not reading.done()
        s3_link.come_back()
        assert (await reading).stdout.decode() == SUMS.splitlines(keepends=True)[0]


async def test_store_that_stays_away_is_an_error_in_bounded_time(node: LiveNode, s3_link) -> None:
    async with node.client() as client:
        sandbox = await client.sandboxes.create(layers=LAYERS)
        assert (await sandbox.run("cat /srv/a > /dev/null")).exit_code == 0
        s3_link.leave()
        began = time.monotonic()
        result = await sandbox.run("cat /srv/b > /dev/null", timeout=60)
        took = time.monotonic() - began
        assert result.exit_code != 0
        assert b"Input/output error" in result.stderr
        assert took > WAIT_S / 2  # and no longer than the command was given
        # What is here still works, and so does the end.
        assert (await sandbox.run("cat /srv/a > /dev/null")).exit_code == 0
        async with asyncio.timeout(30):
            await sandbox.destroy()
        s3_link.come_back()
        async with await client.sandboxes.create(layers=LAYERS) as other:
            assert (await other.run("sha256sum /srv/*")).stdout.decode() == SUMS
    assert "the store fails" in Path(node.state, "blobs.log").read_text()


@pytest.mark.parametrize(
    "faults",
    [
        (Fault("flip", match=BLOBS, after=5000, share=0.3),),
        (Fault("truncate", match=BLOBS, after=5000, share=0.3),),
        (Fault("status", match=BLOBS, share=0.3, retry_after=1),),
        (Fault("status", match=BLOBS, share=0.3, status=500, code="InternalError"),),
        (Fault("cut", match=BLOBS, after=100, share=0.2), Fault("short", match=BLOBS, share=0.2)),
    ],
    ids=["flipped", "truncated", "throttled", "5xx", "cut"],
)
async def test_faults_that_pass_are_not_seen_inside(node: LiveNode, s3_link, faults) -> None:
    s3_link.faults(*faults)
    async with node.client() as client, await client.sandboxes.create(layers=LAYERS) as sandbox:
        result = await sandbox.run("sha256sum /srv/*", timeout=120)
        assert (result.exit_code, result.stdout.decode()) == (0, SUMS), result
    assert sum(s3_link.counts().injected.values()) > 0


async def test_blob_damaged_in_the_store_is_an_error_and_never_wrong_bytes(
    node: LiveNode, bucket: S3Objects, layers: dict[str, LayerManifest]
) -> None:
    data = layers["workspace"]
    key = keys.blob(str(data.data_digest), SUFFIXES[Codec(data.data_codec)])
    whole = bucket.get(key, 1 << 30)
    assert whole is not None
    damaged = bytearray(whole)
    damaged[whole.index(FILES["srv/b"][:4096]) + 1_500_000] ^= 1
    try:
        bucket.put_bytes(key, bytes(damaged), replace=True)
        async with node.client() as client, await client.sandboxes.create(layers=LAYERS) as sandbox:
            result = await sandbox.run("sha256sum /srv/a /srv/b /srv/c", timeout=100)
            sums = SUMS.splitlines(keepends=True)
            assert result.stdout.decode() == sums[0] + sums[2]
            assert b"/srv/b: Input/output error" in result.stderr
        log = Path(node.state, "blobs.log").read_text()
        assert re.search(rf"platform fault: chunk \d+ of {data.data_digest}", log)
    finally:
        bucket.put_bytes(key, whole, replace=True)


async def test_metadata_of_another_digest_is_refused_as_the_platforms_fault(
    node: LiveNode, bucket: S3Objects, layers: dict[str, LayerManifest]
) -> None:
    data = layers["workspace"]
    key = keys.blob(data.digest)
    whole = bucket.get(key, 1 << 30)
    assert whole is not None
    try:
        bucket.put_bytes(key, whole[:-1] + bytes([whole[-1] ^ 1]), replace=True)
        async with node.client() as client:
            with pytest.raises(LayerDamaged, match=data.digest) as caught:
                await client.sandboxes.create(layers=LAYERS)
        assert caught.value.fault is Blame.PLATFORM
    finally:
        bucket.put_bytes(key, whole, replace=True)


async def test_sandbox_lives_on_over_a_crash_of_its_node(node: LiveNode, s3_link) -> None:
    async with node.client() as client:
        sandbox = await client.sandboxes.create(layers=LAYERS, detached=True)
        assert (await sandbox.run("true")).exit_code == 0
        node.kill()
        node.start()
        again = await client.sandboxes.get(sandbox.id)
        result = await again.run("sha256sum /srv/*")
        assert result.stdout.decode() == SUMS, result
        await again.destroy()


async def test_keys_stand_in_no_argument_log_or_file_of_the_node(
    node: LiveNode, s3_server, tmp_path: Path
) -> None:
    secret = s3_server.keys.secret.encode()
    async with node.client() as client, await client.sandboxes.create() as sandbox:
        await sandbox.run("true")
        seen = [path for path in Path("/proc").glob("[0-9]*/cmdline") if _has(path, secret)]
        seen += [
            path
            for place in (node.state, node.run)
            for path in Path(place).rglob("*")
            if path.is_file() and "uppers" not in path.name and _has(path, secret)
        ]
        inside = await sandbox.run("cat /proc/*/environ /proc/*/cmdline 2>/dev/null")
        assert secret not in inside.stdout
    assert not seen


def _has(path: Path, secret: bytes) -> bool:
    try:
        return secret in path.read_bytes()
    except OSError:
        return False
