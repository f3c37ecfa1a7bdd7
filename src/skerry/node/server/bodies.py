"""The bodies that clients send. Unknown fields are refused here: a typo must not pass as a wish."""

from __future__ import annotations

from skerry.node.server.exchange import Body
from skerry.spec.command import CommandSpec, Terminal
from skerry.spec.function import INLINE_BYTES_MAX, CallSpec
from skerry.spec.function_result import Prewarm
from skerry.spec.job import JobSpec
from skerry.spec.limits import MIB, STDIN_BYTES_MAX
from skerry.spec.sandbox import SandboxSpec
from skerry.wire.batch import BatchCreate, BatchDelete
from skerry.wire.commits import ForkBody
from skerry.wire.control import DrainBody, SandboxChange
from skerry.wire.events import EventsBody
from skerry.wire.files import FileOp
from skerry.wire.functions import CallFeed, CallOpen
from skerry.wire.http import (
    ClientEvent,
    CommitBody,
    DebianBody,
    ForwardFrame,
    ForwardOpen,
    SignalBody,
)
from skerry.wire.jobs import JobChange
from skerry.wire.network import NetworkBody
from skerry.wire.registry import CollapseBody, PushBody, RegistryBody
from skerry.wire.sessions import SessionCreate


class StrictSandboxSpec(SandboxSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A SandboxSpec as a client sends it."""


class StrictCommandSpec(CommandSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A CommandSpec as a client sends it."""


class StrictTerminal(Terminal, frozen=True, forbid_unknown_fields=True):
    """A Terminal as a client sends it."""


class StrictSession(SessionCreate, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A SessionCreate as a client sends it."""


class StrictBatchCreate(BatchCreate, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A BatchCreate as a client sends it."""

    spec: StrictSandboxSpec


class StrictJobSpec(JobSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JobSpec as a client sends it."""


SANDBOX: Body[StrictSandboxSpec] = Body(StrictSandboxSpec)
COMMAND: Body[CommandSpec] = Body(StrictCommandSpec, STDIN_BYTES_MAX * 4 // 3 + MIB)
BATCH_CREATE: Body[StrictBatchCreate] = Body(StrictBatchCreate)
BATCH_DELETE: Body[BatchDelete] = Body(BatchDelete)
CHANGE: Body[SandboxChange] = Body(SandboxChange)
DRAIN: Body[DrainBody] = Body(DrainBody)
SIGNAL: Body[SignalBody] = Body(SignalBody)
SESSION: Body[StrictSession] = Body(StrictSession)
TERMINAL: Body[Terminal] = Body(StrictTerminal)
EVENTS: Body[EventsBody] = Body(EventsBody, 3 * MIB)
FILE_OP: Body[FileOp] = Body(FileOp)
JOB: Body[StrictJobSpec] = Body(StrictJobSpec)
JOB_CHANGE: Body[JobChange] = Body(JobChange)
COMMIT: Body[CommitBody] = Body(CommitBody)
FORK: Body[ForkBody] = Body(ForkBody)
DEBIAN: Body[DebianBody] = Body(DebianBody)
REGISTRY: Body[RegistryBody] = Body(RegistryBody)
PUSH: Body[PushBody] = Body(PushBody)
COLLAPSE: Body[CollapseBody] = Body(CollapseBody)
CLIENT_EVENT: Body[ClientEvent] = Body(ClientEvent)
FORWARD_OPEN: Body[ForwardOpen] = Body(ForwardOpen)
FORWARD_FRAME: Body[ForwardFrame] = Body(ForwardFrame)
CALL: Body[CallSpec] = Body(CallSpec, INLINE_BYTES_MAX * 4 // 3 + 8 * MIB)
CALL_OPEN: Body[CallOpen] = Body(CallOpen)
CALL_FEED: Body[CallFeed] = Body(CallFeed)
PREWARM: Body[Prewarm] = Body(Prewarm)
NETWORK: Body[NetworkBody] = Body(NetworkBody)
