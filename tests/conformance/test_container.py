"""Containers pass the whole suite, and each test leaves nothing on the host."""

from __future__ import annotations

import os
import tempfile
from typing import ClassVar

import pytest

from skerry.backends.container import build_backend
from skerry.spec.ids import base32
from skerry.testing import rootfs as rootfs_module
from skerry.testing.conformance import BackendConformance
from skerry.testing.rootfs import container_reason

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(container_reason()), reason=container_reason()),
]


class TestContainer(BackendConformance):
    known_deviations: ClassVar[dict[str, str]] = {}

    @pytest.fixture
    async def backend(self, census):
        state = tempfile.mkdtemp(prefix="skerry-state-", dir="/var/tmp")
        run = tempfile.mkdtemp(prefix="skerry-", dir="/run")
        census.watch(places=(state, run))
        made = self.build(state, run, base32(int.from_bytes(os.urandom(4), "big"), 5))
        await made.start()
        yield made
        await made.close(keep_instances=False)
        assert not [*os.listdir(run), *os.listdir(state)]
        os.rmdir(run)
        os.rmdir(state)

    @staticmethod
    def build(state, run, node):
        directories = (str(rootfs_module.directory()),)
        return build_backend(state_dir=state, run_dir=run, node=node, layer_dirs=directories)

    @pytest.fixture
    def rootfs(self):
        return rootfs_module.plan()

    def kill_first_process(self, instance):
        os.kill(instance.facts.pid, 9)

    async def restart(self, backend):
        places = backend.places
        second = self.build(places.state_dir, places.run_dir, places.node)
        await second.start()
        return second
