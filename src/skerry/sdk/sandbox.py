"""One sandbox, and the collection of them, as a client sees them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence
from types import TracebackType

import msgspec

from skerry.errors import InvalidRequest, SkerryError
from skerry.sdk.files import AsyncFiles
from skerry.sdk.forward import ReverseForward
from skerry.sdk.stream import LiveCommand, events_of
from skerry.sdk.transport import Transport
from skerry.spec.command import CommandSpec, RunResult, Terminal
from skerry.spec.files import Change
from skerry.spec.layers import LayerManifest
from skerry.spec.limits import OUTPUT_LIMIT_DEFAULT, parse_bytes
from skerry.spec.sandbox import OnIdle, SandboxInfo, SandboxSpec, State, Usage
from skerry.wire.http import (
    BatchCreate,
    BatchDelete,
    BatchItem,
    BatchResult,
    CommitBody,
    DiffBody,
    OpStatus,
    SandboxPage,
    SignalBody,
    StreamEvent,
)

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
    output_limit: int = OUTPUT_LIMIT_DEFAULT,
    terminal: Terminal | None = None,
    interactive: bool = False,
) -> CommandSpec:
    """Returns the checked command: a text is a shell line, a sequence is argv."""
    return CommandSpec(
        argv=() if isinstance(command, str) else tuple(command),
        shell=command if isinstance(command, str) else None,
        env=env or {},
        cwd=cwd,
        user=user,
        stdin=stdin.encode() if isinstance(stdin, str) else stdin,
        timeout_s=timeout,
        output_limit=output_limit,
        terminal=terminal,
        interactive=interactive,
    ).check()


class AsyncSandbox:
    """A sandbox on a node. As an async context manager it is destroyed at the end of the block."""

    def __init__(self, transport: Transport, info: SandboxInfo) -> None:
        self._transport = transport
        self._root = f"/v1/sandboxes/{info.id}"
        self.id = info.id
        self.created_as = info
        self.files = AsyncFiles(transport, info.id)

    def __repr__(self) -> str:
        return f"<Sandbox {self.id}>"

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.destroy()

    async def info(self) -> SandboxInfo:
        """Returns its state, spec and times."""
        return await self._transport.call("GET", self._root, SandboxInfo, repeatable=True)

    async def usage(self) -> Usage:
        """Returns what it has used since it was made."""
        return await self._transport.call("GET", f"{self._root}/usage", Usage, repeatable=True)

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
        output_limit: int = OUTPUT_LIMIT_DEFAULT,
        terminal: Terminal | None = None,
        op_id: str | None = None,
    ) -> RunResult:
        """Runs a command (argv, or a shell line) to its end and returns its result.

        A lost connection is repaired and the command is never run twice; an exception or Ctrl-C here
        ends the command inside. Exit status, timeout and a missing program are in the result.
        """
        spec = command_of(
            command,
            env=env,
            cwd=cwd,
            user=user,
            stdin=stdin,
            timeout=timeout,
            output_limit=output_limit,
            terminal=terminal,
        )
        op = op_id or secrets.token_hex(16)
        try:
            return await self._transport.call(
                "POST", f"{self._root}/run?op={op}", RunResult, body=spec, repeatable=True
            )
        except asyncio.CancelledError:
            await self._cancel_quietly(op)
            raise

    async def stream(
        self,
        command: Command,
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
        output_limit: int = OUTPUT_LIMIT_DEFAULT,
        terminal: Terminal | None = None,
    ) -> AsyncIterator[StreamEvent]:
        """Runs a command and yields its output as it comes, then its result (the last event).

        Leaving the iteration early ends the command.
        """
        spec = command_of(
            command,
            env=env,
            cwd=cwd,
            user=user,
            stdin=stdin,
            timeout=timeout,
            output_limit=output_limit,
            terminal=terminal,
        )
        op = secrets.token_hex(16)
        finished = False
        try:
            chunks = self._transport.receive("POST", f"{self._root}/stream?op={op}", body=spec)
            async for event in events_of(chunks):
                finished = event.result is not None
                yield event
        finally:
            if not finished:
                await self._cancel_quietly(op)

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
    ) -> AsyncIterator[LiveCommand]:
        """Starts a command whose standard input stays open; it ends with the block."""
        spec = command_of(
            command,
            env=env,
            cwd=cwd,
            user=user,
            timeout=timeout,
            terminal=terminal,
            interactive=True,
        )
        op = secrets.token_hex(16)
        socket = await self._transport.socket(f"{self._root}/attach", {"op": op})
        live = LiveCommand(socket)
        try:
            await socket.send_bytes(msgspec.msgpack.encode(spec))
            yield live
        finally:
            await live.close()
            if live.result is None:
                await self._cancel_quietly(op)

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
            "POST", f"{self._root}/ops/{op_id}/signal", body=SignalBody(number)
        )

    async def cancel(self, op_id: str) -> None:
        """Ends every process of a running operation; its result then says cancelled."""
        await self._transport.call("POST", f"{self._root}/ops/{op_id}/cancel")

    async def diff(self) -> tuple[Change, ...]:
        """Returns what changed since it was made, sorted by path."""
        return (await self._transport.call("GET", f"{self._root}/diff", DiffBody)).changes

    async def diff_tar(self, under: str = "/") -> AsyncIterator[bytes]:
        """Yields a tar of the added and modified paths beneath `under`."""
        async for chunk in self._transport.receive(
            "GET", f"{self._root}/diff/tar", params={"under": under}
        ):
            yield chunk

    async def commit(self, name: str, *, exclude: Sequence[str] = ()) -> LayerManifest:
        """Makes the layer `kind/name[:tag]` of what it wrote; everything written before is in it."""
        body = CommitBody(name=name, exclude=tuple(exclude))
        return await self._transport.call("POST", f"{self._root}/commit", LayerManifest, body=body)

    def reverse_forward(self, port: int, host: str, target_port: int) -> ReverseForward:
        """Connects 127.0.0.1:`port` inside to `host`:`target_port` as seen from here, for a block."""
        return ReverseForward(self._transport, f"{self._root}/forward", port, host, target_port)

    async def destroy(self) -> None:
        """Leaves nothing of it behind; may be called twice."""
        await self._transport.call("DELETE", self._root, repeatable=True)

    async def _cancel_quietly(self, op: str) -> None:
        # The caller is leaving already: its own error matters more than whether this one arrives.
        with contextlib.suppress(SkerryError, TimeoutError):
            async with asyncio.timeout(CANCEL_WITHIN_S):
                await self.cancel(op)


class AsyncSandboxes:
    """The sandboxes of a node."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(
        self,
        backend: str = "container",
        *,
        image: str = "debian:12",
        layers: Sequence[str] = (),
        cpu: float = 1.0,
        memory: int | str = "1GiB",
        pids: int = 512,
        disk: int | str | None = None,
        nofile: int = 4096,
        env: dict[str, str] | None = None,
        user: str = "root",
        workdir: str = "/root",
        hostname: str = "skerry",
        network: Sequence[str] = (),
        idle_timeout: float | None = None,
        on_idle: str = "stop",
        ttl: float | None = None,
        labels: dict[str, str] | None = None,
        key: str | None = None,
        detached: bool = False,
    ) -> AsyncSandbox:
        """Returns a running sandbox. With `key`, a repeat returns the one that the first call made."""
        spec = spec_of(
            backend,
            image=image,
            layers=layers,
            cpu=cpu,
            memory=memory,
            pids=pids,
            disk=disk,
            nofile=nofile,
            env=env,
            user=user,
            workdir=workdir,
            hostname=hostname,
            network=network,
            idle_timeout=idle_timeout,
            on_idle=on_idle,
            ttl=ttl,
            labels=labels,
            key=key or secrets.token_hex(16),
            detached=detached,
        )
        info = await self._transport.call(
            "POST", "/v1/sandboxes", SandboxInfo, body=spec, repeatable=True
        )
        return AsyncSandbox(self._transport, info)

    async def create_many(
        self,
        count: int,
        backend: str = "container",
        *,
        image: str = "debian:12",
        layers: Sequence[str] = (),
        cpu: float = 1.0,
        memory: int | str = "1GiB",
        pids: int = 512,
        disk: int | str | None = None,
        nofile: int = 4096,
        env: dict[str, str] | None = None,
        user: str = "root",
        workdir: str = "/root",
        hostname: str = "skerry",
        network: Sequence[str] = (),
        idle_timeout: float | None = None,
        on_idle: str = "stop",
        ttl: float | None = None,
        labels: dict[str, str] | None = None,
        detached: bool = False,
    ) -> list[AsyncSandbox]:
        """Returns `count` running sandboxes made in one request, or raises and leaves none."""
        spec = spec_of(
            backend,
            image=image,
            layers=layers,
            cpu=cpu,
            memory=memory,
            pids=pids,
            disk=disk,
            nofile=nofile,
            env=env,
            user=user,
            workdir=workdir,
            hostname=hostname,
            network=network,
            idle_timeout=idle_timeout,
            on_idle=on_idle,
            ttl=ttl,
            labels=labels,
            key=None,
            detached=detached,
        )
        items = await self.create_batch(spec, count, all_or_nothing=True)
        made = []
        for item in items:
            if item.error is not None:
                raise item.error.to_error()
            if item.info is not None:
                made.append(AsyncSandbox(self._transport, item.info))
        return made

    async def create_batch(
        self, spec: SandboxSpec, count: int, *, all_or_nothing: bool = False
    ) -> tuple[BatchItem, ...]:
        """Asks for `count` sandboxes and returns each one's info or error, in order."""
        body = BatchCreate(spec=spec, count=count, all_or_nothing=all_or_nothing)
        return (
            await self._transport.call("POST", "/v1/sandboxes/batch", BatchResult, body=body)
        ).items

    async def destroy_many(self, sandboxes: Sequence[AsyncSandbox | str]) -> None:
        """Destroys them in one request; raises the first error after all were tried."""
        ids = tuple(item if isinstance(item, str) else item.id for item in sandboxes)
        result = await self._transport.call(
            "POST",
            "/v1/sandboxes/batch/delete",
            BatchResult,
            body=BatchDelete(ids),
            repeatable=True,
        )
        for item in result.items:
            if item.error is not None:
                raise item.error.to_error()

    async def get(self, sandbox_id: str) -> AsyncSandbox:
        """Returns a handle for an existing sandbox; raises NotFound."""
        info = await self._transport.call(
            "GET", f"/v1/sandboxes/{sandbox_id}", SandboxInfo, repeatable=True
        )
        return AsyncSandbox(self._transport, info)

    async def list(
        self,
        *,
        state: str | None = None,
        labels: dict[str, str] | None = None,
        key: str | None = None,
    ) -> list[SandboxInfo]:
        """Returns all sandboxes that match, oldest first."""
        query = [("state", state), ("key", key)]
        params = {name: value for name, value in query if value is not None}
        if labels:
            params["label"] = ",".join(f"{name}={value}" for name, value in labels.items())
        found: list[SandboxInfo] = []
        while True:
            page = await self._transport.call(
                "GET", "/v1/sandboxes", SandboxPage, params=params, repeatable=True
            )
            found.extend(page.items)
            if page.cursor is None:
                return found
            params["cursor"] = page.cursor


