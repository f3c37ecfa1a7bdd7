"""What a route of the node's HTTP API is made of; `wire.routes` lists them."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from skerry.spec.sandbox import State

BYTES: Final = "application/octet-stream"
TAR: Final = "application/x-tar"


class Param(NamedTuple):
    """A query field."""

    name: str
    schema: dict[str, Any]
    text: str
    required: bool = False


class Route(NamedTuple):
    """One route. `body` and `answer` are types, or media types of raw bytes; None: an empty object."""

    method: str
    path: str
    text: str
    body: Any = None
    answer: Any = None
    params: tuple[Param, ...] = ()
    socket: tuple[Any, ...] = ()  # of a WebSocket: the types that go over it


STRING, FLAG = {"type": "string"}, {"enum": ["0", "1", "true", "false"]}
BASE: Final = "/v1/sandboxes/{id}"
JOB: Final = "/v1/jobs/{job}"
OP = Param(
    "op",
    {"type": "string", "pattern": "^[0-9a-f]{32}$"},
    "operation id; a repeat gets the recorded answer, or joins",
)
ONCE = Param(
    "op",
    {"type": "string", "pattern": "^[0-9a-f]{32}$"},
    "operation id: it runs once, and a repeat gets the recorded answer",
)
NAME = Param("op", {"type": "string", "pattern": "^[0-9a-f]{32}$"}, "its name on record")
GONE = Param("on_disconnect", {"enum": ["keep", "kill"]}, "what becomes of it if you go; keep")
PATH = Param("path", STRING, "absolute, or relative to the workdir", required=True)
USER = Param("user", STRING, "name, uid or uid:gid; default: the sandbox's")
STATE = Param(
    "state", {"type": "array", "items": {"enum": [str(state) for state in State]}}, "any of these"
)


def integer(low: int, high: int | None = None) -> dict[str, Any]:
    """Returns the schema of a whole number."""
    top = {} if high is None else {"maximum": high}
    return {"type": "integer", "minimum": low, **top}


def seconds(high: int) -> dict[str, Any]:
    """Returns the schema of a time of at most so long."""
    return {"type": "number", "minimum": 0, "maximum": high}
