"""A session: a shell in a sandbox that keeps directory, variables and functions between commands."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from skerry.errors import InvalidRequest
from skerry.sdk.running import Runner
from skerry.sdk.transport import Transport
from skerry.spec.command import CommandSpec, RunResult
from skerry.spec.limits import OUTPUT_LIMIT_DEFAULT
from skerry.wire.http import StreamEvent
from skerry.wire.sessions import SessionInfo


class AsyncSession:
    """A persistent shell. As a context manager it is closed at the end of the block.

    Commands run one at a time, in the order in which they came. What one sets, the next one finds,
    after `exit` too; a result with `session_reset` says that the shell itself was lost (killed,
    replaced by `exec`, or ended with a command that could not be ended otherwise): the next command
    then runs in a fresh one, in the directory where the last one was.
    """

    def __init__(self, transport: Transport, root: str, info: SessionInfo) -> None:
        self._transport = transport
        self._runner = Runner(transport, root)
        self._root = f"{root}/sessions/{info.id}"
        self.id = info.id
        self.shell = info.shell

    def __repr__(self) -> str:
        return f"<Session {self.id}>"

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def run(
        self,
        script: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the command's, kept by the guest agent
        no_output_timeout: float | None = None,
        output_limit: int = OUTPUT_LIMIT_DEFAULT,
        op_id: str | None = None,
    ) -> RunResult:
        """Runs shell lines, up to 16 MiB of them, to their end and returns the result.

        Timeouts count from when the command has its turn, and end what it started, not the session.
        A lost connection is repaired and the command is never run twice; an exception or Ctrl-C here
        ends the command inside.
        """
        spec = self._spec(script, timeout, no_output_timeout, output_limit)
        return await self._runner.run(spec, op_id)

    async def stream(
        self,
        script: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        no_output_timeout: float | None = None,
        output_limit: int = OUTPUT_LIMIT_DEFAULT,
    ) -> AsyncIterator[StreamEvent]:
        """Runs shell lines and yields their output as it comes, then the result (the last event).

        Leaving the iteration early ends the command.
        """
        spec = self._spec(script, timeout, no_output_timeout, output_limit)
        async with contextlib.aclosing(self._runner.stream(spec)) as events:
            async for event in events:
                yield event

    async def info(self) -> SessionInfo:
        """Returns how it stands; NotFound once it is closed."""
        return await self._transport.call("GET", self._root, SessionInfo, repeatable=True)

    async def close(self) -> None:
        """Ends the shell, after its EXIT trap, and all that still runs in it; may be called twice."""
        await self._transport.call("DELETE", self._root, repeatable=True)

    def _spec(
        self,
        script: str,
        timeout: float | None,
        no_output_timeout: float | None,
        output_limit: int,
    ) -> CommandSpec:
        if not isinstance(script, str):
            raise InvalidRequest("a session runs shell lines: give a text")
        return CommandSpec(
            shell=script,
            session=self.id,
            timeout_s=timeout,
            no_output_timeout_s=no_output_timeout,
            output_limit=output_limit,
        ).check()
