"""Which requests about a sandbox are operations of a rollout, and how the record tells them. Pure.

An operation is what changes the sandbox, and every look at its disk: what a harness decides upon.
Most carry an operation id, under which the node records them. The others are `marked`: the client
adds a word of its own to the record, with the answer.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from skerry.spec.command import CommandSpec
from skerry.spec.layers import commit_name
from skerry.spec.trajectory import as_json
from skerry.wire import asked
from skerry.wire.commits import ForkBody
from skerry.wire.events import EventsBody
from skerry.wire.files import FileOp
from skerry.wire.http import CommitBody

Query = dict[str, str]

COMMANDS: Final = frozenset({"/run", "/stream", "/ops"})
_FLAGS: Final = ("parents", "append", "exclusive", "sparse")
_ALWAYS_OTHER: Final = {"commit": frozenset({"id"})}  # differs in each request
_WORDS: Final = {
    ("POST", "/pause"): "pause",
    ("POST", "/resume"): "resume",
    ("POST", "/stop"): "stop",
    ("PATCH", ""): "change",
    ("PUT", "/network"): "network",
    ("POST", "/sessions"): "session",
    ("POST", "/fork"): "fork",
    ("DELETE", ""): "destroy",
}


class Step(NamedTuple):
    """One operation, as it would stand in the record."""

    action: str
    request: dict[str, Any]
    tail: str  # of the path, behind the sandbox
    looks: bool = False  # it changes nothing: it may be done again
    content: bool = False  # what is sent belongs to the request too
    marked: bool = False  # the node records no operation id for it
    first: bool = (
        False  # the mark comes before it acts: it must not be done twice, rather not at all
    )


def step_of(method: str, tail: str, params: Query, body: Any) -> Step | None:
    """Returns the operation that a request is, None if it is none."""
    if method == "POST" and tail in COMMANDS and isinstance(body, CommandSpec):
        action = "run" if body.session is None else "session.run"
        return Step(action, as_json(asked.of_command(body)), tail)
    if method == "POST" and tail == "/files/op" and isinstance(body, FileOp):
        return Step(
            f"file.{body.op[:40]}", as_json(asked.of_op(body)), tail, looks=body.op in asked.LOOKS
        )
    if method == "POST" and tail == "/commits" and isinstance(body, CommitBody):
        return Step("commit", _commit(body), tail)
    if method == "POST" and tail == "/events" and isinstance(body, EventsBody):
        last = body.events[-1]
        return Step(last.action, as_json(last.request), tail)
    if method in ("GET", "PUT"):
        found = _content(method, tail, params)
        if found is not None:
            return found
    return _marked(method, tail, body)


def told(action: str, request: dict[str, Any]) -> dict[str, Any]:
    """Returns a request without what differs from one run to the next."""
    other = _ALWAYS_OTHER.get(action, frozenset())
    return {name: value for name, value in request.items() if name not in other}


def split(path: str, params: Any) -> tuple[str, Query]:
    """Returns a path without its query, and all parameters."""
    path, asked, query = path.partition("?")
    given = dict(params) if params else {}
    return path, dict(parse_qsl(query)) | given if asked else given


def _content(method: str, tail: str, params: Query) -> Step | None:
    """Files, trees and what was written."""
    path, user = params.get("path", ""), params.get("user")
    flags = {name: params.get(name) == "1" for name in _FLAGS}
    if (method, tail) == ("PUT", "/tree"):
        return Step("tree.put", as_json(asked.of_path(path, user)), tail, content=True)
    if (method, tail) == ("PUT", "/files"):
        if "offset" in params:
            more = {"offset": int(params["offset"]), "parents": flags["parents"]}
            return Step("file.put", as_json(asked.of_path(path, user, **more)), tail, content=True)
        mode = int(params["mode"], 8) if "mode" in params else None
        request = asked.of_path(path, user, mode=mode, **flags)
        return Step("file.write", as_json(request), tail, content=True)
    if method != "GET":
        return None
    found = _look(tail, path, user, params)
    return None if found is None else Step(found[0], as_json(found[1]), tail, looks=True)


def _look(
    tail: str, path: str, user: str | None, params: Query
) -> tuple[str, dict[str, Any]] | None:
    if tail == "/files":
        numbers = {name: int(params[name]) for name in ("length", "tail") if name in params}
        offset = int(params.get("offset", "0")) or None
        sparse = params.get("sparse") == "1"
        return "file.read", asked.of_path(path, user, offset=offset, sparse=sparse, **numbers)
    if tail == "/files/walk":
        depth = int(params["depth"]) if "depth" in params else None
        types = params.get("types", "")[: asked.TYPES_MAX]
        glob = asked.named(params.get("glob", ""))
        return "file.walk", asked.of_path(path, user, depth=depth, types=types, glob=glob)
    if tail == "/diff/tar":
        return "disk.tar", {"under": asked.named(params.get("under") or "/")}
    looks = {"/files/usage": "file.usage", "/tree": "tree.get"}
    if tail in looks:
        return looks[tail], asked.of_path(path, user)
    return ("disk.diff", {}) if tail == "/diff" else None


def _commit(body: CommitBody) -> dict[str, Any]:
    whole = msgspec.structs.replace(body, name=str(commit_name(body.name)))
    return told("commit", as_json(msgspec.to_builtins(whole)))


def _marked(method: str, tail: str, body: Any) -> Step | None:
    word = _WORDS.get((method, tail))
    first = word == "destroy"
    if word is None and tail.startswith("/sessions/") and method == "DELETE":
        word = "session-close"
    if word is None and method == "POST" and tail.startswith("/ops/") and tail.endswith("/signal"):
        word, first = "signal", True
    if word is None:
        return None
    if isinstance(body, ForkBody):  # how long it waits, and its key, are not what is asked for
        body = msgspec.structs.replace(body, key=None, wait_s=0.0)
    request = {"path": tail, "body": as_json(body)} if body is not None else {"path": tail}
    return Step(f"harness.{word}", request, tail, marked=True, first=first)
