"""Every route of the node's HTTP API: what it takes and what it answers, as types.

`wire.openapi` makes the document of it; a test compares it with the routes that are served.
"""

from __future__ import annotations

from typing import Any, Final

from skerry.spec.command import CommandSpec, RunResult, Terminal
from skerry.spec.files import FileInfo, TreeUsage
from skerry.spec.layers import LayerManifest
from skerry.spec.sandbox import SandboxInfo, SandboxSpec, Usage
from skerry.wire.batch import BatchCreate, BatchDelete, BatchResult
from skerry.wire.commits import CommitInfo, ForkBody
from skerry.wire.control import DrainBody, DrainState, NodeUsage, SandboxChange
from skerry.wire.events import EventsBody, EventsTaken
from skerry.wire.files import FILES_STREAM, FileOp
from skerry.wire.function_routes import FUNCTION_ROUTES
from skerry.wire.http import (
    METRICS,
    STREAM,
    ClientEvent,
    CommitBody,
    DiffBody,
    ForwardFrame,
    ForwardOpen,
    Health,
    OpStatus,
    OwnerWelcome,
    SandboxPage,
    SignalBody,
    StdinTaken,
    StreamEvent,
)
from skerry.wire.image_routes import IMAGE_ROUTES
from skerry.wire.job_routes import JOB_ROUTES
from skerry.wire.network import NetworkBody, NetworkView
from skerry.wire.route import (
    BASE,
    BYTES,
    FLAG,
    GONE,
    NAME,
    ONCE,
    OP,
    PATH,
    STATE,
    STRING,
    TAR,
    USER,
    Param,
    Route,
    integer,
    seconds,
)
from skerry.wire.sessions import SessionCreate, SessionInfo
from skerry.wire.trajectory_routes import TRAJECTORY_ROUTES
from skerry.wire.worker_routes import WORKER_ROUTES

