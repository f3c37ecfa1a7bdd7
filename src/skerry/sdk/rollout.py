"""A rollout: sandboxes whose operations are on record under a key, and are repeated from there.

async with client.rollout("run-17/task-3") as rollout:
    sandbox = await rollout.create(image="debian:12")
    result = await sandbox.run("make test")        # run again: the recorded result, nothing runs

A harness whose process has died runs its unchanged code again, with the same key. What is on record is
answered from there; the first operation that is not goes to the sandbox, and so do all after it.
"""

from __future__ import annotations

from typing import Unpack

from skerry.errors import InvalidRequest
from skerry.sdk.options import SandboxOptions, spec_of
from skerry.sdk.patience import WAIT_S
from skerry.sdk.repeat.choices import Choice, check_divergence, check_unknown
from skerry.sdk.repeat.line import Line
from skerry.sdk.repeat.past import Past
from skerry.sdk.repeat.transport import RepeatingTransport
from skerry.sdk.sandbox import AsyncSandbox
from skerry.sdk.transport import Transport
from skerry.spec.ids import check_rollout

NAME_CHARS_MAX = 256


class AsyncRollout:
    """The sandboxes of one rollout. Use it as an async context manager; leaving it ends none of them.

    One process at a time runs a rollout. Its operations are counted for each sandbox, in the order in
    which they are begun; a harness that makes sandboxes concurrently names them.
    """

    def __init__(
        self, transport: Transport, key: str, on_divergence: str, on_unknown: Choice
    ) -> None:
        self.key = check_rollout(key)
        self._transport = transport
        self._past = Past(
            transport, key, check_divergence(on_divergence), check_unknown(on_unknown), WAIT_S
        )
        self._unnamed = 0
        self._named: set[str] = set()

    def __repr__(self) -> str:
        return f"<Rollout {self.key}>"

    async def __aenter__(self) -> AsyncRollout:
        await self._past.read()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._past.close()

    async def create(
        self,
        backend: str = "container",
        *,
        name: str | None = None,
        wait: float = WAIT_S,
        **options: Unpack[SandboxOptions],
    ) -> AsyncSandbox:
        """Returns a running sandbox, the recorded one if there is one; options as those of `create`.

        It is `detached` unless told otherwise: else it ended with the process that made it. `name`
        tells it from the rollout's others; without it they are counted. Beside what a create raises:
        Diverged if another one is on record, OutcomeUnknown.
        """
        if "rollout" in options:
            raise InvalidRequest("rollout: it is the one that makes the sandbox")
        given: SandboxOptions = {"detached": True, **options, "rollout": self.key}
        spec = spec_of(backend, **given)
        line = Line(self._past, self._place(name))
        await line.open(spec, wait)
        transport = RepeatingTransport(self._transport, self._past, line)
        return AsyncSandbox(transport, line.last.info)

    def _place(self, name: str | None) -> str:
        """Returns what tells a sandbox from the others, in each run the same."""
        if name is None:
            self._unnamed += 1
            return f"#{self._unnamed - 1}"
        if not 1 <= len(name) <= NAME_CHARS_MAX or name in self._named:
            raise InvalidRequest(f"name: {name[:80]!r} is empty, too long, or taken")
        self._named.add(name)
        return f"={name}"
