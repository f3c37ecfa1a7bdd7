"""A node with a fake backend, a fake library and, where a test wants it, a clock that it moves."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from skerry.errors import Conflict, NotFound, SkerryError, Unavailable
from skerry.network.services import Service
from skerry.node.build import build_node
from skerry.node.clock import SystemClock
from skerry.node.config import Limits, NodeConfig
from skerry.node.imports import Oci
from skerry.node.library import Log, Reader
from skerry.node.main import alive, running
from skerry.node.network import Networks
from skerry.node.node import Node
from skerry.sdk.sandboxes import AsyncSandboxes
from skerry.sdk.transport import Transport
from skerry.spec.files import Change, ChangeKind
from skerry.spec.layers import LayerFile, LayerManifest, MountMode, RootfsPlan, parse_layer_name
from skerry.testing.fake import FakeBackend, FakeWorld

_count = itertools.count()

FREE = {"memory_free_min_bytes": 0, "disk_free_min_bytes": 0}


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._back: set[int] = set()

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1_700_000_000.0 + self.now

    def wake_at(self, deadline: float, call: Callable[[], None]) -> Callable[[], None]:
        number = next(_count)
        heapq.heappush(self._heap, (deadline, number, call))
        return lambda: self._back.add(number)

    async def advance(self, seconds: float) -> None:
        """Moves on, making the calls that fall due, and lets what they began get under way."""
        end = self.now + seconds
        while self._heap and self._heap[0][0] <= end:
            deadline, number, call = heapq.heappop(self._heap)
            self.now = max(self.now, deadline)
            if number not in self._back:
                call()
            await settle()
        self.now = end
        await settle()


async def settle(rounds: int = 30) -> None:
    for _ in range(rounds):
        await asyncio.sleep(0)


class FakeLibrary:
    """Layers by name only; `debian:12` is there from the start."""

    def __init__(self) -> None:
        self.layers: dict[str, LayerManifest] = {}
        self.imported: dict[str, bytes] = {}
        self.resolved = 0
        self.tidied: list[set[str]] = []
        self.mode = MountMode.TRUSTED
        self.commits = 0
        self.committed: list[str] = []
        self.packing = threading.Event()  # while it is clear, packing waits
        self.packing.set()
        self.merging = threading.Event()
        self.merging.set()
        self.merged = 0
        self.shortened: list[tuple[str, int]] = []
        self.refuse_shorten: list[SkerryError] = []
        self.refuse_commit: SkerryError | None = None
        self.add("base/debian:12")

    def add(self, name: str) -> LayerManifest:
        digest = f"sha256:{len(self.layers) + 1:064x}"
        manifest = LayerManifest(name, digest, 1, "2026-01-01T00:00:00Z", "import")
        self.layers[name] = manifest
        return manifest

    def inspect(self, name: str) -> LayerManifest:
        full = str(parse_layer_name(name, parse_layer_name("base/x").kind))
        if full not in self.layers:
            raise NotFound(f"there is no layer {full}")
        return self.layers[full]

    def resolve(self, names: Sequence[str]) -> tuple[LayerManifest, ...]:
        self.resolved += 1
        return tuple(self.inspect(name) for name in names)

    def shorten(self, commit: LayerManifest, most: int, **more: Any) -> int:
        self.shortened.append((commit.name, most))
        while not self.merging.wait(0.02):
            if more["apart"].ended:
                raise Unavailable("it was ended")
        if self.refuse_shorten:
            raise self.refuse_shorten.pop()
        self.merged += 1
        return 2

    def restore(self, name: str) -> tuple[LayerManifest, tuple[LayerManifest, ...]]:
        commit = self.inspect(name)
        return commit, (*commit.below, commit)

    def plan(self, manifests: Sequence[LayerManifest]) -> RootfsPlan:
        layers = [layer for manifest in manifests for layer in manifest.layers()]
        return RootfsPlan(
            tuple(LayerFile(m.digest[7:39], m.digest, "/blob", mode=self.mode) for m in layers)
        )

    def tidy(self, in_use: Collection[str] = ()) -> None:
        self.tidied.append(set(in_use))

    def hold(self, manifests: Sequence[LayerManifest]) -> None:
        pass

    def pin(self, name: str) -> LayerManifest:
        return self.inspect(name)

    unpin = pin

    def list(self) -> tuple[LayerManifest, ...]:
        return tuple(self.layers.values())

    def remove(self, name: str, in_use: Collection[str] = ()) -> None:
        manifest = self.inspect(name)
        if manifest.digest in in_use:
            raise Conflict(f"{name} is in use by a sandbox")
        del self.layers[manifest.name]

    def import_tar(self, name: str, fileobj: Reader) -> LayerManifest:
        self.imported[name] = b"".join(iter(lambda: fileobj.read(1 << 16), b""))
        return self.add(str(parse_layer_name(name)))

    def debian(
        self, name: str, suite: str, packages: Sequence[str], log: Log, refresh: bool
    ) -> LayerManifest:
        log(f"suite {suite}")
        log(f"{len(packages)} packages")
        if suite == "nowhere":
            raise NotFound("no such suite")
        return self.add(str(parse_layer_name(name, parse_layer_name("base/x").kind)))

    def diff(self, upper: Any) -> list[Change]:
        found = []
        for directory, _, files in os.walk(upper.path):
            for file in files:
                path = os.path.join(directory, file).removeprefix(upper.path)
                found.append(Change(path, ChangeKind.ADDED))
        return sorted(found, key=lambda change: change.path)

    def diff_tar(self, upper: Any, under: str = "/") -> Iterator[bytes]:
        yield b"tar of " + under.encode()
        yield b"."

    def commit(self, upper: Any, name: str, **more: Any) -> LayerManifest:
        self.commits += 1
        more["log"]("packing")
        while not self.packing.wait(0.02):
            if more["apart"].ended:
                raise Unavailable("it was ended")
        if self.refuse_commit is not None:
            raise self.refuse_commit
        self.committed = [change.path for change in self.diff(upper)]
        made = self.add(str(parse_layer_name(name)))
        made = msgspec.structs.replace(
            made, creator="commit", parents=more["parents"], below=more["below"]
        )
        self.layers[made.name] = made
        return made


@dataclass
class Stand:
    """What a test stands on: directories and fakes that outlive one node."""

    root: str
    world: FakeWorld = field(default_factory=FakeWorld)
    library: FakeLibrary = field(default_factory=FakeLibrary)
    clock: Any = None
    backend: Any = None
    shared: Any = None  # where trajectories are shipped to
    services: dict[str, Service] = field(
        default_factory=lambda: {
            "pypi": Service(hosts=("pypi.example", "files.example")),
            "npm": Service(hosts=("npm.example",)),
            "debian": Service(
                hosts=("deb.example",),
                apt={
                    "DEBIAN_URI": "http://deb.example/debian",
                    "DEBIAN_SECURITY_URI": "http://deb.example/security",
                },
            ),
        }
    )

    def config(self, **changes: Any) -> NodeConfig:
        values: dict[str, Any] = {
            "state_dir": f"{self.root}/state",
            "run_dir": f"{self.root}/run",
            "store_dir": f"{self.root}/store",
            "backends": ("fake",),
            "limits": Limits(memory_free_min_bytes=0, disk_free_min_bytes=0),
        }
        return NodeConfig(**(values | changes))

    def build(self, *, oci: Oci | None = None, **changes: Any) -> Node:
        self.backend = FakeBackend(world=self.world)
        config = self.config(**changes)
        clock = self.clock or SystemClock()
        return build_node(
            config,
            networks=Networks(config.network, clock, discovered=self.services.__getitem__),
            clock=self.clock,
            backends={"container": self.backend},
            library=self.library,
            oci=oci,
            shared=self.shared,
        )

    @asynccontextmanager
    async def alive(self, **changes: Any) -> AsyncIterator[Node]:
        """A node without its HTTP face."""
        node = self.build(**changes)
        async with alive(node):
            yield node
            node.check_invariants()

    @asynccontextmanager
    async def serving(
        self, *, leave: Callable[[], None] | None = None, **changes: Any
    ) -> AsyncIterator[tuple[Node, Api]]:
        node = self.build(**changes)
        async with running(node, leave=leave) as listener, Api(node.config.socket_path) as api:
            api.tcp = listener.tcp
            yield node, api
            await settle()
            node.check_invariants()


class Api:
    """A plain client of the node, in JSON, over its unix socket."""

    def __init__(self, path: str) -> None:
        self.session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path, limit=0), base_url="http://node"
        )
        self.tcp: tuple[str, int] | None = None

    async def __aenter__(self) -> Api:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    async def call(
        self, method: str, path: str, body: Any = None, *, status: int = 200, **kwargs: Any
    ) -> Any:
        """Returns the decoded answer, which must have the status."""
        if body is not None:
            kwargs["data"] = msgspec.json.encode(body)
            kwargs.setdefault("headers", {}).setdefault("content-type", "application/json")
        async with self.session.request(method, path, **kwargs) as answer:
            data = await answer.read()
            assert answer.status == status, (answer.status, data[:500])
            return msgspec.json.decode(data)

    async def create(self, **spec: Any) -> str:
        info = await self.call("POST", "/v1/sandboxes", spec)
        assert info["state"] == "running"
        return str(info["id"])


@asynccontextmanager
async def sandboxes_of(node: Any) -> AsyncIterator[AsyncSandboxes]:
    transport = Transport("http://node", socket_path=node.config.socket_path)
    try:
        yield AsyncSandboxes(transport)
    finally:
        await transport.close()


def nothing_left(stand: Any, node: Any) -> bool:
    counts = (len(node.sandboxes), node.admission.sandboxes, len(node.batches))
    return counts == (0, 0, 0) and stand.world.instances == {} and not node.admission.waiting
