"""How requests are addressed."""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qsl

import aiohttp
import pytest

from skerry.sdk.transport import Transport


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
