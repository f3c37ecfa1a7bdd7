"""The node dies under an agent's command, and does not come back."""

from __future__ import annotations

import os
import threading
import time

import pytest
from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage

import skerry
from interop.lost import TOLD_WITHIN_S, other_node
from skerry.compat.langchain import SkerryBackend


class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools, **_):
        return self


def test_a_node_that_is_gone_ends_the_run_with_one_fault_of_the_platform(caplog) -> None:
    call = {"name": "execute", "args": {"command": "sleep 600"}, "id": "a"}
    model = Scripted(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("done")]))
    with other_node() as node:

        def run() -> None:
            with SkerryBackend.create(image=os.environ["INTEROP_IMAGE"], url=node.url) as backend:
                agent = create_deep_agent(model=model, backend=backend)
                threading.Thread(target=node.kill_under, args=("sleep 600",)).start()
                agent.invoke({"messages": [HumanMessage("do it")]})

        with pytest.raises(skerry.Unavailable, match="cannot reach the node at") as raised:
            run()
        assert time.monotonic() - node.killed_at < TOLD_WITHIN_S
    assert raised.value.fault == "platform"
    # The one that is raised is that of the command; that the sandbox is left is only logged.
    assert not isinstance(raised.value.__context__, skerry.SkerryError)
    assert "left to end by itself" in caplog.text
