"""A client without a node: layers are names, sandboxes are dictionaries, answers are scripted."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from skerry.errors import Conflict, NotFound, SkerryError, Unavailable
from skerry.spec.command import RunResult
from skerry.spec.files import Change, ChangeKind, FileInfo, FileType
from skerry.spec.job import JobInfo, JobSpec, JobState
from skerry.spec.layers import LayerManifest, MountedLayer
from skerry.spec.sandbox import SandboxInfo, SandboxSpec, State
from skerry.spec.task import TaskSpec, parse_task
from skerry.wire.http import OpStatus
from skerry.worker.downloads import Downloads
from skerry.worker.environment import PYTEST, Builder, Environment
from skerry.worker.inside import program

CORE = "src/demo/core.py"
BUG = "tests/test_core.py::test_bug"
GOOD = {BUG: "passed", "tests/test_core.py::test_a": "passed"}

Report = Callable[["FakeSandbox", dict[str, Any]], RunResult]


class FakeFiles:
    """What was written, by path."""

    def __init__(self, sandbox: FakeSandbox) -> None:
        self._sandbox = sandbox
        self.content: dict[str, bytes] = {}

    async def read(self, path: str) -> bytes:
        self._sandbox.may("read")
        return self.content.get(path, b"VALUE = 1\n")

    async def write(self, path: str, content: bytes | str, *, mode: int | None = None) -> FileInfo:
        self._sandbox.may("write")
        self.content[path] = content.encode() if isinstance(content, str) else content
        return FileInfo(path, FileType.FILE, mode or 0o644, 0, 0, len(content), 0.0)

    async def mkdir(self, path: str, *, mode: int = 0o755, parents: bool = False) -> None:
        self._sandbox.may("mkdir")

    async def put_tree(self, path: str, tar: AsyncIterator[bytes]) -> None:
        self._sandbox.may("put_tree")
        data = b"".join([chunk async for chunk in tar])
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                file = archive.extractfile(member)
                self.content[f"{path}/{member.name}"] = file.read() if file else b""


class FakeCommand:
    """A command that was started. `work` goes on without whoever waits for it."""

    def __init__(self, op_id: str, work: asyncio.Future[RunResult]) -> None:
        self.op_id = op_id
        self.work = work

    async def wait(self) -> RunResult:
        await asyncio.wait({self.work})
        if self.work.cancelled():
            return RunResult(signal=9, cancelled=True)
        return self.work.result()

    async def kill(self) -> None:
        self.work.cancel()


class FakeSandbox:
    """One sandbox. `role` is its label; the world's knobs decide what fails."""

    def __init__(self, world: FakeClient, number: int, spec: SandboxSpec) -> None:
        self.world = world
        self.id = f"s{number:020d}"
        self.spec = spec
        self.role = spec.labels.get("role", "")
        self.files = FakeFiles(self)
        self.commands: list[Any] = []
        self.started: dict[str, FakeCommand] = {}
        self.alive = True
        self.paused = False

    @property
    def created_as(self) -> SandboxInfo:
        mounts = tuple(
            MountedLayer(name.rpartition("@")[2]) for name in (self.spec.image, *self.spec.layers)
        )
        return SandboxInfo(id=self.id, state=State.RUNNING, spec=self.spec, mounts=mounts)

    def may(self, what: str) -> None:
        if self.world.on_call:
            self.world.on_call(self, what)

    async def info(self) -> SandboxInfo:
        self.may("info")
        names = (self.spec.image, *self.spec.layers)
        digests = tuple(name.rpartition("@")[2] for name in names)
        return SandboxInfo(id=self.id, state=State.RUNNING, spec=self.spec, digests=digests)

    async def run(
        self,
        command: str | Sequence[str],
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as the protocol has it
        output_limit: int = 0,
    ) -> RunResult:
        self.may("run")
        self.commands.append(command)
        if self.world.hang and self.role == "agent":
            await asyncio.sleep(3600)
        words = [command] if isinstance(command, str) else list(command)
        if words[0] == "patch":
            self.files.content[f"/testbed/{CORE}"] = b"VALUE = 2\n"
        if words[-1].endswith("verifier.py"):
            order = json.loads(stdin or b"{}")
            if order["mode"] == "verify":
                self.may("test")
                return self.world.report(self, order)
        return RunResult(exit_code=0, stdout=b"ok\n")

    async def start(
        self, command: str | Sequence[str], *, op_id: str, user: str | None = None, **more: Any
    ) -> FakeCommand:
        """Runs it at once, or finds it; it goes on whoever waits."""
        if op_id not in self.started:
            run = self.world.scaffold or FakeSandbox.run
            work = asyncio.ensure_future(run(self, command, **more))
            work.add_done_callback(lambda task: task.cancelled() or task.exception())
            self.started[op_id] = FakeCommand(op_id, work)
        return self.started[op_id]

    async def ops(self) -> list[OpStatus]:
        self.may("ops")
        return [
            OpStatus(op_id=one.op_id, state="done" if one.work.done() else "running")
            for one in self.started.values()
        ]

    async def cancel(self, op_id: str) -> None:
        self.started[op_id].work.cancel()

    async def pause(self) -> SandboxInfo:
        self.may("pause")
        self.paused = True
        return await self.info()

    async def resume(self) -> SandboxInfo:
        self.may("resume")
        self.paused = False
        return await self.info()

    async def record(
        self,
        action: str,
        *,
        request: dict[str, Any] | None = None,
        result: dict[str, Any] | None = None,
        started: float | None = None,
        ended: float | None = None,
        usage: dict[str, Any] | None = None,
        op_id: str | None = None,
    ) -> int:
        self.may("record")
        self.world.posts += 1
        key = op_id or str(len(self.world.recorded))
        told = (self.id, action, request, result)
        if self.world.recorded.setdefault(key, told) != told:
            raise Conflict(f"operation {key} is another one")
        self.world.times.setdefault(key, (started, ended, usage))
        return len(self.world.recorded)

    async def diff(self) -> tuple[Change, ...]:
        self.may("diff")
        return tuple(
            Change(
                path,
                ChangeKind.MODIFIED,
                mode=0o644,
                size=len(content),
                digest="sha256:" + hashlib.sha256(content).hexdigest(),
            )
            for path, content in sorted(self.files.content.items())
        )

    async def diff_tar(self, under: str = "/") -> AsyncIterator[bytes]:
        self.may("diff_tar")
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for path, content in sorted(self.files.content.items()):
                if path.startswith(under + "/"):
                    info = tarfile.TarInfo(path[1:])
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
        yield out.getvalue()

    @contextlib.asynccontextmanager
    async def reverse_forward(self, port: int, host: str, target_port: int) -> AsyncIterator[None]:
        self.world.forwards.append((port, host, target_port))
        yield

    async def destroy(self) -> None:
        self.alive = False
        for one in self.started.values():
            one.work.cancel()
        self.may("destroy")


