"""The OpenAPI document is the API that is served."""

from __future__ import annotations

import json
import re
from pathlib import Path

from skerry.node.server.app import ROUTES, SOCKETS
from skerry.wire import http, openapi, routes

ROOT = Path(__file__).parents[3]


def served() -> set[tuple[str, str]]:
    plain = {(method, path) for path, methods in ROUTES for method in methods}
    plain |= {("GET", path) for path, _ in SOCKETS}
    return {(method, path.replace(":path}", "}")) for method, path in plain}


def test_every_route_is_in_the_document_and_the_other_way_round() -> None:
    document = openapi.document("0")
    told = {
        (method.upper(), path) for path, methods in document["paths"].items() for method in methods
    }
    assert told == served()
    assert len(routes.ROUTES) == len(told)


def test_every_route_is_in_the_contract_and_in_the_reference() -> None:
    contract = http.__doc__ or ""
    reference = (ROOT / "docs/reference/http.md").read_text()
    for method, path in served():
        short = path.removeprefix("/v1/").replace("{id}", "ID").replace("{op}", "OPID")
        short = short.replace("{name}", "NAME").replace("{session}", "SID")
        short = short.replace("{commit}", "CID").replace("{digest}", "SHA256")
        short = short.replace("{job}", "JID")
        row = re.compile(
            rf"^\| [A-Z, ]*\b{method}\b[A-Z, ]* {re.escape(short)}[? |(]", re.MULTILINE
        )
        assert row.search(contract), (method, short)
        assert f"`{method} /v1/{short}`" in reference, (method, short)


def test_every_reference_in_the_document_resolves() -> None:
    document = openapi.document("0")
    text = json.dumps(document)
    names = set(re.findall(r"#/components/schemas/(\w+)", text))
    assert names <= set(document["components"]["schemas"])
    assert {"SandboxSpec", "RunResult", "ErrorBody", "ClientEvent"} <= names | set(
        document["components"]["schemas"]
    )
    assert document["openapi"] == "3.1.0"


async def test_document_is_served(stand) -> None:
    async with stand.serving() as (_, api):
        document = await api.call("GET", "/v1/openapi.json")
        assert document["paths"].keys() == openapi.document("0")["paths"].keys()
