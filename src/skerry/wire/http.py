"""The HTTP schema between clients and a node: one set of types, in JSON or msgpack.

Bodies are `application/msgpack` if the client says so in Content-Type and Accept, else JSON (bytes
as base64). Errors are `ErrorBody` with the class's status. All paths start with /v1.

| method and path | body -> answer |
|---|---|
| GET /v1/health | -> Health (no token needed) |
| GET /v1/openapi.json | -> the OpenAPI document |
| POST /v1/sandboxes | SandboxSpec -> SandboxInfo (running) |
| POST /v1/sandboxes/batch | BatchCreate -> BatchResult |
| POST /v1/sandboxes/batch/delete | BatchDelete -> BatchResult |
| GET /v1/sandboxes?state=&label=k=v&key=&limit=&cursor= | -> SandboxPage |
| GET, DELETE /v1/sandboxes/ID | -> SandboxInfo (DELETE: idempotent, answers when nothing is left) |
| GET /v1/sandboxes/ID/usage | -> Usage |
| GET /v1/sandboxes/ID/wait?state=&timeout= | -> SandboxInfo |
| POST /v1/sandboxes/ID/run?op=OPID | CommandSpec -> RunResult; a repeat with the same op gets the recorded answer, or joins the running one |
| POST /v1/sandboxes/ID/stream?op=OPID | CommandSpec -> stream of StreamEvent |
| GET /v1/sandboxes/ID/ops/OPID?wait=SECONDS | -> OpStatus |
| POST /v1/sandboxes/ID/ops/OPID/signal | SignalBody -> {} |
| POST /v1/sandboxes/ID/ops/OPID/cancel | -> {} |
| GET /v1/sandboxes/ID/ops | -> list of OpStatus |
| GET /v1/sandboxes/ID/attach?op=OPID (WebSocket) | first message CommandSpec, then ClientEvent / StreamEvent |
| GET /v1/sandboxes/ID/forward (WebSocket) | reverse forward: first message ForwardOpen, then ForwardFrame both ways |
| GET /v1/sandboxes/ID/files?path=&user=&offset=&length= | -> bytes, streamed |
| PUT /v1/sandboxes/ID/files?path=&user=&mode=&parents=&append=&exclusive= | bytes, streamed -> FileInfo |
| POST /v1/sandboxes/ID/files/op | FileOp -> list of FileInfo |
| GET, PUT /v1/sandboxes/ID/tree?path=&user= | tar, streamed |
| GET /v1/sandboxes/ID/diff | -> DiffBody |
| GET /v1/sandboxes/ID/diff/tar?under= | -> tar of added and modified paths |
| POST /v1/sandboxes/ID/commit | CommitBody -> LayerManifest |
| GET /v1/images | -> list of LayerManifest |
| GET, DELETE /v1/images/NAME | -> LayerManifest |
| POST /v1/images/NAME/import?kind=tar | tar, streamed -> LayerManifest |
| POST /v1/images/NAME/debian | DebianBody -> stream of StreamEvent (log lines, then manifest) |
| GET /v1/connection (WebSocket) | owner connection of the embedded mode: its lease is this connection |

A stream is a sequence of u32 little-endian length + msgpack StreamEvent; one that ends without a
`result` or `error` event is broken and must be read as an error, never as success.
"""

from __future__ import annotations

from typing import Any

import msgspec

from skerry.errors import SkerryError, from_code
from skerry.spec.command import RunResult, Terminal
from skerry.spec.files import Change
from skerry.spec.layers import LayerManifest
from skerry.spec.sandbox import SandboxInfo, SandboxSpec

MSGPACK = "application/msgpack"
JSON = "application/json"
STREAM = "application/x-skerry-stream"
OWNER_HEADER = "x-skerry-owner"  # names the owner connection that an undetached sandbox belongs to


class ErrorBody(msgspec.Struct, frozen=True):
    """An error on the wire; `fault` repeats what the code implies, for readers without our table."""

    code: str
    fault: str
    message: str
    retryable: bool
    fields: dict[str, Any] = {}

    @classmethod
    def of(cls, error: SkerryError) -> ErrorBody:
        """Returns the body for an error."""
        return cls(error.code, error.fault, error.message, error.retryable, error.fields)

    def to_error(self) -> SkerryError:
        """Returns the error again."""
        return from_code(self.code, self.message, self.fields)


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """A node's own view."""

    node: str
    version: str
    epoch: int
    pid: int
    sandboxes: int
    uptime_s: float
    backends: dict[str, str] = {}  # name -> "usable" or the reason why not


class BatchCreate(msgspec.Struct, frozen=True, kw_only=True):
    """`count` sandboxes of one spec. With `all_or_nothing`, one failure undoes the rest."""

    spec: SandboxSpec
    count: int
    all_or_nothing: bool = False


class BatchDelete(msgspec.Struct, frozen=True):
    """Sandboxes to destroy; unknown ids count as destroyed."""

    ids: tuple[str, ...]


class BatchItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One member's outcome."""

    info: SandboxInfo | None = None
    error: ErrorBody | None = None


class BatchResult(msgspec.Struct, frozen=True):
    """Outcomes in the order asked for."""

    items: tuple[BatchItem, ...]


class SandboxPage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page of a listing, oldest first; `cursor` is given to get the next."""

    items: tuple[SandboxInfo, ...]
    cursor: str | None = None


class OpStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operation: running, done (with its result), or lost (with the error)."""

    op_id: str
    state: str  # "running", "done", "lost"
    command: str = ""
    started: float = 0.0
    result: RunResult | None = None
    error: ErrorBody | None = None


class SignalBody(msgspec.Struct, frozen=True):
    """A signal number, 1 to 64."""

    signal: int


class StreamEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """Exactly one field is set (started carries the operation id)."""

    started: str | None = None
    stdout: bytes | None = None
    stderr: bytes | None = None
    log: str | None = None  # progress of long work
    result: RunResult | None = None
    manifest: LayerManifest | None = None
    error: ErrorBody | None = None


class ClientEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a client sends on an attached command; exactly one field is set."""

    stdin: bytes | None = None
    eof: bool | None = None
    signal: int | None = None
    resize: Terminal | None = None
    cancel: bool | None = None


class ForwardOpen(msgspec.Struct, frozen=True):
    """Listen on this port inside (127.0.0.1 and ::1); 0 is refused."""

    port: int


class ForwardFrame(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of one forwarded connection; `opened` comes from the node first."""

    conn: int
    opened: bool = False
    data: bytes = b""
    eof: bool = False
    reset: bool = False


class FileOp(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """op: stat, list, mkdir, remove, rename, chmod."""

    op: str
    path: str
    to: str | None = None
    mode: int | None = None
    recursive: bool = False
    parents: bool = False
    user: str | None = None


class DiffBody(msgspec.Struct, frozen=True):
    """What changed since the sandbox was made, sorted by path."""

    changes: tuple[Change, ...]
    frozen_seconds: float = 0.0


class CommitBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Makes a layer of what the sandbox wrote; `exclude` are path prefixes inside."""

    name: str
    exclude: tuple[str, ...] = ()


class DebianBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A base layer from a Debian suite through the host's own apt configuration."""

    suite: str
    packages: tuple[str, ...] = ()
    refresh: bool = False
