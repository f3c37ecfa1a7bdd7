"""One sandbox, and the collection of them, as a client sees them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from typing import Any

from msgspec import UNSET, UnsetType

from skerry.errors import InvalidRequest
from skerry.sdk import commits
from skerry.sdk.command import AsyncCommandHandle
from skerry.sdk.disk import SandboxDisk
from skerry.sdk.files import AsyncFiles
from skerry.sdk.identity import Identity
from skerry.sdk.network import SandboxNetwork
from skerry.sdk.patience import WAIT_S
from skerry.sdk.running import Command, Runner, command_of
from skerry.sdk.session import AsyncSession
from skerry.sdk.stream import LiveCommand
from skerry.sdk.transport import Transport, encode
from skerry.sdk.typed import typed
from skerry.spec.command import RunResult, Terminal
from skerry.spec.limits import OUTPUT_LIMIT_DEFAULT
from skerry.spec.sandbox import SandboxInfo, State, Usage
from skerry.wire.commits import ForkBody
from skerry.wire.control import SandboxChange
from skerry.wire.events import EventsBody, EventsTaken, PostedEvent
from skerry.wire.http import (
    OpStatus,
    SignalBody,
    StreamEvent,
)
from skerry.wire.sessions import SessionCreate, SessionInfo


class AsyncSandbox(Identity, SandboxDisk, SandboxNetwork):
    """A sandbox on a node. As an async context manager it is destroyed at the end of the block."""

    def __init__(self, transport: Transport, info: SandboxInfo) -> None:
        SandboxDisk.__init__(self, transport, f"/v1/sandboxes/{info.id}")
        Identity.__init__(self, info)
        self._runner = Runner(transport, self._root)
        self.files = AsyncFiles(transport, info.id)

    def __repr__(self) -> str:
        return f"<Sandbox {self.id}>"

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.destroy()

    async def info(self) -> SandboxInfo:
        """Returns its state, spec and times."""
        return await self._transport.call("GET", self._root, SandboxInfo, repeatable=True)

    async def usage(self) -> Usage:
        """Returns what it has used since it was made."""
        return await self._transport.call("GET", f"{self._root}/usage", Usage, repeatable=True)

    async def pause(self) -> SandboxInfo:
        """Returns once its processes stand still; the next request that needs them lets them go on.

        Running commands are paused with it. Raises InvalidRequest if its backend cannot pause.
        """
        return await self._transport.call(
            "POST", f"{self._root}/pause", SandboxInfo, repeatable=True
        )

    async def resume(self) -> SandboxInfo:
        """Returns once it runs; a sandbox that runs stays as it is."""
        return await self._transport.call(
            "POST", f"{self._root}/resume", SandboxInfo, repeatable=True
        )

    async def stop(self) -> SandboxInfo:
        """Ends it and frees what it has; its name and its recorded results stay until `destroy`."""
        return await self._transport.call(
            "POST", f"{self._root}/stop", SandboxInfo, repeatable=True
        )

    async def extend(self, *, ttl: float) -> SandboxInfo:
        """Gives it `ttl` seconds from now, whatever it had before."""
        return await self.update(ttl=ttl)

    async def update(
        self,
        *,
        ttl: float | UnsetType | None = UNSET,
        idle_timeout: float | UnsetType | None = UNSET,
        labels: dict[str, str | None] | None = None,
    ) -> SandboxInfo:
        """Changes deadlines and labels while it lives; what is not named stays.

        `ttl` counts from now. None takes a deadline away, as it does a label of that name.
        """
        change = typed(SandboxChange(ttl_s=ttl, idle_timeout_s=idle_timeout, labels=labels or {}))
        return await self._transport.call("PATCH", self._root, SandboxInfo, body=change)

    async def record(
        self,
        action: str,
        *,
        request: dict[str, Any] | None = None,
        result: dict[str, Any] | None = None,
        started: float | None = None,
        ended: float | None = None,
        usage: dict[str, Any] | None = None,
        op_id: str | None = None,
    ) -> int:
        """Adds to its record, once: "verdict", "model.request" or "harness.NAME", with JSON's values.

        The same again under one `op_id`, 32 hexadecimal digits, is recorded once. Returns the number
        of the record. Raises InvalidRequest, StorageFailed.
        """
        event = PostedEvent(
            action=action,
            request=request or {},
            result=result,
            started=started,
            ended=ended,
            usage=usage or {},
        )
        once = {"op": op_id or secrets.token_hex(16)}
        taken = await self._transport.call(
            "POST",
            f"{self._root}/events",
            EventsTaken,
            body=EventsBody((typed(event).check(),)),
            params=once,
            repeatable=True,
        )
        return taken.seq

    async def wait(self, state: State = State.STOPPED, *, timeout: float = 3600.0) -> SandboxInfo:  # noqa: ASYNC109
        """Returns when it is in the state, or has ended; InvalidRequest if the time passes first."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        while True:
            left = max(0.0, min(30.0, until - loop.time()))
            info = await self._transport.call(
                "GET",
                f"{self._root}/wait",
                SandboxInfo,
                repeatable=True,
                params={"state": str(state), "timeout": f"{left:.3f}"},
            )
            if info.state in (state, State.STOPPED, State.FAILED):
                return info
            if loop.time() >= until:
                raise InvalidRequest(
                    f"{self.id} is {info.state} and not {state} after {timeout:g} s"
                )

    async def run(
        self,
        command: Command,
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the command's, kept by the guest agent
        no_output_timeout: float | None = None,
        output_limit: int = OUTPUT_LIMIT_DEFAULT,
        terminal: Terminal | None = None,
        merge_stderr: bool = False,
        op_id: str | None = None,
    ) -> RunResult:
        """Runs a command (argv, or a shell line) to its end and returns its result.

        A lost connection is repaired and the command is never run twice; an exception or Ctrl-C here
        ends the command inside. Exit status, timeout and a missing program are in the result.
        `no_output_timeout` ends it after so many seconds without a byte of output. With `merge_stderr`
        what it writes to stderr stands in stdout, in the order in which both were written.
        """
        spec = command_of(
            command,
            env=env,
            cwd=cwd,
            user=user,
            stdin=stdin,
            timeout=timeout,
            no_output_timeout=no_output_timeout,
            output_limit=output_limit,
            terminal=terminal,
            merge_stderr=merge_stderr,
        )
        return await self._runner.run(spec, op_id)

    async def session(
        self,
        name: str | None = None,
        *,
        shell: str = "bash",
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
    ) -> AsyncSession:
        """Returns a persistent shell, once it runs; one with this name and these options is found.

        `shell` is a name or path; `bash` falls back to `sh`. Raises InvalidRequest (no such shell,
        directory or user), Conflict (the name is taken), Overloaded (too many sessions).
        """
        body = SessionCreate(
            id=name or self._transport.new_name(), shell=shell, cwd=cwd, env=env or {}, user=user
        )
        body.spec().check()
        path = f"{self._root}/sessions"
        info = await self._transport.call("POST", path, SessionInfo, body=body, repeatable=True)
        return AsyncSession(self._transport, self._root, info)

    async def sessions(self) -> list[SessionInfo]:
        """Returns its sessions, oldest first."""
        path = f"{self._root}/sessions"
        return await self._transport.call("GET", path, list[SessionInfo], repeatable=True)

    async def stream(
        self,
        command: Command,
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
        no_output_timeout: float | None = None,
        output_limit: int = OUTPUT_LIMIT_DEFAULT,
        terminal: Terminal | None = None,
        merge_stderr: bool = False,
        op_id: str | None = None,
    ) -> AsyncIterator[StreamEvent]:
        """Runs a command and yields its output as it comes, then its result (the last event).

        Leaving the iteration early ends the command. With the `op_id` of one that there is it is joined
        and not run again.
        """
        spec = command_of(
            command,
            env=env,
            cwd=cwd,
            user=user,
            stdin=stdin,
            timeout=timeout,
            no_output_timeout=no_output_timeout,
            output_limit=output_limit,
            terminal=terminal,
            merge_stderr=merge_stderr,
        )
        async with contextlib.aclosing(self._runner.stream(spec, op_id)) as events:
            async for event in events:
                yield event

    async def start(
        self,
        command: Command,
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the command's, kept by the guest agent
        no_output_timeout: float | None = None,
        output_limit: int = OUTPUT_LIMIT_DEFAULT,
        terminal: Terminal | None = None,
        merge_stderr: bool = False,
        interactive: bool = False,
        op_id: str | None = None,
    ) -> AsyncCommandHandle:
        """Starts a command in the background and returns a handle once its program runs.

        One that could not be started has ended by then: its result says why. With `interactive` its
        standard input stays open, and `send` feeds it. The command ends by itself, by its timeout,
        by `kill` or with the sandbox, and never because a client went away.
        """
        spec = command_of(
            command,
            env=env,
            cwd=cwd,
            user=user,
            stdin=stdin,
            timeout=timeout,
            no_output_timeout=no_output_timeout,
            output_limit=output_limit,
            terminal=terminal,
            merge_stderr=merge_stderr,
            interactive=interactive,
        )
        op = op_id or secrets.token_hex(16)
        try:
            status = await self._transport.call(
                "POST", f"{self._root}/ops?op={op}", OpStatus, body=spec, repeatable=True
            )
        except asyncio.CancelledError:
            if op_id is None:  # nobody could ever find it
                await self._transport.debts.say(lambda: self._runner.cancel_quietly(op))
            raise
        return AsyncCommandHandle(self._transport, self._root, status)

    async def command(self, op_id: str) -> AsyncCommandHandle:
        """Returns the handle of a command that runs or has ended, whoever started it; NotFound."""
        return AsyncCommandHandle(self._transport, self._root, await self.op(op_id))

    async def commands(self) -> list[AsyncCommandHandle]:
        """Returns the commands that are remembered, oldest first; their `status` has no result."""
        return [
            AsyncCommandHandle(self._transport, self._root, status) for status in await self.ops()
        ]

    @contextlib.asynccontextmanager
    async def attach(
        self,
        command: Command,
        *,
        terminal: Terminal | None = None,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
        no_output_timeout: float | None = None,
    ) -> AsyncIterator[LiveCommand]:
        """Starts a command whose standard input stays open; it ends with the block."""
        spec = command_of(
            command,
            env=env,
            cwd=cwd,
            user=user,
            timeout=timeout,
            no_output_timeout=no_output_timeout,
            terminal=terminal,
            interactive=True,
        )
        op = secrets.token_hex(16)
        socket = await self._transport.socket(f"{self._root}/attach", {"op": op})
        live = LiveCommand(socket)
        try:
            await socket.send_bytes(encode(spec))
            yield live
        finally:
            try:
                await live.close()
            finally:
                if live.result is None:
                    await self._transport.debts.say(lambda: self._runner.cancel_quietly(op))

    async def ops(self) -> list[OpStatus]:
        """Returns the operations it has had, oldest first."""
        return await self._transport.call(
            "GET", f"{self._root}/ops", list[OpStatus], repeatable=True
        )

    async def op(self, op_id: str, *, wait: float = 0.0) -> OpStatus:
        """Returns one operation's state, after waiting up to `wait` seconds for its end."""
        return await self._transport.call(
            "GET",
            f"{self._root}/ops/{op_id}",
            OpStatus,
            repeatable=True,
            params={"wait": f"{wait:.3f}"},
        )

    async def signal(self, op_id: str, number: int) -> None:
        """Sends a signal to every process of a running operation."""
        await self._transport.call(
            "POST", f"{self._root}/ops/{op_id}/signal", body=typed(SignalBody(number))
        )

    async def cancel(self, op_id: str) -> None:
        """Ends every process of a running operation; its result then says cancelled."""
        await self._transport.call("POST", f"{self._root}/ops/{op_id}/cancel")

    async def fork(
        self,
        count: int = 1,
        *,
        all_or_nothing: bool = True,
        key: str | None = None,
        labels: dict[str, str] | None = None,
        ttl: float | None = None,
        idle_timeout: float | None = None,
        detached: bool | None = None,
        priority: int | None = None,
        wait: float = WAIT_S,
    ) -> list[AsyncSandbox]:
        """Returns running sandboxes that begin with what this one has on its disk at this moment.

        They have its spec and layers, and none of its processes and memory. What is given takes the
        place of the spec's (`labels` are added; a `ttl` or `idle_timeout` of 0: none). All or none
        are made, or with `all_or_nothing=False` as many as can be. With `key` a repeat returns the
        same ones. For room it waits up to `wait` seconds.
        """
        body = ForkBody(
            count=count,
            all_or_nothing=all_or_nothing,
            key=key or secrets.token_hex(16),
            labels=labels or {},
            ttl_s=ttl,
            idle_timeout_s=idle_timeout,
            detached=detached,
            priority=priority,
        )
        infos = await commits.fork(self._transport, self._root, typed(body), wait, undo=key is None)
        return [AsyncSandbox(self._transport.member(info), info) for info in infos]

    async def destroy(self) -> None:
        """Leaves nothing of it behind; may be called twice."""
        await self._transport.call("DELETE", self._root, repeatable=True)
