"""Directories of one node's containers, made for a test, and backends on them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from skerry.backends.container import build_backend
from skerry.spec.ids import base32
from skerry.testing import rootfs


class Places:
    """State and run directory, and the name after which the node's groups are named."""

    def __init__(self) -> None:
        self.state = tempfile.mkdtemp(prefix="skerry-state-", dir="/var/tmp")
        self.run = tempfile.mkdtemp(prefix="skerry-", dir="/run")
        self.node = base32(int.from_bytes(os.urandom(4), "big"), 5)

    async def backend(self):
        """A backend that was started."""
        directories = (str(rootfs.directory()),)
        made = build_backend(
            state_dir=self.state, run_dir=self.run, node=self.node, layer_dirs=directories
        )
        await made.start()
        return made

    def groups(self) -> list[str]:
        """The node's groups, in whichever hierarchy."""
        mounts = Path("/sys/fs/cgroup")
        name = f"skerry-{self.node}*"
        return sorted(str(path) for path in (*mounts.glob(name), *mounts.glob(f"*/{name}")))


@asynccontextmanager
async def places_for(census) -> AsyncIterator[Places]:
    """Places in which nothing is left afterwards."""
    made = Places()
    census.watch(places=(made.state, made.run))
    yield made
    assert not [*os.listdir(made.run), *os.listdir(made.state)]
    assert not made.groups()
    os.rmdir(made.run)
    os.rmdir(made.state)