ROUTES: Final[tuple[Route, ...]] = (
    Route("GET", "/v1/health", "The node's own view; needs no token.", answer=Health),
    Route("GET", "/v1/metrics", "Counters and gauges, for Prometheus.", answer=METRICS),
    Route("GET", "/v1/openapi.json", "This document.", answer=dict[str, Any]),
    Route(
        "POST",
        "/v1/sandboxes",
        "Makes a sandbox.",
        SandboxSpec,
        SandboxInfo,
        params=(Param("wait", seconds(60), "waits that long for room; 0"),),
    ),
    Route(
        "GET",
        "/v1/sandboxes",
        "Lists sandboxes, oldest first.",
        answer=SandboxPage,
        params=(
            STATE,
            Param("label", {"type": "array", "items": STRING}, "name=value; all must match"),
            Param("key", STRING, "idempotency key"),
            Param("job", STRING, "id of the job that they belong to"),
            Param("limit", integer(1, 1000), "at most that many; 100"),
            Param("cursor", STRING, "of the page before"),
        ),
    ),
    Route(
        "POST",
        "/v1/sandboxes/batch",
        "Makes many.",
        BatchCreate,
        BatchResult,
        params=(Param("stream", FLAG, "1: the answer is a stream of BatchEvent instead"),),
    ),
    Route("POST", "/v1/sandboxes/batch/delete", "Destroys many.", BatchDelete, BatchResult),
    *JOB_ROUTES,
    *FUNCTION_ROUTES,
    Route("GET", BASE, "What a sandbox is.", answer=SandboxInfo),
    Route(
        "PATCH", BASE, "Changes deadlines and labels while it lives.", SandboxChange, SandboxInfo
    ),
    Route("POST", f"{BASE}/pause", "Its commands stand still; idempotent.", answer=SandboxInfo),
    Route("POST", f"{BASE}/resume", "They go on; idempotent.", answer=SandboxInfo),
    Route(
        "POST", f"{BASE}/stop", "Ends it; name and results stay. Idempotent.", answer=SandboxInfo
    ),
    Route(
        "GET",
        "/v1/usage",
        "What all live sandboxes use, in one answer.",
        answer=NodeUsage,
        params=(Param("label", {"type": "array", "items": STRING}, "name=value; all must match"),),
    ),
    Route("GET", "/v1/node/drain", "How far the node is drained.", answer=DrainState),
    Route(
        "POST",
        "/v1/node/drain",
        "No new sandboxes; those that live are stopped after the grace.",
        DrainBody,
        DrainState,
    ),
    Route("DELETE", "/v1/node/drain", "New sandboxes are taken again.", answer=DrainState),
    Route(
        "DELETE",
        BASE,
        "Destroys it; idempotent, answers when nothing is left.",
        answer=SandboxInfo,
    ),
    Route("GET", f"{BASE}/usage", "What it has used.", answer=Usage),
    Route("GET", f"{BASE}/network", "Its policy, and what came of it.", answer=NetworkView),
    Route("PUT", f"{BASE}/network", "Another policy.", NetworkBody, NetworkView),
    Route("POST", f"{BASE}/sessions", "Makes a session.", SessionCreate, SessionInfo),
    Route("GET", f"{BASE}/sessions", "Its sessions.", answer=list[SessionInfo]),
    Route("GET", f"{BASE}/sessions/{{session}}", "One session.", answer=SessionInfo),
    Route("DELETE", f"{BASE}/sessions/{{session}}", "Ends it and all in it; idempotent."),
    Route(
        "GET",
        f"{BASE}/wait",
        "Answers when it is in one of the states, or after the timeout.",
        answer=SandboxInfo,
        params=(STATE, Param("timeout", seconds(600), "seconds; 30")),
    ),
    Route("POST", f"{BASE}/run", "Runs a command.", CommandSpec, RunResult, (OP, GONE)),
    Route(
        "POST",
        f"{BASE}/stream",
        "Runs a command, output as it comes.",
        CommandSpec,
        STREAM,
        (OP, GONE),
    ),
    Route("GET", f"{BASE}/ops", "Its commands, without results.", answer=list[OpStatus]),
    Route(
        "POST",
        f"{BASE}/ops",
        "Starts a command; answers once its program runs, or it has ended without.",
        CommandSpec,
        OpStatus,
        (OP,),
    ),
    Route(
        "GET",
        f"{BASE}/ops/{{op}}/output",
        "A command's output from these offsets on, with positions: what was kept, then what comes.",
        answer=STREAM,
        params=(
            Param("stdout", integer(0), "offset; 0"),
            Param("stderr", integer(0), "offset; 0"),
            Param("pace", FLAG, "whether a slow reader slows the command, or is cut off; 1"),
        ),
    ),
    Route(
        "POST",
        f"{BASE}/ops/{{op}}/stdin",
        "Passes standard input on; what came before the offset is skipped, a gap is a conflict.",
        BYTES,
        StdinTaken,
        (
            Param("offset", integer(0), "where the bytes begin", required=True),
            Param("eof", FLAG, "that was all; 0"),
        ),
    ),
    Route("POST", f"{BASE}/ops/{{op}}/resize", "Sets a terminal's size.", Terminal),
    Route(
        "GET",
        f"{BASE}/ops/{{op}}",
        "How a command stands.",
        answer=OpStatus,
        params=(Param("wait", seconds(600), "seconds to wait for its end; 0"),),
    ),
    Route("POST", f"{BASE}/ops/{{op}}/signal", "Signals all its processes.", SignalBody),
    Route("POST", f"{BASE}/ops/{{op}}/cancel", "Ends all its processes."),
    Route(
        "GET",
        f"{BASE}/attach",
        "A command's streams both ways. First message: the command; an empty one joins.",
        params=(
            OP,
            GONE,
            Param("who", STRING, "what others are told about who has the terminal"),
            Param("takeover", FLAG, "take the terminal from who has it; 0"),
            Param("watch", FLAG, "only look; 0"),
        ),
        socket=(CommandSpec, ClientEvent, StreamEvent),
    ),
    Route(
        "GET",
        f"{BASE}/forward",
        "Connections to a port inside. First message: ForwardOpen, answered by an empty frame "
        "once it is open; then frames both ways.",
        socket=(ForwardOpen, ForwardFrame),
    ),
    Route(
        "GET",
        f"{BASE}/connect",
        "A connection to a port inside. The first message is text: an empty StreamEvent, or the "
        "error; then binary messages are bytes both ways, and an empty one ends that half.",
        params=(Param("port", integer(1, 65_535), "port of the loopback inside", required=True),),
        socket=(StreamEvent,),
    ),
    Route(
        "GET",
        f"{BASE}/files",
        "A file's content.",
        answer=BYTES,
        params=(
            PATH,
            USER,
            Param("offset", integer(0), "first byte; 0"),
            Param("length", integer(-1), "bytes; -1: to the end, as it is when this is asked"),
            Param("tail", integer(0), "the last bytes instead; at most that many"),
            Param("sparse", FLAG, "as a map of its pieces and the pieces: holes are not sent"),
            NAME,
        ),
    ),
    Route(
        "PUT",
        f"{BASE}/files",
        "Writes a file as a whole.",
        BYTES,
        FileInfo,
        (
            PATH,
            USER,
            Param(
                "mode",
                {"type": "string", "pattern": "^(0o)?[0-7]{1,5}$"},
                "octal; default: its own, if new 644",
            ),
            Param("parents", FLAG, "make missing directories"),
            Param("append", FLAG, "add to what is there"),
            Param("exclusive", FLAG, "refuse if it is there"),
            Param("offset", integer(0), "over what is there, from this byte on, in place"),
            Param("sparse", FLAG, "the body is a map of pieces and the pieces"),
            ONCE,
        ),
    ),
    Route(
        "GET",
        f"{BASE}/files/walk",
        "What is below a directory, as a stream.",
        answer=FILES_STREAM,
        params=(
            PATH,
            USER,
            Param("depth", integer(1), "levels; default: all"),
            Param("types", STRING, "letters of types: f d l p s c b; default: all"),
            Param("glob", STRING, "names, or paths if it holds a slash; ** is any number of parts"),
            NAME,
        ),
    ),
    Route(
        "GET",
        f"{BASE}/files/watch",
        "What happens at and below a path, as a stream.",
        answer=FILES_STREAM,
        params=(PATH, USER, Param("recursive", FLAG, "directories below too")),
    ),
    Route(
        "GET",
        f"{BASE}/files/usage",
        "What a tree takes up.",
        answer=TreeUsage,
        params=(PATH, USER, NAME),
    ),
    Route("POST", f"{BASE}/files/op", "An operation on names.", FileOp, list[FileInfo], (ONCE,)),
    Route(
        "POST",
        f"{BASE}/events",
        "Adds verdicts, and words of a harness, to the record of a sandbox.",
        EventsBody,
        EventsTaken,
        (ONCE,),
    ),
    Route(
        "GET",
        f"{BASE}/tree",
        "A directory, or one file, as a tar.",
        answer=TAR,
        params=(PATH, USER, NAME),
    ),
    Route(
        "PUT", f"{BASE}/tree", "Unpacks a tar beneath a directory.", TAR, None, (PATH, USER, ONCE)
    ),
    Route("GET", f"{BASE}/diff", "What was written, by path.", answer=DiffBody, params=(NAME,)),
    Route(
        "GET",
        f"{BASE}/diff/tar",
        "What was added or modified, as a tar.",
        answer=TAR,
        params=(Param("under", STRING, "only at and below this path; /"), NAME),
    ),
    Route("POST", f"{BASE}/commit", "Makes a layer of it.", CommitBody, LayerManifest),
    Route(
        "POST",
        f"{BASE}/commits",
        "The same, answered once it is acknowledged: what was written before is in the layer.",
        CommitBody,
        CommitInfo,
    ),
    Route(
        "GET",
        "/v1/commits",
        "Commits under way and the last ones, oldest first.",
        answer=list[CommitInfo],
        params=(Param("sandbox", STRING, "only of this sandbox"),),
    ),
    Route(
        "GET",
        "/v1/commits/{commit}",
        "How a commit stands.",
        answer=CommitInfo,
        params=(Param("wait", seconds(600), "seconds to wait for its end; 0"),),
    ),
    Route(
        "POST",
        f"{BASE}/fork",
        "Sandboxes that begin with what this one has written; of one moment.",
        ForkBody,
        BatchResult,
    ),
    *IMAGE_ROUTES,
    *TRAJECTORY_ROUTES,
    Route(
        "GET",
        "/v1/connection",
        "Holds an owner; close with 1000 to end it.",
        params=(Param("owner", STRING, "16 to 64 of A-Za-z0-9_-; default: a new one"),),
        socket=(OwnerWelcome,),
    ),
    *WORKER_ROUTES,
)
