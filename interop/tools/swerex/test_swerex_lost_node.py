"""The node dies under a command, and does not come back."""

from __future__ import annotations

import threading
import time

import pytest
from serving import TOKEN, server
from swerex.runtime.abstract import Command, CreateBashSessionRequest
from swerex.runtime.remote import RemoteRuntime

import skerry
from interop.lost import TOLD_WITHIN_S, other_node


async def test_a_node_that_is_gone_is_an_error_of_its_name_and_no_exit_code() -> None:
    with other_node() as node:
        with server("--url", node.url) as told:
            runtime = RemoteRuntime(
                host=told["host"], port=told["port"], auth_token=TOKEN, timeout=300
            )
            await runtime.create_session(CreateBashSessionRequest())
            threading.Thread(target=node.kill_under, args=("sleep 600",)).start()
            with pytest.raises(skerry.Unavailable, match="cannot reach the node at"):
                await runtime.execute(Command(command=["sleep", "600"]))
            alive = await runtime.is_alive()
            assert not alive.is_alive
            assert "Unavailable" in alive.message
        # The server has ended by now, with its session.
        assert time.monotonic() - node.killed_at < TOLD_WITHIN_S
