"""Sandboxes on layers that lie in a bucket: read on demand over a link that is slowed and broken."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from live_node import LiveNode
from s3_place import s3_options
from skerry.images.objects.s3 import S3Objects
from skerry.spec.layers import MountMode
from skerry.testing.link import Fault
from skerry.testing.rootfs import container_reason

pytestmark = [
    pytest.mark.skipif(bool(container_reason()), reason=str(container_reason())),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="there is no /dev/fuse"),
]


def options(objects: S3Objects) -> str:
    """The lines of a node's configuration for that bucket."""
    given = objects.options
    return f"""
store = "{objects.where}"
collect_every_s = 0
[lazy.fetch]
wait_s = 6.0
[s3]
endpoint = "{given.endpoint}"
access_key = "{given.access_key}"
secret_key = "{given.secret_key}"
timeout_s = 2.0
patience_s = 3.0
"""


@pytest.fixture
def objects(s3_server, s3_link, tmp_path: Path) -> S3Objects:
    made = s3_options(s3_server, tmp_path, endpoint=s3_link.endpoint, timeout_s=2, patience_s=8)
    return S3Objects(f"s3://{s3_server.bucket}/{tmp_path.name}", made)


async def test_sandbox_runs_on_a_bucket_whatever_the_link_does(objects: S3Objects, s3_link) -> None:
    with LiveNode(store="", options=options(objects)).running() as node:
        async with node.client() as client:
            layer = await client.images.debian("debian:12", "bookworm")
            s3_link.faults(Fault("status", times=20, share=0.3), Fault("cut", times=10, share=0.2))
            async with await client.sandboxes.create() as sandbox:
                said = await sandbox.run(["python3", "-c", "import json; print(json.dumps([1]))"])
                assert (said.exit_code, said.stdout) == (0, b"[1]\n"), said.stderr
                s3_link.faults()
                info = await sandbox.info()
                assert {mount.mode for mount in info.mounts} == {MountMode.VERIFIED}
                files = [one for one in Path(node.state, "chunks").iterdir() if len(one.name) == 64]
                cached = sum(one.stat().st_blocks * 512 for one in files)
                assert 0 < cached < layer.data_bytes / 3

                s3_link.leave()
                waiting = asyncio.create_task(sandbox.run(["perl", "-e", "print 7"], timeout=60))
                await asyncio.sleep(1.5)
                assert not waiting.done()
                s3_link.come_back()
                said = await waiting
                assert (said.exit_code, said.stdout) == (0, b"7"), said.stderr

                s3_link.leave()
                read = "import sys; print(len(open(sys.argv[1], 'rb').read()))"
                said = await sandbox.run(["python3", "-c", read, "/usr/bin/gpgv"], timeout=60)
                assert said.exit_code == 1
                assert said.stderr.endswith(b"OSError: [Errno 5] Input/output error\n")
                s3_link.come_back()
                said = await sandbox.run(["python3", "-c", read, "/usr/bin/gpgv"], timeout=60)
                assert said.exit_code == 0, said.stderr