class FakeClient:
    """A node of nothing. Knobs: `on_call` may raise, `report` answers for the verifier, `hang`."""

    def __init__(self) -> None:
        self.sandboxes = self
        self.images = FakeImages()
        self.jobs = FakeJobs(self.images)
        self.made: list[FakeSandbox] = []
        self.recorded: dict[str, tuple[str, str, Any, Any]] = {}  # by operation id
        self.times: dict[str, tuple[float | None, float | None, Any]] = {}
        self.posts = 0
        self.on_create: Callable[[str], None] | None = None
        self.on_call: Callable[[FakeSandbox, str], None] | None = None
        self.report: Report = honest
        self.hang = False
        self.away = False
        self.scaffold: Any = None  # what a command of an agent does: (sandbox, command, **more)
        self.user = "root"  # of agents
        self.asked: list[dict[str, Any]] = []  # what sandboxes were made with
        self.forwards: list[tuple[int, str, int]] = []

    async def create(self, backend: str = "container", **options: Any) -> FakeSandbox:
        labels = options["labels"]
        await asyncio.sleep(0)
        if self.on_create:
            self.on_create(labels["role"])
        wanted = "root" if labels["role"] == "verify" else self.user
        assert options["user"] == wanted, "what an image says of a user is not for the verifier"
        self.asked.append(options)
        key = options.get("key")
        for one in self.made:
            if key is not None and one.spec.key == key and one.alive:
                return one
        spec = SandboxSpec(
            image=options["image"], layers=options["layers"], labels=labels, key=key,
            uplinks=options.get("uplinks", ()), job=options.get("job"),
        )  # fmt: skip
        self.made.append(FakeSandbox(self, len(self.made), spec))
        return self.made[-1]

    async def get(self, sandbox_id: str) -> FakeSandbox:
        for one in self.made:
            if one.id == sandbox_id and one.alive:
                return one
        raise NotFound(f"no sandbox {sandbox_id}")

    async def list(
        self, *, key: str | None = None, labels: dict[str, str] | None = None
    ) -> Sequence[SandboxInfo]:
        return [
            one.created_as
            for one in self.made
            if one.alive
            and key in (None, one.spec.key)
            and (labels or {}).items() <= one.spec.labels.items()
        ]

    async def health(self) -> Any:
        if self.away:
            raise Unavailable("the node is away")

    def left(self) -> list[str]:
        return [one.id for one in self.made if one.alive]


class FakeJobs:
    """The job of any name; `state` is how it stands."""

    def __init__(self, images: FakeImages) -> None:
        self.state = JobState.ACTIVE
        self._images = images

    async def get(self, name: str) -> Any:
        info = JobInfo(id=name, state=self.state, spec=JobSpec(id=name))
        return SimpleNamespace(created_as=info, images=self._images)


