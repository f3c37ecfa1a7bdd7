"""What serves function calls, as the routes see it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from skerry.errors import Unavailable
from skerry.spec.function import CallSpec
from skerry.spec.function_result import CallResult, PoolInfo, Prewarm


@dataclass(frozen=True, kw_only=True)
class CallStreams:
    """Input and output of a call that are not in its spec and result.

    `files` is a tar, unpacked at /call behind the spec's files before the call begins. `stdin` is read
    as fast as the call reads, and replaces the spec's. `output` is told "stdout" or "stderr" and a
    piece, and paces the call; the result's are empty then, with totals. `fetched` is given a tar of what
    was asked for, before the call is answered; the result's files are empty then.
    """

    output: Callable[[str, bytes], Awaitable[None]]
    fetched: Callable[[AsyncIterator[bytes]], Awaitable[None]]
    files: AsyncIterator[bytes] | None = None
    stdin: AsyncIterator[bytes] | None = None


class FunctionService(Protocol):
    """Calls of one node. Specs have passed `check`."""

    async def call(
        self, spec: CallSpec, *, tenant: str = "", streams: CallStreams | None = None
    ) -> CallResult:
        """Returns how it ended; if it is cancelled, the call has ended with all its processes.

        Raises Overloaded (limit "function calls"), Unavailable with `retry_after_s` if it never
        started, OutcomeUnknown if it may have run and its answer is lost, NotFound or ImageBroken of
        its image, SandboxFailed if the container cannot be made of it.
        """

    async def prewarm(self, body: Prewarm) -> PoolInfo:
        """Returns the pool once it has as many containers as asked for; raises why it has not."""

    def pools(self) -> tuple[PoolInfo, ...]:
        """Returns the pools, the one used last first."""

    async def let_go(self, digest: str) -> bool:
        """Ends containers of that layer in pools that nobody calls; returns whether there were any."""


class NoFunctions:
    """The service of a node that cannot serve any."""

    def __init__(self, why: str) -> None:
        self._why = why

    async def call(
        self,
        spec: CallSpec,  # noqa: ARG002 - as of all services
        *,
        tenant: str = "",  # noqa: ARG002
        streams: CallStreams | None = None,  # noqa: ARG002
    ) -> CallResult:
        """Raises Unavailable that says why."""
        raise Unavailable(f"this node serves no function calls: {self._why}")

    async def prewarm(self, body: Prewarm) -> PoolInfo:  # noqa: ARG002
        """Raises Unavailable that says why."""
        raise Unavailable(f"this node serves no function calls: {self._why}")

    def pools(self) -> tuple[PoolInfo, ...]:
        """Returns none."""
        return ()

    async def let_go(self, digest: str) -> bool:  # noqa: ARG002
        """Returns False: there are none."""
        return False
