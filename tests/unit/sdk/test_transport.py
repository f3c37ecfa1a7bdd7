"""How requests are addressed."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest

from skerry.sdk.transport import Transport


@pytest.mark.parametrize("name", ["/root/\udcff.txt", "/a b&c=d+e%41#?", "/ä"])
def test_every_name_that_a_file_can_have_reaches_the_node(name: str) -> None:
    address = Transport("http://node")._address("/v1/x", {"path": name})
    assert address.raw_path == "/v1/x"
    assert parse_qsl(address.raw_query_string, errors="surrogateescape") == [("path", name)]


def test_an_address_without_parameters_is_the_path() -> None:
    assert str(Transport("http://node")._address("/v1/x", None)) == "http://node/v1/x"
