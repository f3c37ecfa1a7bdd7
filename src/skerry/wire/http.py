r"""The HTTP schema between clients and a node: one set of types, in JSON or msgpack.

Bodies are `application/msgpack` if the client says so in Content-Type and Accept, else JSON (bytes
as base64). Errors are `ErrorBody` with the class's status. All paths start with /v1/.

| method and path | body -> answer |
|---|---|
| GET health | -> Health (no token needed) |
| GET metrics | -> counters and gauges in the text format of Prometheus; also at /metrics |
| GET openapi.json | -> the OpenAPI document |
| POST sandboxes?wait= | SandboxSpec -> SandboxInfo (running); waits that long for room |
| POST sandboxes/batch?stream= | BatchCreate -> BatchResult, or stream of BatchEvent |
| POST sandboxes/batch/delete | BatchDelete -> BatchResult |
| GET sandboxes?state=&label=k=v&key=&job=&limit=&cursor= | -> SandboxPage |
| GET, DELETE sandboxes/ID | -> SandboxInfo (DELETE: idempotent, answers when nothing is left) |
| PATCH sandboxes/ID | SandboxChange -> SandboxInfo (deadlines and labels of a live sandbox) |
| POST sandboxes/ID/pause | -> SandboxInfo (paused: its commands stand still); idempotent |
| POST sandboxes/ID/resume | -> SandboxInfo (running); idempotent; so does whatever needs the inside \
  (not: state, usage, a command's status, result, output and cancel) |
| POST sandboxes/ID/stop | -> SandboxInfo (stopped, or failed as it was): results stay; idempotent |
| GET sandboxes/ID/usage | -> Usage |
| GET, PUT sandboxes/ID/network | PUT: NetworkBody, another policy, in force when it answers; what it \
  no longer allows is cut -> NetworkView |
| GET usage?label=k=v | -> NodeUsage: all live sandboxes in one answer |
| GET sandboxes/ID/wait?state=&timeout= | -> SandboxInfo, at the latest after the timeout |
| POST sandboxes/ID/run?op=OPID | CommandSpec -> RunResult; a repeat of OPID gets the recorded \
  answer, or joins the running one |
| POST sandboxes/ID/stream?op=OPID | CommandSpec -> stream of StreamEvent |
| POST sandboxes/ID/ops?op=OPID | CommandSpec -> OpStatus, once its program runs or it has ended |
| GET sandboxes/ID/ops | -> list of OpStatus, without results |
| GET sandboxes/ID/ops/OPID?wait=SECONDS | -> OpStatus |
| GET sandboxes/ID/ops/OPID/output?stdout=N&stderr=N&pace=0 | -> stream of StreamEvent with \
  positions: what was kept from those offsets on, then what comes |
| POST sandboxes/ID/ops/OPID/stdin?offset=N&eof=1 | bytes, streamed -> StdinTaken |
| POST sandboxes/ID/ops/OPID/signal | SignalBody -> {} |
| POST sandboxes/ID/ops/OPID/resize | Terminal -> {} |
| POST sandboxes/ID/ops/OPID/cancel | -> {} |
| POST sandboxes/ID/sessions | SessionCreate -> SessionInfo; a repeat with its id finds it |
| GET sandboxes/ID/sessions | -> list of SessionInfo |
| GET, DELETE sandboxes/ID/sessions/SID | -> SessionInfo, {} (DELETE: idempotent; ends all in it) |
| GET sandboxes/ID/attach?op=OPID&who=&takeover=1&watch=1 (WebSocket) | first CommandSpec (an \
  empty one joins OPID), then ClientEvent / StreamEvent |
| GET sandboxes/ID/forward (WebSocket) | reverse forward: first message ForwardOpen, then \
  ForwardFrame both ways |
| GET sandboxes/ID/connect?port=N (WebSocket) | a connection to a port inside: the node's first \
  message is text, an empty StreamEvent or the error; then binary messages are its bytes, both ways, \
  and an empty one ends that half |
| GET sandboxes/ID/files?path=&user=&offset=&length=&tail=&sparse= | -> bytes, streamed |
| PUT sandboxes/ID/files?path=&user=&mode=&parents=&append=&exclusive=&offset=&sparse=&op= | bytes, \
  streamed -> FileInfo; with an offset in place, else as a whole |
| POST sandboxes/ID/files/op?op= | FileOp -> list of FileInfo |
| GET sandboxes/ID/files/walk?path=&user=&depth=&types=&glob= | -> stream of FileEvent |
| GET sandboxes/ID/files/watch?path=&user=&recursive= | -> stream of FileEvent |
| GET sandboxes/ID/files/usage?path=&user= | -> TreeUsage |
| GET, PUT sandboxes/ID/tree?path=&user=&op= | tar, streamed |
| GET sandboxes/ID/diff | -> DiffBody |
| GET sandboxes/ID/diff/tar?under= | -> tar of added and modified paths |
| POST sandboxes/ID/commit | CommitBody -> LayerManifest, once it can be used |
| POST sandboxes/ID/commits | CommitBody -> CommitInfo, once it is acknowledged (wire/commits.py) |
| GET commits?sandbox= | -> list of CommitInfo, oldest first |
| GET commits/CID?wait=SECONDS | -> CommitInfo, once it is done or failed, or after that time |
| POST sandboxes/ID/fork | ForkBody -> BatchResult |
| POST jobs | JobSpec -> JobInfo; a repeat finds it, and counts as a heartbeat |
| GET jobs?label=k=v&all= | -> list of JobInfo |
| GET, DELETE jobs/JID | -> JobInfo (DELETE: its sandboxes are destroyed, its id is free; idempotent) |
| PATCH jobs/JID | JobChange -> JobInfo (its lease, limits and labels) |
| POST jobs/JID/heartbeat | -> JobInfo: its lease has its full term again |
| POST, DELETE jobs/JID/pause | POST: all -> stream of JobStep (wire/jobs.py); DELETE: ends that \
  where it is -> JobInfo |
| POST, DELETE jobs/JID/resume | likewise: what the job's pause, or the loss of its lease, has paused |
| GET jobs/JID/queue | -> JobQueue: positions and estimates of its creates that wait |
| POST functions/call | CallSpec -> CallResult (spec/function.py); a client that goes ends the call |
| GET functions/attach (WebSocket) | first CallOpen, then CallFeed / CallEvent (wire/functions.py) |
| POST functions/prewarm | Prewarm -> PoolInfo, once the containers are ready |
| GET functions/pools | -> list of PoolInfo |
| POST sandboxes/ID/events?op= | EventsBody -> EventsTaken: verdicts and words of a harness, on record \
  (wire/events.py) |
| GET, POST, DELETE node/drain | POST: DrainBody -> DrainState (no new sandboxes; those that live are \
  stopped after the grace); DELETE takes it back |
| GET workers | -> list of WorkerInfo |
| GET, POST, DELETE workers/{worker}/{path} | bytes -> whatever the worker answers there; not model/ |
| GET images | -> list of LayerManifest |
| GET, DELETE images/NAME | -> LayerManifest |
| POST images/NAME/import?kind=tar,oci&tag=&platform= | tar, streamed -> LayerManifest |
| POST, DELETE images/NAME/pin | -> LayerManifest; POST: it stays whatever its names do |
| POST store/verify | -> RecordsCheck |
| POST store/collect?dry_run= | -> CollectReport; waits for the store's grace period |
| POST images/NAME/registry | RegistryBody -> stream of StreamEvent, likewise |
| POST images/NAME/collapse | CollapseBody -> stream of StreamEvent, likewise |
| POST images/NAME/push | PushBody -> stream of StreamEvent (log lines, then pushed) |
| POST images/NAME/verify?remove= | -> LayerCheck |
| GET images/NAME/verify | -> LayerCheck of the last one |
| POST images/NAME/debian | DebianBody -> stream of StreamEvent (log lines, then manifest) |
| GET trajectories?rollout=&job=&sandbox=&limit=&cursor= | -> TrajectoryPage (spec/trajectory.py) |
| GET trajectories/ID/events?from=&limit= | -> EventPage, of a sandbox that may be long gone |
| GET trajectories/ID/verify | -> TrajectoryCheck |
| GET trajectories/blobs/SHA256 | -> bytes, streamed |
| GET connection?owner=OWNER (WebSocket) | the node sends OwnerWelcome; sandboxes made with that \
  owner's header live as long as its lease (decision 21) |

A stream is a sequence of u32 little-endian length + msgpack StreamEvent; one that ends without a
`result`, `manifest` or `error` event is broken and must be read as an error, never as success. The
`result` of a stream or an attached command has empty `stdout` and `stderr`: they were streamed.

A stream of FileEvent (wire/files.py) is framed in the same way and ends with `done` or `error`. With
`sparse` a file's content is GNU tar's sparse format 1.0: a map of its pieces, then the pieces.

Everything that is done to a sandbox is on record before it is answered. `op` is an operation id: 32
hexadecimal digits. What changes files runs once under it: a repeat gets the recorded answer, another
request under the same id is a Conflict, and OutcomeUnknown if the node was killed in between. What
only reads (GET of files, walk, usage, tree, diff) may carry one as its name on record, and reads again.

What GET gives of `files`, `tree` and `diff/tar` breaks off when it fails midway; who accepts
`application/x-skerry-pieces` (wire/pieces.py) is told why, and so whose fault it is.

A reader of `stream`, and of `output` unless `pace=0`, sets the command's pace: nothing is lost, and
a slow one slows the command. With `pace=0` it is cut off when it falls too far behind.

`stdin` is for a command that was started as interactive. `offset` is where the bytes begin in its
standard input: what has come before is skipped, so that a repeat does no harm; a gap is a Conflict
that names the `expected` offset. It answers when everything was passed on.

A command with a terminal has one writer: who attaches second gets a Conflict that says who holds it
(`who`), watches only (`watch=1`), or takes it over (`takeover=1`): then the first is told by an error
and closed. Who joins gets the tail of what the screen showed; leaving lets the command run.

On `run`, `stream` and `attach`, `on_disconnect=kill` cancels the command when this client goes; the
default, `keep`, lets it run to its end. Files are owned by `user` (default: the sandbox's). Text in
paths that is no UTF-8 is percent-encoded in queries; bodies carry its bytes beside a text with
U+FFFD.
"""

