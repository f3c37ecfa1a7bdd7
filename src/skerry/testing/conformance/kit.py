"""What the conformance tests are written with: an instance and a guest client in one hand."""

# ruff: noqa: S101, ASYNC110 - tests: asserting is their purpose, and what is inside sends no events

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import msgspec
import pytest

from skerry.backends.api import Backend, CreateRequest, Instance
from skerry.guest.api import Kind, Operation, Outcome, Stream
from skerry.guest.client import GuestClient
from skerry.guest.files import GuestFiles
from skerry.guest.operation import RunningOperation
from skerry.spec.ids import sandbox_id
from skerry.spec.layers import RootfsPlan

PATIENCE_S = 30.0
NODE = "aaaaa"


class Sink:
    """Keeps all output. With `hold` no byte counts as safe until `release`: there is no credit."""

    def __init__(self, *, hold: bool = False) -> None:
        self.output = {Stream.STDOUT: bytearray(), Stream.STDERR: bytearray()}
        self._safe = asyncio.Event()
        if not hold:
            self._safe.set()

    def write(self, stream: Stream, offset: int, data: bytes) -> None:
        """Takes bytes; they must continue what came before."""
        kept = self.output[Stream(stream)]
        if offset != len(kept):
            raise AssertionError(f"{stream.name}: bytes at {offset} after {len(kept)}")
        kept += data

    def safe_offset(self, stream: Stream) -> int:
        """All that came, unless held."""
        return len(self.output[Stream(stream)]) if self._safe.is_set() else 0

    async def drain(self) -> None:
        """More is welcome unless held."""
        await self._safe.wait()

    def release(self) -> None:
        """Makes everything safe."""
        self._safe.set()


class Result(msgspec.Struct, frozen=True):
    """How a command ended and what it said."""

    outcome: Outcome
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """Its stdout, without the end of the last line."""
        return self.stdout.decode().rstrip("\n")


class Box:
    """An instance with a client. Handles count up and are never reused."""

    def __init__(self, instance: Instance, patience_s: float = PATIENCE_S) -> None:
        self.instance = instance
        self.patience_s = patience_s
        self._client: GuestClient | None = None
        self._handle = 0

    @property
    def client(self) -> GuestClient:
        """The newest connection."""
        assert self._client is not None
        return self._client

    async def connect(self) -> GuestClient:
        """Connects anew."""
        await self.disconnect()
        self._client = await GuestClient.connect(
            self.instance.open_channel, nonce=os.urandom(16), timeout=self.patience_s
        )
        return self._client

    async def disconnect(self) -> None:
        """Drops the connection; nothing inside is disturbed."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def start(
        self, argv: tuple[str | bytes, ...], sink: Sink, **fields: Any
    ) -> tuple[RunningOperation, Operation]:
        """Starts an operation."""
        self._handle += 1
        words = tuple(os.fsencode(word) for word in argv)
        made = Operation(handle=self._handle, op_id=os.urandom(16), argv=words, **fields)
        return self.client.start(made, sink), made

    async def run(self, *argv: str | bytes, stdin: bytes | None = None, **fields: Any) -> Result:
        """Runs a command to its end; `stdin` is fed and closed."""
        sink = Sink()
        running, _ = self.start(argv, sink, stdin=stdin is not None, **fields)
        async with asyncio.timeout(self.patience_s):
            if stdin is not None:
                await asyncio.gather(self._feed(running, stdin), running.wait())
            outcome = await running.wait()
        running.acknowledge()
        return Result(outcome, bytes(sink.output[Stream.STDOUT]), bytes(sink.output[Stream.STDERR]))

    @staticmethod
    async def _feed(running: RunningOperation, data: bytes) -> None:
        await running.write_stdin(data)
        await running.close_stdin()

    async def sh(self, line: str, **fields: Any) -> Result:
        """Runs a shell line."""
        return await self.run("/bin/sh", "-c", line, **fields)

    async def helper(
        self, *words: str | bytes, stdin: bytes | None = None, **fields: Any
    ) -> Result:
        """Runs a word of the file helper."""
        fields = {"cwd": b"/", **fields}
        return await self.run(*words, stdin=stdin, kind=Kind.FILE, **fields)

    def files(self) -> GuestFiles:
        """The file operations of this connection."""

        def new_operation() -> tuple[int, bytes]:
            self._handle += 1
            return self._handle, os.urandom(16)

        return GuestFiles(self.client, new_operation, cwd=b"/")

    async def running_named(self, name: str) -> int:
        """Counts processes inside by their program's name."""
        line = f"cat /proc/[0-9]*/comm 2>/dev/null | grep -cx {name}"
        return int((await self.sh(line)).text)

    async def until(self, question: Callable[[], Any], what: str) -> None:
        """Asks again until the answer is true; fails after a while."""
        try:
            async with asyncio.timeout(self.patience_s):
                while not await question():
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pytest.fail(f"it never happened: {what}")


class Conformance:
    """Base of the parts of the suite. Subclasses give the fixtures `backend` and `rootfs`.

    `known_deviations` maps a test's name to why this backend cannot pass it; such a test must fail.
    """

    known_deviations: ClassVar[dict[str, str]] = {}
    patience_s: ClassVar[float] = PATIENCE_S
    _counter = 0

    @pytest.fixture(autouse=True)
    def _deviations(self, request: pytest.FixtureRequest) -> None:
        reason = self.known_deviations.get(request.node.originalname)
        if reason is not None:
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True))

    @pytest.fixture
    def backend(self) -> Backend:
        """A started backend; after the test it is closed and nothing of it is left."""
        raise NotImplementedError

    @pytest.fixture
    def rootfs(self) -> RootfsPlan:
        """Layers with /bin/sh and the usual small programs."""
        raise NotImplementedError

    @pytest.fixture
    async def box(self, backend: Backend, rootfs: RootfsPlan) -> AsyncIterator[Box]:
        """One instance with a client."""
        async with self.boxed(backend, rootfs) as box:
            yield box

    @asynccontextmanager
    async def boxed(
        self, backend: Backend, rootfs: RootfsPlan, **limits: Any
    ) -> AsyncIterator[Box]:
        """An instance with given limits, destroyed at the end."""
        box = Box(await backend.create(self.request_for(rootfs, **limits)), self.patience_s)
        try:
            await box.connect()
            yield box
        finally:
            await box.disconnect()
            await box.instance.destroy()

    @classmethod
    def request_for(cls, rootfs: RootfsPlan, **limits: Any) -> CreateRequest:
        """A request with a fresh id."""
        Conformance._counter += 1
        name = sandbox_id(NODE, 0, Conformance._counter.to_bytes(8, "big"))
        values: dict[str, Any] = {
            "instance_id": name,
            "rootfs": rootfs,
            "hostname": "conformance",
            "cpu": 1.0,
            "memory_bytes": 256 << 20,
            "pids": 128,
            "nofile": 1024,
            "shm_bytes": 16 << 20,
        }
        return CreateRequest(**(values | limits))

    # What a subclass overrides where its instances differ.

    def kill_first_process(self, instance: Instance) -> None:
        """Ends PID 1 of an instance from outside, as a crash would."""
        raise NotImplementedError

    async def restart(self, backend: Backend) -> Backend:
        """Returns a second, started backend on the same places, after the first was closed."""
        raise NotImplementedError

    def flood(self, size: int) -> tuple[str, ...]:
        """A command that writes so many bytes to stdout."""
        return ("head", "-c", str(size), "/dev/zero")


def is_whiteout(path: str) -> bool:
    """Whether a file of an upper directory hides one below."""
    found = os.lstat(path)
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0
