"""A node that went away is waited for once, and its loss is told once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from skerry.errors import Unavailable
from skerry.sdk import loss
from skerry.sdk.transport import Transport

WINDOW_S = 0.3
FREES = (
    ("DELETE", "/v1/sandboxes/a"),
    ("POST", "/v1/sandboxes/batch/delete"),
    ("POST", "/v1/sandboxes/a/ops/b/cancel"),
    ("POST", "/v1/sandboxes/a/stop"),
)


class Node:
    """What connections find: nobody, or a node that answers with nothing."""

    def __init__(self) -> None:
        self.there = False
        self.asked = 0

    async def ask(self, head: bytes, body: bytes | None, *, again: bool) -> tuple[int, bytes]:
        self.asked += 1
        if self.there:
            return 200, b"\xc0"
        raise ConnectionRefusedError(111, "refused")


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def transport(node: Node, monkeypatch: pytest.MonkeyPatch) -> Transport:
    made = Transport("http://node")
    monkeypatch.setattr(made, "_linked", lambda: SimpleNamespace(pool=node))
    monkeypatch.setattr(loss, "RECONNECT_FOR_S", WINDOW_S)
    return made


async def asked(transport: Transport, node: Node, method: str, path: str) -> int:
    """Returns how often the node was looked for until that was given up."""
    before = node.asked
    with pytest.raises(Unavailable, match="cannot reach the node"):
        await transport.call(method, path, repeatable=True)
    return node.asked - before


async def test_what_only_frees_something_has_no_minute_after_the_loss_was_told(
    transport: Transport, node: Node
) -> None:
    assert await asked(transport, node, "POST", "/v1/sandboxes/a/run") > 1
    await asyncio.sleep(WINDOW_S)  # it is given up a pause before its end
    for _ in range(3):
        assert [await asked(transport, node, *frees) for frees in FREES] == [1] * 4
    # Work waits as ever: that is what makes a run that is tried again worth something.
    assert await asked(transport, node, "POST", "/v1/sandboxes/a/run") > 1
    node.there = True
    await transport.call("GET", "/v1/health")
    node.there = False
    for frees in FREES:
        transport._loss.heard()  # another loss
        assert await asked(transport, node, *frees) > 1


async def test_a_node_that_comes_back_in_time_is_told_to_nobody(
    transport: Transport, node: Node
) -> None:
    with pytest.raises(Unavailable):
        await transport.call("GET", "/v1/health")  # asked once; the minute begins here
    seen = node.ask

    async def back(head: bytes, body: bytes | None, *, again: bool) -> tuple[int, bytes]:
        node.there = node.asked >= 2
        return await seen(head, body, again=again)

    node.ask = back  # type: ignore[method-assign]
    await transport.call("DELETE", "/v1/sandboxes/a", repeatable=True)
    assert node.asked > 2
