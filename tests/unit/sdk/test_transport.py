"""How requests are addressed."""

from __future__ import annotations

import asyncio
import socket
from urllib.parse import parse_qsl

import aiohttp
import pytest

from skerry.sdk.transport import (
    CONNECT_TIMEOUT_S,
    RECONNECT_FOR_S,
    Transport,
    _kept_alive,
    _patience,
)


@pytest.mark.parametrize("name", ["/root/\udcff.txt", "/a b&c=d+e%41#?", "/ä"])
def test_every_name_that_a_file_can_have_reaches_the_node(name: str) -> None:
    address = Transport("http://node")._address("/v1/x", {"path": name})
    assert address.raw_path == "/v1/x"
    assert parse_qsl(address.raw_query_string, errors="surrogateescape") == [("path", name)]


def test_an_address_without_parameters_is_the_path() -> None:
    assert str(Transport("http://node")._address("/v1/x", None)) == "http://node/v1/x"


async def test_no_time_limit_of_the_client_is_shorter_than_a_commands() -> None:
    """There is none at all once a connection is made (report 9) (report 10)."""
    transport = Transport("http://node")
    limits = transport.session().timeout
    assert (limits.total, limits.sock_read, limits.connect) == (None, None, None)
    assert transport.session().connector.limit == 0  # type: ignore[union-attr]
    await transport.close()


def test_a_loops_connections_end_with_it() -> None:
    """(report 70)"""
    transport = Transport("http://node")

    async def use() -> aiohttp.ClientSession:
        assert transport.session() is transport.session()
        return transport.session()

    first, second = asyncio.run(use()), asyncio.run(use())
    assert first is not second
    assert first.closed
    assert second.closed


def test_minute_of_patience_counts_from_the_loss_of_a_long_request() -> None:
    """A node that restarts under a command of hours costs its caller time, not the result."""
    began, give_up = 100.0, 100.0 + RECONNECT_FOR_S
    assert _patience(give_up, began, began + 7200) == began + 7200 + RECONNECT_FOR_S
    # What was refused, or not even connected, is no loss: such a node is given up.
    assert _patience(give_up, began, began + CONNECT_TIMEOUT_S + 1) == give_up


async def test_connection_to_another_host_is_probed_while_a_command_says_nothing() -> None:
    transport = Transport("http://node")
    assert transport.session().connector._socket_factory is _kept_alive  # type: ignore[union-attr]
    await transport.close()
    address = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 1))
    with _kept_alive(address) as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 20
