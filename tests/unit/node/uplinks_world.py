"""A node with uplinks, clients inside its sandboxes, and the trainer's side of its worker."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

from skerry.node.workers.options import WorkersConfig
from waiting import until

PORT = 4321


STAND_IN = str(Path(__file__).parents[2] / "worker_stand_in.py")


CHAT = {"model": "policy", "messages": [{"role": "user", "content": "2 + 2?"}]}


def workers(**changes: Any) -> WorkersConfig:
    return WorkersConfig(command=(sys.executable, STAND_IN), **changes)


class Client:
    """One connection from inside to the uplink."""

    def __init__(self, stand: Any, sandbox: str, port: int = PORT) -> None:
        self.stream = stand.world.instances[sandbox].agent.ports.connect(port)
        self._data = b""

    async def send(
        self, body: Any = CHAT, path: str = "chat/completions", *, key: str = "key", **headers: str
    ) -> None:
        data = msgspec.json.encode(body)
        named = {"Authorization": f"Bearer {key}", "Content-Length": str(len(data)), **headers}
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in named.items())
        text = f"POST /v1/{path} HTTP/1.1\r\nHost: x\r\n{head}\r\n"
        await self.stream.write(text.encode() + data)

    async def receive(self) -> tuple[int, dict[str, str], bytes]:
        """Returns the next answer; it must be whole."""
        while b"\r\n\r\n" not in self._data:
            await self._more()
        head, _, self._data = self._data.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)
        }
        size = int(headers.get("content-length", "0"))
        while len(self._data) < size:
            await self._more()
        body, self._data = self._data[:size], self._data[size:]
        return int(first.split()[1]), headers, body

    async def ask(self, body: Any = CHAT, **more: Any) -> tuple[int, Any]:
        await self.send(body, **more)
        status, _, data = await self.receive()
        return status, msgspec.json.decode(data)

    async def _more(self) -> None:
        data = await self.stream.read()
        if not data:
            raise EOFError(self._data)
        self._data += data


class World:
    """A node with its workers, and the trainer's side of worker 0."""

    def __init__(self, stand: Any, node: Any, api: Any) -> None:
        self.stand, self.node, self.api = stand, node, api

    async def sandbox(self, **spec: Any) -> str:
        return str(await self.api.create(uplinks=[{"port": PORT}], **spec))

    def client(self, sandbox: str) -> Client:
        return Client(self.stand, sandbox)

    async def asked(self, count: int = 0) -> list[Any]:
        """Returns what was asked, once it is so much."""
        found: list[Any] = []

        async def there() -> bool:
            found[:] = await self.worker("GET", "asked")
            return len(found) >= count

        await until(there)
        return found

    async def give(self, sandbox: str, ordinal: int, answer: Any) -> None:
        await self.worker("POST", f"answers/{ordinal}/{sandbox}", {"content": answer})

    async def worker(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        return await self.api.call(method, f"/v1/workers/0/{path}", body, **more)

    async def another(self, pids: set[int]) -> None:
        """Returns when the worker is none of these processes any more."""

        async def other() -> bool:
            return (await self.worker("GET", "health"))["pid"] not in pids

        await until(other)

    async def problem(self, text: str) -> None:
        """Returns when the node says that of its worker."""

        async def told() -> bool:
            (info,) = await self.api.call("GET", "/v1/workers")
            return text in info.get("problem", "")

        await until(told)

    async def gauges(self, **wanted: int) -> None:
        """Returns when the node's gauges are what they should become."""
        await until(
            lambda: all(
                self.node.gauges()[f"uplink_{name}"] == value for name, value in wanted.items()
            )
        )

    async def kill(self) -> int:
        """Kills the worker and returns which process that was."""
        pid = int((await self.worker("GET", "health"))["pid"])
        os.kill(pid, signal.SIGKILL)
        return pid
