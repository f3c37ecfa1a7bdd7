"""What a query says, however it is written; and which route a path names."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.errors import InvalidRequest
from skerry.node.server.exchange import QUERY_FIELDS_MAX, Exchange


def params(query: bytes) -> dict[str, list[str]]:
    exchange = Exchange({"query_string": query}, None, None)  # type: ignore[arg-type]
    return exchange.params()


@given(st.lists(st.tuples(st.text(min_size=1), st.text()), max_size=QUERY_FIELDS_MAX))
def test_query_of_any_client_is_read_as_it_was_meant(fields: list[tuple[str, str]]) -> None:
    meant: dict[str, list[str]] = {}
    pairs = [(a, b) for a, b in fields if not any("\ud800" <= c <= "\udfff" for c in a + b)]
    for name, value in pairs:
        meant.setdefault(name, []).append(value)
    assert params(urlencode(pairs).encode()) == meant


@given(st.text("ab=&+%2F\xff;", max_size=40))
def test_odd_query_is_read_as_the_standard_library_does(text: str) -> None:
    read = parse_qsl(text, keep_blank_values=True, errors="surrogateescape")
    pairs = [(name, value) for name, values in params(text.encode("latin-1")).items()
             for value in values]  # fmt: skip
    assert sorted(pairs) == sorted(read)


def test_query_has_a_longest_length() -> None:
    assert len(params(b"&".join(b"a%d=" % n for n in range(QUERY_FIELDS_MAX)))) == QUERY_FIELDS_MAX
    with pytest.raises(InvalidRequest, match="too many fields"):
        params(b"&" * QUERY_FIELDS_MAX)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/sandboxes//ops", 404),
        ("/v1/sandboxes/{id}/ops", 200),
        ("/v1/sandboxes/{id}/ops/", 404),
        ("/v1/sandboxes/{id}/nothing", 404),
        ("/v1/sandboxes/{id}/files/usage/more", 404),
        ("/v1/sandboxes/batch/ops", 422),
        ("/v1/sandboxes/", 404),
    ],
)
async def test_path_names_its_route_and_nothing_near_it(stand: Any, path: str, status: int) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        await api.call("GET", path.replace("{id}", sid), status=status)
