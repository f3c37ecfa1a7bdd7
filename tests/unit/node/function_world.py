"""A node whose function containers are fakes: calls are answered by a Python stand-in of the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from skerry.node.functions.options import FunctionsConfig
from skerry.node.node import Node
from skerry.spec.function import CallSpec, ProgramCall, PythonCall
from skerry.spec.function_result import CallResult
from skerry.testing.fake_commands import Ended
from tests.waiting import until

SMALL = FunctionsConfig(
    containers_max=4,
    containers_per_pool_max=2,
    calls_running_max=4,
    calls_memory_max_bytes=1 << 40,
    pool_idle_s=60.0,
    start_within_s=5.0,
    drain_s=0.3,
)


class Python:
    """Answers calls by what their code says: a word, and what follows it.

    `return X` gives JSON, `raise` an exception, `exit N` a status, `long N` a text so long, `junk X`
    just that, and `wait` waits until `go` is set.
    """

    def __init__(self) -> None:
        self.payloads: list[dict[str, Any]] = []
        self.go = asyncio.Event()
        self.running = 0

    async def __call__(self, payload: bytes) -> tuple[bytes, Ended]:
        asked = json.loads(payload)
        self.payloads.append(asked)
        word, _, rest = asked["code"].partition(" ")
        if word == "return":
            return b'{"value": ' + rest.encode() + b"}", Ended(exit_code=0)
        if word == "raise":
            told = {"kind": "exception", "type": rest, "message": "no", "traceback": "T"}
            return json.dumps({"error": told}).encode(), Ended(exit_code=1)
        if word == "size":
            told = {"kind": "size", "type": "ValueError", "message": "too long"}
            return json.dumps({"error": told}).encode(), Ended(exit_code=1)
        if word == "exit":
            return b"", Ended(exit_code=int(rest))
        if word == "long":
            return b'{"value": "' + b"x" * int(rest) + b'"}', Ended(exit_code=0)
        if word == "junk":
            return rest.encode(), Ended(exit_code=0)
        if word == "wait":
            self.running += 1
            try:
                await self.go.wait()
            finally:
                self.running -= 1
            return b'{"value": "waited"}', Ended(exit_code=0)
        return payload, Ended(exit_code=0)


class FunctionWorld:
    """A node, what answers its calls, and its instances."""

    def __init__(self, stand: Any, node: Node, python: Python) -> None:
        self.stand = stand
        self.node = node
        self.python = python

    @property
    def instances(self) -> list[Any]:
        return list(self.stand.world.instances.values())

    async def call(self, spec: CallSpec | str, **changes: Any) -> CallResult:
        if isinstance(spec, str):
            spec = python(spec, **changes)
        return await self.node.calls.call(spec.check())

    def begin(self, spec: CallSpec | str, **changes: Any) -> asyncio.Task[CallResult]:
        return asyncio.ensure_future(self.call(spec, **changes))

    async def running(self, count: int) -> None:
        await until(lambda: self.python.running == count)


def python(code: str, **changes: Any) -> CallSpec:
    kind = {name: changes.pop(name) for name in ("entry", "args", "kwargs") if name in changes}
    return CallSpec(kind=PythonCall(code=code, **kind), **changes)


def program(*argv: str, **changes: Any) -> CallSpec:
    return CallSpec(kind=ProgramCall(argv=argv), **changes)


@asynccontextmanager
async def world(stand: Any, monkeypatch: Any, tmp_path: Any, **changes: Any) -> AsyncIterator[Any]:
    """A node with function calls; every instance's zygote is answered by one stand-in."""
    library = tmp_path / "skerry-zygote.so"
    library.write_bytes(b"\x7fELF")
    monkeypatch.setattr("skerry.node.functions.making.binaries.find", lambda _name: library)
    answers = Python()
    functions = changes.pop("functions", SMALL)
    async with stand.alive(functions=functions, **changes) as node:
        create = stand.backend.create

        async def answered(request: Any) -> Any:
            instance = await create(request)
            instance.agent.cells.on_call = answers
            return instance

        stand.backend.create = answered
        yield FunctionWorld(stand, node, answers)
        answers.go.set()
    assert stand.world.instances == {}
    assert node.admission.sandboxes == 0
    assert not node.sandboxes.held