from __future__ import annotations

from typing import Any

import msgspec

from skerry.errors import SkerryError, from_code
from skerry.spec.command import RunResult, Terminal
from skerry.spec.files import Change
from skerry.spec.layers import LayerManifest
from skerry.spec.sandbox import SandboxInfo
from skerry.wire.workers import WorkerInfo

MSGPACK = "application/msgpack"
JSON = "application/json"
STREAM = "application/x-skerry-stream"
METRICS = "text/plain; version=0.0.4; charset=utf-8"
OWNER_HEADER = "x-skerry-owner"  # names the owner connection that an undetached sandbox belongs to
STREAM_EVENT_BYTES_MAX = 1 << 20  # an event carries a piece of output, or a result without any


class ErrorBody(msgspec.Struct, frozen=True):
    """An error on the wire; `fault` repeats what the code implies, for those without our table."""

    code: str
    fault: str
    message: str
    retryable: bool
    fields: dict[str, Any] = {}

    @classmethod
    def of(cls, error: SkerryError) -> ErrorBody:
        """Returns the body for an error; names in it that are no UTF-8 carry U+FFFD there."""
        message, fields = printable(error.message), printable(error.fields)
        return cls(error.code, error.fault, message, error.retryable, fields)

    def to_error(self) -> SkerryError:
        """Returns the error again."""
        return from_code(self.code, self.message, self.fields)


