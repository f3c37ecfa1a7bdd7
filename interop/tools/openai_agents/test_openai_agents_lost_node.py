"""The node dies under a command of an agent's, and does not come back."""

from __future__ import annotations

import os
import threading
import time

import pytest
from agents.sandbox import LocalSnapshotSpec
from agents.sandbox.errors import ExecTransportError, WorkspaceArchiveReadError

import skerry
from interop.lost import TOLD_WITHIN_S, other_node
from skerry.compat.openai_agents import SkerrySandboxClient, SkerrySandboxClientOptions


async def test_a_node_that_is_gone_is_told_once_and_may_be_tried_again(tmp_path, caplog) -> None:
    """The workspace is to be kept, too, at the end: that does not wait for the node once more."""
    options = SkerrySandboxClientOptions(image=os.environ["INTEROP_IMAGE"])
    with other_node() as node:
        client = SkerrySandboxClient(url=node.url)
        made = await client.create(options=options, snapshot=LocalSnapshotSpec(base_path=tmp_path))
        await made.start()
        threading.Thread(target=node.kill_under, args=("sleep 600",)).start()
        with pytest.raises(ExecTransportError) as raised:
            await made.exec("sleep 600")
        assert raised.value.retryable is True
        assert isinstance(raised.value.cause, skerry.Unavailable)
        assert not await made.running()
        with pytest.raises(WorkspaceArchiveReadError) as kept:
            await made.stop()
        assert isinstance(kept.value.cause, skerry.Unavailable)
        await made.shutdown()
        assert time.monotonic() - node.killed_at < TOLD_WITHIN_S
        assert "left to end by itself" in caplog.text
        # It is a loss of the node, and none of the session: that goes on where the node does.
        node.start()
        async with await client.resume(made.state) as again:
            assert (await again.exec("echo here")).stdout == b"here\n"
