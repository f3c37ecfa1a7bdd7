"""The OpenAPI 3.1 document of the node's HTTP API, made from the same types that the wire uses.

`wire.routes` is the list of all routes. WebSockets have no place in OpenAPI: they stand as GET with
status 101 and say in words what goes over them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from skerry.wire.batch import BatchEvent
from skerry.wire.files import FILES_STREAM, FileEvent
from skerry.wire.http import JSON, MSGPACK, OWNER_HEADER, STREAM, ErrorBody, StreamEvent
from skerry.wire.route import STRING, Route
from skerry.wire.routes import ROUTES


def _types() -> list[Any]:
    found: list[Any] = [ErrorBody, StreamEvent, BatchEvent, FileEvent]
    for route in ROUTES:
        for kind in (route.body, route.answer, *route.socket):
            if kind is not None and not isinstance(kind, str) and kind not in found:
                found.append(kind)
    return found


def document(version: str) -> dict[str, Any]:
    """Returns the document."""
    types = _types()
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    schema_of = list(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Skerry node",
            "version": version,
            "description": f"{STREAM}: u32 little-endian length and a msgpack StreamEvent (of a "
            "batch: BatchEvent), repeated."
            f" {FILES_STREAM}: the same with FileEvent."
            f" {OWNER_HEADER} names the owner of an undetached sandbox.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}, {}],
    }


def _operation(route: Route, schema_of: Iterable[tuple[Any, dict[str, Any]]]) -> dict[str, Any]:
    schema_of = list(schema_of)
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": STRING}
        for name in ("id", "op", "session", "name", "digest")
        if f"{{{name}}}" in route.path
    ]
    parameters += [
        {
            "name": param.name,
            "in": "query",
            "required": param.required,
            "schema": param.schema,
            "description": param.text,
        }
        for param in route.params
    ]
    done: dict[str, Any]
    if route.socket:
        done = {"101": {"description": "A WebSocket: msgpack (binary) or JSON (text) messages."}}
    else:
        done = {"200": {"description": "Done.", "content": _content(route.answer, schema_of)}}
    error = {"description": "An error; see ErrorBody.", "content": _content(ErrorBody, schema_of)}
    operation: dict[str, Any] = {"summary": route.text, "responses": {**done, "default": error}}
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": _content(route.body, schema_of)}
    return operation


def _content(kind: Any, schema_of: Iterable[tuple[Any, dict[str, Any]]]) -> dict[str, Any]:
    if isinstance(kind, str):
        return {kind: {"schema": {"type": "string", "format": "binary"}}}
    schema = {"type": "object"}
    for other, one in schema_of:
        if other is kind or other == kind:
            schema = one
    return {JSON: {"schema": schema}, MSGPACK: {"schema": schema}}
