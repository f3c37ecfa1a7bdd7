"""The fake node of `job_world` behind a socket, so that a worker's real process can be killed.

Calls go over as pickles between a test and the process that it started: nobody else reaches the socket.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from job_world import FakeClient


class NodeServer:
    """Serves a fake client's calls at a unix socket."""

    def __init__(self, client: FakeClient, socket: Path) -> None:
        self._client = client
        self._socket = socket
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> NodeServer:
        self._server = await asyncio.start_unix_server(self._serve, str(self._socket))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Does one call. What it began goes on when the caller dies, as on a node."""
        try:
            target, name, words, more = pickle.loads(await reader.read())
            try:
                found = await self._do(target, name, words, more)
                answer = pickle.dumps((True, found))
            except Exception as error:  # noqa: BLE001 - raised again on the other side
                answer = pickle.dumps((False, error))
            writer.write(answer)
            writer.write_eof()
            await writer.drain()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _do(self, target: str, name: str, words: Any, more: Any) -> Any:
        if target == "client":
            found = await getattr(self._client, name)(*words, **more)
            return found.created_as if hasattr(found, "created_as") else found
        if target == "jobs":
            return (await self._client.jobs.get(*words)).created_as
        if target == "images":
            return await getattr(self._client.images, name)(*words, **more)
        sandbox_id, _, part = target.partition(" ")
        sandbox = await self._client.get(sandbox_id)
        if name == "wait":
            return await sandbox.started[words[0]].wait()
        if name == "start":
            return (await sandbox.start(*words, **more)).op_id
        if name == "diff_tar":
            return [chunk async for chunk in sandbox.diff_tar(*words)]
        if name == "put_tree":
            path, data = words

            async def chunks() -> AsyncIterator[bytes]:
                yield data

            return await sandbox.files.put_tree(path, chunks())
        return await getattr(sandbox.files if part == "files" else sandbox, name)(*words, **more)


class Far:
    """Anything on the other side; each method is a call."""

    def __init__(self, socket: str, target: str) -> None:
        self._socket = socket
        self._target = target

    def __getattr__(self, name: str) -> Any:
        async def call(*words: Any, **more: Any) -> Any:
            return await self.call(name, *words, **more)

        return call

    async def call(self, name: str, *words: Any, **more: Any) -> Any:
        more.pop("on_log", None)
        reader, writer = await asyncio.open_unix_connection(self._socket)
        try:
            writer.write(pickle.dumps((self._target, name, words, more)))
            writer.write_eof()
            good, found = pickle.loads(await reader.read())
        finally:
            writer.close()
        if not good:
            raise found
        return found


class FarFiles(Far):
    async def put_tree(self, path: str, tar: AsyncIterator[bytes]) -> None:
        await self.call("put_tree", path, b"".join([chunk async for chunk in tar]))


class FarCommand:
    def __init__(self, sandbox: Far, op_id: str) -> None:
        self._sandbox = sandbox
        self._op_id = op_id

    async def wait(self) -> Any:
        return await self._sandbox.call("wait", self._op_id)

    async def kill(self) -> None:
        await self._sandbox.call("cancel", self._op_id)


class FarSandbox(Far):
    def __init__(self, socket: str, info: Any) -> None:
        super().__init__(socket, info.id)
        self.id = info.id
        self.created_as = info
        self.files = FarFiles(socket, f"{info.id} files")

    async def start(self, command: Any, **more: Any) -> FarCommand:
        return FarCommand(self, await self.call("start", command, **more))

    async def diff_tar(self, under: str = "/") -> AsyncIterator[bytes]:
        for chunk in await self.call("diff_tar", under):
            yield chunk


class FarJobs:
    def __init__(self, socket: str, images: Far) -> None:
        self._jobs = Far(socket, "jobs")
        self._images = images

    async def get(self, name: str) -> Any:
        return SimpleNamespace(created_as=await self._jobs.get(name), images=self._images)


class FarClient(Far):
    def __init__(self, socket: str) -> None:
        super().__init__(socket, "client")
        self.sandboxes = self
        self.images = Far(socket, "images")
        self.jobs = FarJobs(socket, self.images)

    async def create(self, *words: Any, **options: Any) -> FarSandbox:
        return FarSandbox(self._socket, await self.call("create", *words, **options))

    async def get(self, sandbox_id: str) -> FarSandbox:
        return FarSandbox(self._socket, await self.call("get", sandbox_id))