class FakeImages:
    """Names of layers; each build is noted."""

    def __init__(self) -> None:
        self.known: dict[str, LayerManifest] = {}
        self.builds: list[tuple[str, str, tuple[str, ...], tuple[str, ...]]] = []
        self.options: list[dict[str, Any]] = []  # of each build by steps

    def _make(self, name: str) -> LayerManifest:
        digest = "sha256:" + hashlib.sha256(name.encode()).hexdigest()
        self.known[name] = LayerManifest(name, digest, 1, "2026-01-01T00:00:00Z", "build")
        return self.known[name]

    async def inspect(self, name: str) -> LayerManifest:
        if name.partition("@")[0] not in self.known:
            raise NotFound(f"no layer {name}")
        return self.known[name.partition("@")[0]]

    async def debian(
        self, name: str, suite: str, packages: Sequence[str] = (), *, on_log: Any = None
    ) -> LayerManifest:
        self.builds.append((name, suite, (), ()))
        return self._make(name)

    async def build(
        self,
        name: str,
        *,
        image: str = "",
        layers: Sequence[str] = (),
        context: Any = None,
        steps: Sequence[str],
        on_log: Any = None,
        **options: Any,
    ) -> LayerManifest:
        await asyncio.sleep(0)
        self.options.append(options)
        files = tuple(sorted(path.name for path in Path(context).iterdir()))
        self.builds.append((name, image, tuple(layers), (*files, *steps)))
        return self._make(name)


def reported(order: dict[str, Any], outcomes: dict[str, str], **more: Any) -> RunResult:
    body = {"step": "ran", "finished": True, "outcomes": outcomes, "status": 0} | more
    text = f"SKERRY-REPORT-{order['nonce']} {json.dumps(body)}\n"
    return RunResult(exit_code=0, stdout=text.encode())


def honest(sandbox: FakeSandbox, order: dict[str, Any]) -> RunResult:
    """The verifier of a world in which VALUE = 2 is the fix."""
    fixed = sandbox.files.content.get(f"/testbed/{CORE}") == b"VALUE = 2\n"
    return reported(order, GOOD if fixed else GOOD | {BUG: "failed"})


def raiser(error: SkerryError, *, role: str, call: str, times: int = 99) -> Any:
    """Returns an `on_call` that raises for the first `times` matching calls."""
    left = [times]

    def check(sandbox: FakeSandbox, what: str) -> None:
        if sandbox.role == role and what == call and left[0] > 0:
            left[0] -= 1
            raise error

    return check


def sdist(name: str, files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, content in files.items():
            info = tarfile.TarInfo(f"{name}/{path}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return gzip.compress(out.getvalue(), mtime=0)


def task_text(cache: Path, name: str = "demo-1") -> str:
    """Puts two releases into the cache and returns the task that pins them."""
    downloads = Downloads(cache, {})
    shas = {}
    for version, value in (("1", b"VALUE = 1\n"), ("2", b"VALUE = 2\n")):
        data = sdist(f"demo-{version}", {CORE: value, "tests/test_core.py": b"# " + value})
        shas[version] = hashlib.sha256(data).hexdigest()
        _store(downloads, f"demo-{version}.tar.gz", shas[version], data)
    for wheel in PYTEST:
        _store(downloads, wheel.file, wheel.sha256, b"")
    return f"""
id = "{name}"
title = "A demo"
bug = "VALUE should be 2."
source_files = ["{CORE}"]
test_paths = ["tests"]
protected_paths = ["tests", "pyproject.toml"]
[package]
name = "demo"
bug = {{ version = "1", file = "demo-1.tar.gz", sha256 = "{shas["1"]}" }}
fix = {{ version = "2", file = "demo-2.tar.gz", sha256 = "{shas["2"]}" }}
[tests]
argv = ["python", "-m", "pytest", "tests"]
import_roots = ["src"]
fail_to_pass = ["{BUG}"]
pass_to_pass = 1
"""


def _store(downloads: Downloads, file: str, sha256: str, data: bytes) -> None:
    from skerry.spec.task import Archive

    path = downloads.path(Archive(file, sha256))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


class OpenDownloads(Downloads):
    """Does not look at the digests of wheels: the fake ones are empty."""

    def read(self, archive: Any) -> bytes:
        if archive.file.endswith(".whl"):
            return EMPTY_ZIP
        return super().read(archive)


EMPTY_ZIP = b"PK\x05\x06" + bytes(18)


def task(cache: Path, name: str = "demo-1") -> TaskSpec:
    return parse_task(task_text(cache, name), name)


async def environment(client: FakeClient, cache: Path) -> Environment:
    builder = Builder(client.images, OpenDownloads(cache, {}), lambda text: None)
    return (await builder.build([task(cache)]))[0]


__all__ = ["FakeClient", "environment", "program", "raiser", "reported", "task"]
