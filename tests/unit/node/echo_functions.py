"""A service of function calls that a test sees through: it gives back what it is given."""

from __future__ import annotations

import asyncio
import fnmatch
import io
import tarfile
from collections.abc import AsyncIterator, Callable

from skerry.errors import SkerryError
from skerry.node.functions.api import CallStreams
from skerry.spec.function import CallSpec, PythonCall
from skerry.spec.function_result import CallResult, PoolInfo, Prewarm


class EchoFunctions:
    """Standard input comes back as stdout, a Python call's args as its value, files as they came.

    `errors` are raised by the next calls, one each; calls wait while `go` is clear.
    """

    def __init__(self) -> None:
        self.specs: list[CallSpec] = []
        self.errors: list[SkerryError] = []
        self.go = asyncio.Event()
        self.go.set()
        self.running = 0
        self.most = 0
        self.ended_early = 0
        self.warmed: list[Prewarm] = []
        self.during: Callable[[CallSpec], None] = lambda _: None

    async def call(
        self, spec: CallSpec, *, tenant: str = "", streams: CallStreams | None = None
    ) -> CallResult:
        self.specs.append(spec)
        if self.errors:
            raise self.errors.pop(0)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            self.during(spec)
            await asyncio.sleep(0)
            await self.go.wait()
            return await self._answer(spec, streams)
        except asyncio.CancelledError:
            self.ended_early += 1
            raise
        finally:
            self.running -= 1

    async def let_go(self, digest: str) -> bool:
        return False

    async def _answer(self, spec: CallSpec, streams: CallStreams | None) -> CallResult:
        files = {name: file.content() for name, file in spec.files.items()}
        if streams is not None and streams.files is not None:
            raw = io.BytesIO(b"".join([piece async for piece in streams.files]))
            with tarfile.open(fileobj=raw) as tar:
                for member in tar:
                    if member.isfile():
                        content = tar.extractfile(member)
                        assert content is not None
                        files[member.name.removeprefix("./")] = content.read()
        total = 0
        if streams is not None and streams.stdin is not None:
            async for piece in streams.stdin:
                total += len(piece)
                await streams.output("stdout", piece)
        elif streams is not None:
            total = len(spec.stdin)
            await streams.output("stdout", spec.stdin)
        wanted = {
            name: data
            for name, data in files.items()
            if any(fnmatch.fnmatch(name, pattern) for pattern in spec.fetch)
        }
        if streams is not None and spec.fetch:
            await streams.fetched(_tar(wanted))
            wanted = {}
        value = list(spec.kind.args) if isinstance(spec.kind, PythonCall) else None
        return CallResult(
            exit_code=0,
            value=value,
            returned=True,
            stdout=b"" if streams is not None else spec.stdin,
            stdout_total=total or len(spec.stdin),
            files=wanted,
        )

    async def prewarm(self, body: Prewarm) -> PoolInfo:
        self.warmed.append(body)
        return self.pools()[0]

    def pools(self) -> tuple[PoolInfo, ...]:
        return tuple(
            PoolInfo(key=one.environment.key(), environment=one.environment, minimum=one.minimum)
            for one in self.warmed
        )


async def _tar(files: dict[str, bytes]) -> AsyncIterator[bytes]:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    for at in range(0, len(raw.getvalue()), 1 << 20):
        yield raw.getvalue()[at : at + (1 << 20)]