def spec_of(
    backend: str,
    *,
    memory: int | str,
    disk: int | str | None,
    layers: Sequence[str],
    network: Sequence[str],
    idle_timeout: float | None,
    on_idle: str,
    ttl: float | None,
    env: dict[str, str] | None,
    labels: dict[str, str] | None,
    image: str,
    cpu: float,
    pids: int,
    nofile: int,
    user: str,
    workdir: str,
    hostname: str,
    key: str | None,
    detached: bool,
) -> SandboxSpec:
    """Returns the checked spec of what a caller asked for; raises InvalidRequest."""
    if on_idle not in OnIdle.__members__.values():
        raise InvalidRequest(f"on_idle must be one of {', '.join(OnIdle)}, not {on_idle!r}")
    return SandboxSpec(
        backend=backend,
        image=image,
        layers=tuple(layers),
        cpu=cpu,
        memory_bytes=parse_bytes(memory, "memory"),
        pids=pids,
        disk_bytes=None if disk is None else parse_bytes(disk, "disk"),
        nofile=nofile,
        env=env or {},
        user=user,
        workdir=workdir,
        hostname=hostname,
        network=tuple(network),
        idle_timeout_s=idle_timeout,
        on_idle=OnIdle(on_idle),
        ttl_s=ttl,
        labels=labels or {},
        key=key,
        detached=detached,
    ).check()
