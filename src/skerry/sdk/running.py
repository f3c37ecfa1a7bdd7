"""Commands that live as long as whoever asked for them waits: asked once, ended by leaving."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Sequence

from skerry.errors import InvalidRequest, SkerryError, Unavailable
from skerry.sdk.follow import follow
from skerry.sdk.stream import events_of
from skerry.sdk.transport import Transport
from skerry.sdk.typed import typed
from skerry.spec.command import CommandSpec, RunResult, Terminal
from skerry.spec.limits import OUTPUT_LIMIT_DEFAULT
from skerry.wire.http import OpStatus, StreamEvent

CANCEL_WITHIN_S = 5.0

Command = str | Sequence[str]


def command_of(
    command: Command,
    *,
    env: dict[str, str] | None = None,
    cwd: str | None = None,
    user: str | None = None,
    stdin: bytes | str | None = None,
    timeout: float | None = None,
    no_output_timeout: float | None = None,
    output_limit: int = OUTPUT_LIMIT_DEFAULT,
    terminal: Terminal | None = None,
    interactive: bool = False,
    merge_stderr: bool = False,
) -> CommandSpec:
    """Returns the checked command: a text is a shell line, a sequence is argv."""
    if not isinstance(command, str | Sequence):
        raise InvalidRequest("a command is a shell line, or a list of a program and its arguments")
    spec = CommandSpec(
        argv=() if isinstance(command, str) else tuple(command),
        shell=command if isinstance(command, str) else None,
        env=env or {},
        cwd=cwd,
        user=user,
        stdin=stdin.encode() if isinstance(stdin, str) else stdin,
        timeout_s=timeout,
        no_output_timeout_s=no_output_timeout,
        output_limit=output_limit,
        terminal=terminal,
        interactive=interactive,
        merge_stderr=merge_stderr,
    )
    return typed(spec).check()


class Runner:
    """Runs commands in one sandbox; `root` is its path in the API."""

    def __init__(self, transport: Transport, root: str) -> None:
        self._transport = transport
        self._root = root

    async def run(self, spec: CommandSpec, op_id: str | None) -> RunResult:
        """Returns the command's result; one who stops waiting ends it inside."""
        op = op_id or secrets.token_hex(16)
        try:
            return await self._transport.call(
                "POST", f"{self._root}/run?op={op}", RunResult, body=spec, repeatable=True
            )
        except asyncio.CancelledError:
            await self._transport.debts.say(lambda: self.cancel_quietly(op))
            raise

    async def stream(
        self, spec: CommandSpec, op_id: str | None = None
    ) -> AsyncGenerator[StreamEvent]:
        """Yields its output as it comes, then its result; leaving early ends it inside.

        A lost connection is repaired: the command goes on meanwhile, and is never run twice. Of more
        output than is kept (`output_limit`) that came meanwhile the middle is missing: pieces say `at`
        which offset of their stream they begin from then on, and a jump tells.
        """
        op = op_id or secrets.token_hex(16)
        finished = False
        debt = self._transport.debts.owe(lambda: self.cancel_quietly(op))
        events = self._events(spec, op)
        try:
            async with contextlib.aclosing(events):
                async for event in events:
                    finished = event.result is not None
                    yield event
        finally:
            await debt.settle(owed=not finished)

    async def _events(self, spec: CommandSpec, op: str) -> AsyncGenerator[StreamEvent]:
        """Asks for it and its output in one request; after a loss for both apart, from where it was."""
        seen = {"stdout": 0, "stderr": 0}
        try:
            chunks = self._transport.receive("POST", f"{self._root}/stream?op={op}", body=spec)
            async with contextlib.aclosing(chunks):
                async for event in events_of(chunks):
                    for name in seen:
                        seen[name] += len(getattr(event, name) or b"")
                    yield event
            return
        except Unavailable as error:
            if error.fields.get("reason") == "draining":
                raise
        # Perhaps it never arrived: this begins it then, and else finds it.
        await self._transport.call(
            "POST", f"{self._root}/ops?op={op}", OpStatus, body=spec, repeatable=True
        )
        events = follow(self._transport, f"{self._root}/ops/{op}", **seen, pace=True)
        async with contextlib.aclosing(events):
            async for event in events:
                yield event

    async def cancel_quietly(self, op: str) -> None:
        """Ends a command for a caller who is leaving: whether that arrives matters less than why."""
        if self._transport.closed:
            return
        with contextlib.suppress(SkerryError, TimeoutError):
            async with asyncio.timeout(CANCEL_WITHIN_S):
                await self._transport.call("POST", f"{self._root}/ops/{op}/cancel")
