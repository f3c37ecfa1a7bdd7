"""A daemon that was started for a client ends with it, though its pools stand ready for more calls."""

from __future__ import annotations

import shutil
import tempfile

import skerry.aio
from waiting import ended

WITHIN_S = 60.0


async def test_a_node_of_ones_own_ends_after_function_calls(layer_store, tmp_path) -> None:
    run = tempfile.mkdtemp(prefix="sk-", dir="/run")  # sockets have short paths
    async with skerry.aio.connect(state_dir=str(tmp_path / "state"), run_dir=run) as client:
        await client.images.debian("debian:12", "bookworm")
        done = await client.functions.call("python", code="def main(x): return x * x", args=[7])
        assert done.value == 49
        node = (await client.health()).pid
    assert ended(node, WITHIN_S)
    shutil.rmtree(run)