def printable(value: Any) -> Any:
    """Returns a value as it can be sent: surrogate escapes in its texts become U+FFFD."""
    if isinstance(value, str):
        if value.isascii():
            return value
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {name: printable(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [printable(one) for one in value]
    return value


class BlobsHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The process that reads layers on demand, as it last said; it is asked every other second."""

    pid: int
    serving: bool
    blobs: int = 0  # data blobs that are mounted
    cached_bytes: int = 0
    hits: int = 0  # reads answered from the chunk cache
    misses: int = 0  # reads that had to be fetched
    verify_failures: int = 0  # chunks that came wrong from the store
    faults: int = 0  # reads that failed
    store_failing: bool = False


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """A node's own view."""

    node: str
    version: str
    epoch: int
    pid: int
    sandboxes: int
    uptime_s: float
    live: int = 0  # sandboxes with an instance
    draining: bool = False  # it takes no new sandboxes
    embedded: bool = False  # it ends with its last owner, and so does what is not detached
    backends: dict[str, str] = {}  # name -> "usable" or the reason why not
    blobs: BlobsHealth | None = None  # None: no layer is read on demand here
    workers: tuple[WorkerInfo, ...] = ()


class OwnerWelcome(msgspec.Struct, frozen=True):
    """First message on an owner connection.

    Closing it with code 1000 ends the owner at once. Any other end starts the lease: a connection
    with the same owner within it takes everything over again.
    """

    owner: str
    lease_s: float


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
    interactive: bool = False  # its standard input is fed by clients
    terminal: bool = False
    stdin_total: int = (
        0  # while it runs: bytes of its input that were taken, of its output that came
    )
    stdout_total: int = 0
    stderr_total: int = 0
    holder: str | None = None  # who has its terminal
    result: RunResult | None = None
    error: ErrorBody | None = None


class StdinTaken(msgspec.Struct, frozen=True):
    """How far a command's standard input has come, and whether more may follow."""

    offset: int
    open: bool


class SignalBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A signal number, 1 to 64."""

    signal: int


class StreamEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """Exactly one field but `at` is set (started carries the operation id).

    Who joins a command late gets what was kept of its output first; `log` tells what was not. `at`
    is where a piece of output begins in its stream, where positions were asked for.
    """

    started: str | None = None
    stdout: bytes | None = None
    stderr: bytes | None = None
    log: str | None = None  # progress of long work
    result: RunResult | None = None
    manifest: LayerManifest | None = None
    pushed: str | None = None  # the digest that a registry has an image under
    error: ErrorBody | None = None
    at: int | None = None


class ClientEvent(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a client sends on an attached command; exactly one field is set."""

    stdin: bytes | None = None
    eof: bool | None = None
    signal: int | None = None
    resize: Terminal | None = None
    cancel: bool | None = None


class ForwardOpen(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Listen on this port inside (127.0.0.1 and ::1); 0 is refused.

    The node answers with an empty ForwardFrame of connection 0 once the port is open. With `counts`
    both sides tell what they have `taken` of each connection, and send 256 KiB beyond that at most:
    then a slow connection holds up no other one.
    """

    port: int
    counts: bool = False


class ForwardFrame(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A piece of one forwarded connection; `opened` comes from the node first.

    `taken` is how many bytes of it the sender of the frame has carried on, in all.
    """

    conn: int
    opened: bool = False
    data: bytes = b""
    eof: bool = False
    reset: bool = False
    taken: int = 0


class DiffBody(msgspec.Struct, frozen=True):
    """What changed since the sandbox was made, sorted by path."""

    changes: tuple[Change, ...]
    frozen_seconds: float = 0.0


class CommitBody(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Makes a layer of what the sandbox wrote; `exclude` are path prefixes inside.

    `scrub` names rules of skerry.spec.residue; None: the default ones. A repeat with the same `id` (32
    hexadecimal digits) finds the commit that the first one made.
    """

    name: str
    exclude: tuple[str, ...] = ()
    scrub: tuple[str, ...] | None = None
    scrub_git: bool = False
    id: str | None = None


class DebianBody(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A base layer from a Debian suite through the host's own apt configuration."""

    suite: str
    packages: tuple[str, ...] = ()
    refresh: bool = False
