"""A client without a node: what the command line asked for is recorded, answers are laid out first."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from click.testing import CliRunner, Result

from skerry.cli.app import App
from skerry.cli.main import cli
from skerry.errors import NotFound, SkerryError, Unavailable
from skerry.sdk.transfer import Transfer
from skerry.spec.command import RunResult
from skerry.spec.files import FileInfo, FileType, WatchEvent, WatchKind
from skerry.spec.layers import (
    Collected,
    CollectReport,
    Damage,
    LayerCheck,
    LayerManifest,
    RecordsCheck,
)
from skerry.spec.sandbox import SandboxInfo, SandboxSpec, State, Usage
from skerry.spec.session import SessionSpec
from skerry.wire.control import DrainState, NodeUsage
from skerry.wire.http import Health, OpStatus, StreamEvent
from skerry.wire.network import NetworkView
from skerry.wire.sessions import SessionInfo

ONE = "s" + "a" * 20
TWO = "s" + "b" * 20


def info(sandbox_id: str = ONE, state: State = State.RUNNING, **spec: Any) -> SandboxInfo:
    return SandboxInfo(id=sandbox_id, state=state, spec=SandboxSpec(**spec), created=1.0)


def manifest(name: str = "base/debian:12") -> LayerManifest:
    return LayerManifest(
        name=name,
        digest="sha256:" + "0" * 64,
        size_bytes=3 << 20,
        created="2026-01-01T00:00:00Z",
        creator="debian",
    )


@dataclass
class FakeFiles:
    """Files by path; a directory is a path that ends with a slash."""

    content: dict[str, bytes] = field(default_factory=dict)
    calls: list[tuple[Any, ...]] = field(default_factory=list)

    async def stat(self, path: str, *, user: str | None = None) -> FileInfo:
        bare = path.removesuffix("/.").rstrip("/")
        if path.endswith("/.") and bare + "/" not in self.content:
            raise NotFound(f"no directory {path}")
        if bare + "/" in self.content:
            return FileInfo(bare, FileType.DIRECTORY, 0o755, 0, 0, 0, 0.0)
        if bare in self.content:
            return FileInfo(bare, FileType.FILE, 0o644, 0, 0, len(self.content[bare]), 0.0)
        raise NotFound(f"no such file {path}")

    async def mkdir(self, path: str, **keywords: Any) -> None:
        self.calls.append(("mkdir", path))

    async def upload(self, local: str, path: str, **keywords: Any) -> Transfer:
        self.calls.append(("upload", local, path))
        keywords["progress"](5)
        return Transfer(5)

    async def download(self, path: str, local: str, **keywords: Any) -> Transfer:
        self.calls.append(("download", path, local))
        keywords["progress"](7)
        return Transfer(7, ("skipped a\npipe (a FIFO)",))

    async def watch(self, path: str, **keywords: Any) -> AsyncIterator[WatchEvent]:
        self.calls.append(("watch", path, keywords["recursive"]))
        yield WatchEvent(WatchKind.READY, path, directory=True)
        yield WatchEvent(WatchKind.MOVED, f"{path}/b\n", source=f"{path}/a")
        yield WatchEvent(WatchKind.OVERFLOW, path, directory=True)

    async def write(self, path: str, content: AsyncIterator[bytes], **keywords: Any) -> None:
        self.content[path] = b"".join([chunk async for chunk in content])

    async def put_tree(self, path: str, tar: AsyncIterator[bytes], **keywords: Any) -> None:
        self.calls.append(("put_tree", path, b"".join([chunk async for chunk in tar])))

    async def read_chunks(self, path: str, **keywords: Any) -> AsyncIterator[bytes]:
        yield self.content[path]

    async def get_tree(self, path: str, **keywords: Any) -> AsyncIterator[bytes]:
        yield b"a tar"


class FakeLive:
    """An attached command that answers with what it was sent."""

    def __init__(self, result: RunResult) -> None:
        self.result = result
        self.sent = b""
        self.ended = False
        self.input_ended = asyncio.Event()

    async def send(self, data: bytes) -> None:
        self.sent += data
        if data == b"\x04":  # what ends the input of a terminal
            self.input_ended.set()

    async def end_input(self) -> None:
        self.ended = True
        self.input_ended.set()

    async def resize(self, rows: int, cols: int) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[StreamEvent]:
        await self.input_ended.wait()
        yield StreamEvent(stdout=b"got " + self.sent)
        yield StreamEvent(result=self.result)


class FakeHandle:
    """A command in the background, as it was laid out."""

    def __init__(self, client: FakeClient, status: OpStatus) -> None:
        self.client = client
        self.op_id = status.op_id
        self.status = status

    @contextlib.asynccontextmanager
    async def attach(self, **keywords: Any) -> AsyncIterator[FakeLive]:
        self.client.calls.append(("attach", self.op_id, keywords))
        if self.client.failure is not None:
            raise self.client.failure
        self.client.live = FakeLive(self.client.result)
        yield self.client.live

    async def output(self, **keywords: Any) -> AsyncIterator[StreamEvent]:
        self.client.calls.append(("output", self.op_id, keywords))
        for event in self.client.events:
            yield event
        yield StreamEvent(result=self.client.result)

    async def signal(self, number: int) -> None:
        self.client.calls.append(("signal", self.op_id, number))

    async def kill(self) -> None:
        self.client.calls.append(("kill", self.op_id))

    async def wait(self) -> RunResult:
        self.client.calls.append(("wait", self.op_id))
        return self.client.result


class FakeSession:
    def __init__(self, sandbox: FakeSandbox, name: str) -> None:
        self.sandbox = sandbox
        self.name = name

    async def run(self, script: str, **keywords: Any) -> RunResult:
        return await self.sandbox.run(script, session=self.name, **keywords)

    def stream(self, script: str, **keywords: Any) -> AsyncIterator[StreamEvent]:
        return self.sandbox.stream(script, session=self.name, **keywords)


class FakeSandbox:
    def __init__(self, client: FakeClient, of: SandboxInfo) -> None:
        self.client = client
        self.id = of.id
        self.of = of
        self.files = client.files

    async def info(self) -> SandboxInfo:
        return self.of

    async def usage(self) -> Usage:
        return Usage(cpu_seconds=1.5, memory_bytes=2 << 20, pids=3)

    async def run(self, command: Any, **keywords: Any) -> RunResult:
        self.client.commands.append((self.id, command, keywords))
        if self.client.failure is not None:
            raise self.client.failure
        return self.client.result

    async def stream(self, command: Any, **keywords: Any) -> AsyncIterator[StreamEvent]:
        self.client.commands.append((self.id, command, keywords))
        if self.client.failure is not None:
            raise self.client.failure
        for event in self.client.events:
            yield event
        yield StreamEvent(result=self.client.result)

    async def sessions(self) -> list[SessionInfo]:
        return list(self.client.sessions.values())

    async def session(self, name: str, **spec: Any) -> FakeSession:
        made = SessionSpec(**{key: value for key, value in spec.items() if value})
        info = SessionInfo(id=name, spec=made, shell=made.shell, created=0.0)
        assert self.client.sessions.setdefault(name, info).spec == made
        return FakeSession(self, name)

    @contextlib.asynccontextmanager
    async def attach(self, command: Any, **keywords: Any) -> AsyncIterator[FakeLive]:
        self.client.commands.append((self.id, command, keywords))
        self.client.live = FakeLive(self.client.result)
        yield self.client.live

    async def start(self, command: Any, **keywords: Any) -> FakeHandle:
        self.client.commands.append((self.id, command, keywords))
        result = self.client.result if self.client.result.start_error else None
        status = OpStatus(
            op_id="c" * 32,
            state="running" if result is None else "done",
            interactive=keywords["interactive"],
            terminal=keywords["terminal"] is not None,
            result=result,
        )
        return FakeHandle(self.client, status)

    async def command(self, op_id: str) -> FakeHandle:
        return FakeHandle(self.client, self.client.operations[op_id])

    async def ops(self) -> list[OpStatus]:
        return list(self.client.operations.values())

    async def op(self, op_id: str, *, wait: float = 0.0) -> OpStatus:
        return self.client.operations[op_id]

    async def destroy(self) -> None:
        self.client.destroyed.append(self.id)

    async def network(self) -> NetworkView:
        return self.client.network

    async def set_network(self, entries: Any) -> NetworkView:
        self.client.calls.append(("set_network", self.id, tuple(entries)))
        return NetworkView(network=tuple(entries))

    @contextlib.asynccontextmanager
    async def forward(self, port: int, local_port: int = 0, **keywords: Any) -> AsyncIterator[Any]:
        self.client.calls.append(("forward", port, local_port, keywords))
        raise Unavailable("the test has seen enough")
        yield

    @contextlib.asynccontextmanager
    async def reverse_forward(self, port: int, host: str, target: int) -> AsyncIterator[Any]:
        self.client.calls.append(("reverse_forward", port, host, target))
        raise Unavailable("the test has seen enough")
        yield

    async def _become(self, state: State, call: str, **keywords: Any) -> SandboxInfo:
        self.client.calls.append((call, self.id, keywords))
        self.client.infos[self.id] = info(self.id, state)
        return self.client.infos[self.id]

    async def pause(self) -> SandboxInfo:
        return await self._become(State.PAUSED, "pause")

    async def resume(self) -> SandboxInfo:
        return await self._become(State.RUNNING, "resume")

    async def stop(self) -> SandboxInfo:
        return await self._become(State.STOPPED, "stop")

    async def update(self, **keywords: Any) -> SandboxInfo:
        return await self._become(State.RUNNING, "update", **keywords)


class FakeClient:
    """Stands for `skerry.aio.Client` and for its `sandboxes` and `images`."""

    def __init__(self) -> None:
        self.files = FakeFiles()
        self.infos: dict[str, SandboxInfo] = {}
        self.layers: dict[str, LayerManifest] = {}
        self.result = RunResult(exit_code=0)
        self.events: list[StreamEvent] = []
        self.failure: SkerryError | None = None
        self.operations: dict[str, OpStatus] = {}
        self.commands: list[tuple[str, Any, dict[str, Any]]] = []
        self.sessions: dict[str, SessionInfo] = {}
        self.created: list[dict[str, Any]] = []
        self.destroyed: list[str] = []
        self.calls: list[tuple[Any, ...]] = []
        self.live: FakeLive | None = None
        self.readings: list[NodeUsage] = []
        self.drained = DrainState(draining=False, live=0, commands=0)
        self.network = NetworkView()
        self.closed = 0
        self.sandboxes = self
        self.damage: dict[str, tuple[Damage, ...]] = {}
        self.records = RecordsCheck(7)
        self.images = FakeImages(self)

    async def __aenter__(self) -> FakeClient:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.closed += 1

    async def health(self) -> Health:
        return Health(
            node="abcde", version="0", epoch=1, pid=1, sandboxes=0, uptime_s=1.0,
            backends={"container": "usable"},
        )  # fmt: skip

    async def usage(self, labels: dict[str, str] | None = None) -> NodeUsage:
        self.calls.append(("usage", labels))
        return self.readings.pop(0)

    async def drain(self, *, grace: float | None = None) -> DrainState:
        self.calls.append(("drain", grace))
        self.drained = DrainState(draining=True, live=len(self.infos), commands=0)
        return self.drained

    async def undrain(self) -> DrainState:
        self.drained = DrainState(draining=False, live=len(self.infos), commands=0)
        return self.drained

    async def drain_state(self) -> DrainState:
        self.infos.popitem()  # one less lives each time that somebody looks
        return DrainState(draining=self.drained.draining, live=len(self.infos), commands=0)

    async def create(self, backend: str = "container", **spec: Any) -> FakeSandbox:
        self.created.append(spec)
        return FakeSandbox(self, info(ONE))

    async def get(self, sandbox_id: str) -> FakeSandbox:
        if sandbox_id not in self.infos:
            raise NotFound(f"there is no sandbox {sandbox_id}")
        return FakeSandbox(self, self.infos[sandbox_id])

    async def list(self, **filters: Any) -> list[SandboxInfo]:
        self.calls.append(("list", filters))
        return list(self.infos.values())

    async def destroy_many(self, ids: list[str]) -> None:
        self.destroyed += ids


class FakeImages:
    def __init__(self, client: FakeClient) -> None:
        self.client = client

    async def list(self) -> list[LayerManifest]:
        return list(self.client.layers.values())

    async def inspect(self, name: str) -> LayerManifest:
        if name not in self.client.layers:
            raise NotFound(f"there is no layer {name}")
        return self.client.layers[name]

    async def remove(self, name: str) -> None:
        self.client.calls.append(("remove", name))

    async def verify_records(self) -> RecordsCheck:
        self.client.calls.append(("verify_records",))
        return self.client.records

    async def last_check(self, name: str) -> LayerCheck:
        self.client.calls.append(("last_check", name))
        found = await self.inspect(name)
        damage = self.client.damage.get(name, ())
        checked = "2026-01-02T03:04:05Z" if damage else ""
        return LayerCheck(name, found.digest, 1 << 20, damage, checked=checked)

    async def verify(self, name: str, *, remove_damaged: bool = False) -> LayerCheck:
        self.client.calls.append(("verify", name, remove_damaged))
        found = await self.inspect(name)
        damage = self.client.damage.get(name, ())
        return LayerCheck(name, found.digest, 1 << 20, damage, remove_damaged and bool(damage))

    async def pin(self, name: str) -> LayerManifest:
        self.client.calls.append(("pin", name))
        return await self.inspect(name)

    async def unpin(self, name: str) -> LayerManifest:
        self.client.calls.append(("unpin", name))
        return await self.inspect(name)

    async def collect(self, *, dry_run: bool = False) -> CollectReport:
        self.client.calls.append(("collect", dry_run))
        gone = Collected("sha256:" + "a" * 64, 1 << 20)
        kept = Collected("sha256:" + "b" * 64, 2 << 20, ("pin", "tag base/debian:12"))
        return CollectReport(dry_run, (gone,), (kept,), 1 << 20, 2 << 20)

    async def import_tar(self, name: str, source: Any, **keywords: Any) -> LayerManifest:
        self.client.calls.append(("import_tar", name, source))
        return manifest(name)

    async def import_directory(self, name: str, path: str, **keywords: Any) -> LayerManifest:
        self.client.calls.append(("import_directory", name, path, keywords["prefix"]))
        return manifest(name)

    async def import_oci(self, name: str, source: str, **keywords: Any) -> LayerManifest:
        if on_log := keywords.pop("on_log", None):
            on_log("copying")
        keywords.pop("progress", None)
        self.client.calls.append(("import_oci", name, source, keywords))
        return manifest(name)

    async def push(self, names: Any, target: str, **keywords: Any) -> str:
        keywords.pop("on_log")("copying")
        self.client.calls.append(("push", tuple(names), target, keywords))
        return "sha256:" + "d" * 64

    async def collapse(self, names: Any, into: str, **keywords: Any) -> LayerManifest:
        keywords.pop("on_log")("reading")
        self.client.calls.append(("collapse", tuple(names), into, keywords))
        return manifest(into)

    async def debian(self, name: str, suite: str, packages: Any, **keywords: Any) -> LayerManifest:
        self.client.calls.append(("debian", name, suite, tuple(packages), keywords["refresh"]))
        keywords["on_log"]("fetching")
        return manifest(name)

    async def build(self, name: str, **keywords: Any) -> LayerManifest:
        keywords.pop("on_log")("$ step")
        self.client.calls.append(("build", name, keywords))
        return manifest(name)


def invoke(
    client: FakeClient | None,
    *arguments: str,
    input: bytes | str | None = None,  # noqa: A002
) -> Result:
    """Runs the command line against the client; without one, connecting is a failure of the test."""

    def connect(settings: Any) -> Any:
        assert client is not None, "the command must not connect"
        client.calls.append(("connect", settings))
        return client

    return CliRunner().invoke(cli, list(arguments), obj=App(connect=connect), input=input)
