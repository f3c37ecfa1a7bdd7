"""One session: the calls of the SDK, each as what Skerry has for it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    WorkspaceWriteTypeError,
)
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.pty_types import (
    PtyExecUpdate,
    clamp_pty_yield_time_ms,
    resolve_pty_write_yield_time_ms,
)
from agents.sandbox.session.runtime_helpers import (
    RESOLVE_WORKSPACE_PATH_HELPER,
    RuntimeHelperScript,
)
from agents.sandbox.types import ExecResult, ExposedPortEndpoint, User

from skerry import aio
from skerry.compat.openai_agents import faults, keeping
from skerry.compat.openai_agents.options import SkerrySandboxSessionState
from skerry.compat.openai_agents.processes import Process, Processes
from skerry.compat.outcome import NOT_STARTED, exit_status, remarks
from skerry.compat.reading import read_within
from skerry.errors import InvalidRequest, NotFound, PlatformError, SkerryError
from skerry.spec.command import Terminal
from skerry.spec.sandbox import State

EXPOSED_HOST = "127.0.0.1"
ANSWERS_WITHIN_S = 5.0
log = logging.getLogger("skerry.openai_agents")


class SkerrySandboxSession(BaseSandboxSession):
    """A workspace in a sandbox. It has a connection of its own, which ends with `shutdown`."""

    state: SkerrySandboxSessionState

    def __init__(
        self, state: SkerrySandboxSessionState, client: aio.Client, sandbox: aio.Sandbox
    ) -> None:
        self.state = state
        self.sandbox = sandbox
        self._client = client
        self._processes = Processes()
        self._forwards = contextlib.AsyncExitStack()
        self._endpoints: dict[int, ExposedPortEndpoint] = {}
        self._rooted = False  # the workspace is there: commands begin in it
        self._lost: PlatformError | None = None  # the last word on a command

    # --- life

    async def _prepare_backend_workspace(self) -> None:
        root = self._workspace_root_path()
        with faults.starting(root):
            await self.sandbox.files.mkdir(root.as_posix(), parents=True)
        self._rooted = True

    def _runtime_helpers(self) -> tuple[RuntimeHelperScript, ...]:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    def _current_runtime_helper_cache_key(self) -> object | None:
        return self.state.sandbox_id

    async def _after_start(self) -> None:
        # A snapshot may have brought another sandbox.
        if self._runtime_helper_cache_key != self._current_runtime_helper_cache_key():
            await self._ensure_runtime_helpers()

    async def running(self) -> bool:
        """Whether it can be used: a paused sandbox goes on with the next call."""
        if not self._rooted:
            return False
        try:
            await self._answers()
            info = await self.sandbox.info()
        except (SkerryError, RuntimeError):  # the client may be closed
            return False
        return info.state in (State.RUNNING, State.PAUSED)

    async def _answers(self) -> None:
        """Returns at once, but where a command was lost: then the node must answer, and soon.

        Else what was lost is raised: it was waited for already, and the end of a run asks for much.
        """
        if self._lost is None:
            return
        try:
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                await self._client.health()
        except (PlatformError, TimeoutError):
            raise self._lost from None
        self._lost = None

    def _transport_error(
        self, error: SkerryError, command: Sequence[str | Path]
    ) -> ExecTransportError:
        self._lost = error if isinstance(error, PlatformError) else None
        return faults.lost(error, command)

    async def _shutdown_backend(self) -> None:
        """Pauses or destroys the sandbox; one that is gone already is fine.

        That this failed is logged and costs no run its result: an idle sandbox ends by itself.
        """
        try:
            if self.state.on_exit == "pause":
                await self._answers()
                await self.sandbox.pause()
            else:
                await self.sandbox.destroy()
        except NotFound:
            log.info("the sandbox %s has ended before its session", self.sandbox.id)
        except SkerryError as error:
            log.warning("the sandbox %s is left to end by itself: %s", self.sandbox.id, error)
        finally:
            await self.disconnect()

    async def disconnect(self) -> None:
        """Closes ports and the connection, and leaves the sandbox alone; may be called twice."""
        self._rooted = False
        self._endpoints.clear()
        try:
            await self._forwards.aclose()
        finally:
            await self._client.__aexit__(None, None, None)

    async def destroy(self) -> None:
        """Ends the sandbox whatever `on_exit` says."""
        with contextlib.suppress(NotFound):
            await self.sandbox.destroy()

    # --- commands

    async def _options(self, user: str | None) -> dict[str, Any]:
        await self._answers()
        env = await self.state.manifest.environment.resolve()
        cwd = self.state.manifest.root if self._rooted else None
        return {"env": dict(env), "cwd": cwd, "user": user}

    async def _exec_internal(
        self,
        *command: str | Path,
        timeout: float | None = None,  # noqa: ASYNC109 - of the command
    ) -> ExecResult:
        argv, user = _as_user([str(word) for word in command])
        try:
            result = await self.sandbox.run(
                argv,
                timeout=_seconds(timeout),
                output_limit=self.state.output_limit,
                **await self._options(user),
            )
        except InvalidRequest as error:  # what no command can be: the agent's own doing
            return ExecResult(stdout=b"", stderr=str(error).encode(), exit_code=NOT_STARTED)
        except SkerryError as error:
            raise self._transport_error(error, command) from error
        if result.timed_out:
            raise ExecTimeoutError(command=command, timeout_s=timeout)
        said = remarks(result, timeout)
        if result.truncated:
            said += f"\nOutput was cut in its middle, beyond {self.state.output_limit} bytes."
        errors = result.stderr + (f"{said.strip()}\n".encode() if said else b"")
        return ExecResult(stdout=result.stdout, stderr=errors, exit_code=exit_status(result))

    def supports_pty(self) -> bool:
        """Commands may outlast a call, with a terminal or without."""
        return True

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,  # noqa: ASYNC109 - of the command
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Starts a command, with a terminal if asked; ExecTransportError without a result."""
        argv, as_user = _as_user(self._prepare_exec_command(*command, shell=shell, user=user))
        try:
            handle = await self.sandbox.start(
                argv,
                timeout=_seconds(timeout),
                terminal=Terminal() if tty else None,
                interactive=tty,
                merge_stderr=not tty,
                **await self._options(as_user),
            )
            process = Process(handle, tty=tty)
            number = await self._processes.add(process)
            wait = clamp_pty_yield_time_ms(_milliseconds(yield_time_s, 10_000)) / 1000
            return await self._processes.update(number, process, wait, max_output_tokens)
        except InvalidRequest as error:
            return PtyExecUpdate(None, f"{error}\n".encode(), NOT_STARTED, None)
        except SkerryError as error:
            raise self._transport_error(error, command) from error

    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Types into a terminal, or asks what is new; PtySessionNotFoundError, ExecTransportError."""
        process: Process = self._resolve_pty_session_entry(
            pty_processes=self._processes.by_id, session_id=session_id
        )
        if chars and not process.tty:
            raise RuntimeError("stdin is not available for this process: start it with a terminal")
        command = (f"write to {session_id}",)
        try:
            if chars and not process.over:
                await process.command.send(chars)
            wait = resolve_pty_write_yield_time_ms(
                yield_time_ms=_milliseconds(yield_time_s, 250), input_empty=not chars
            )
            return await self._processes.update(session_id, process, wait / 1000, max_output_tokens)
        except SkerryError as error:
            raise self._transport_error(error, command) from error

    async def pty_terminate_all(self) -> None:
        """Ends every command that outlasted its call; with "pause" they stay in the sandbox."""
        await self._processes.end(kill=self.state.on_exit == "destroy")

    # --- files

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        checked: Path = await self._validate_remote_path_access(path, for_write=for_write)
        return checked

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """Returns a file's content; WorkspaceReadNotFoundError, WorkspaceArchiveReadError."""
        place = (await self._validate_path_access(path)).as_posix()
        limit, who = self.state.file_limit, _name(user)
        with faults.reading(path):
            return io.BytesIO(await read_within(self.sandbox, place, limit, user=who))

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        place = (await self._validate_path_access(path)).as_posix()
        with faults.reading(path):
            return await self.sandbox.files.read(place, length=max_bytes)

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Writes a file whole, parents made; WorkspaceArchiveWriteError."""
        payload = data.read()
        if isinstance(payload, str):
            payload = payload.encode()
        if not isinstance(payload, bytes | bytearray):
            raise WorkspaceWriteTypeError(path=path, actual_type=type(payload).__name__)
        place = (await self._validate_path_access(path, for_write=True)).as_posix()
        with faults.writing(path):
            await self.sandbox.files.write(place, bytes(payload), user=_name(user))

    # --- what is kept

    async def persist_workspace(self) -> io.IOBase:
        """Returns a commit's name, which holds the whole disk, or a tar of the workspace."""
        root = self._workspace_root_path()
        skipped = self._persist_workspace_skip_relpaths()
        with faults.reading(root):
            await self._answers()
            if self.state.workspace_persistence == "tar":
                return await keeping.tar_of(self.sandbox, root, skipped)
            name = f"workspace/openai-agents:{self.state.session_id.hex}"
            without = [(root / path).as_posix() for path in skipped]
            await self.sandbox.commit(name, exclude=without)
            return keeping.reference(name)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Gives the workspace what was kept of one; a commit brings another sandbox for this one."""
        root = self._workspace_root_path()
        try:
            head = keeping.head_of(data)
        except TypeError as error:
            raise WorkspaceWriteTypeError(path=root, actual_type=str(error)) from None
        with faults.writing(root):
            name = keeping.referenced(head)
            if name is None:
                await self.sandbox.files.mkdir(root.as_posix(), parents=True)
                await self.sandbox.files.put_tree(root.as_posix(), keeping.chunks_of(head, data))
                return
            options = {
                key: value
                for key, value in self.state.creation.items()
                if key not in ("image", "layers", "restore")
            }
            restored = await self._client.sandboxes.restore(name, **options)
            before, self.sandbox = self.sandbox, restored
            self.state.sandbox_id = restored.id
            await self.sandbox.files.mkdir(root.as_posix(), parents=True)
            with contextlib.suppress(NotFound):
                await before.destroy()

    # --- ports

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        """Returns an address on this program's machine, which leads inside until `shutdown`."""
        if port not in self._endpoints:
            try:
                here = await self._forwards.enter_async_context(
                    self.sandbox.forward(port, host=EXPOSED_HOST)
                )
            except SkerryError as error:
                raise ExposedPortUnavailableError(
                    port=port,
                    exposed_ports=self.state.exposed_ports,
                    reason="backend_unavailable",
                    context=faults.context(error),
                    cause=error,
                    retryable=error.retryable,
                ) from error
            self._endpoints[port] = ExposedPortEndpoint(host=here.host, port=here.port)
        return self._endpoints[port]


def _as_user(argv: list[str]) -> tuple[list[str], str | None]:
    """Returns the command without `sudo -u NAME --`, and that name: the node changes to the user."""
    if len(argv) > 4 and argv[:2] == ["sudo", "-u"] and argv[3] == "--":
        return argv[4:], argv[2]
    return argv, None


def _name(user: str | User | None) -> str | None:
    return user.name if isinstance(user, User) else user


def _seconds(timeout: float | None) -> float | None:
    if timeout is None or (math.isfinite(timeout) and timeout > 0):
        return timeout
    raise ValueError(f"timeout must be above 0 seconds, not {timeout}")


def _milliseconds(seconds: float | None, otherwise: int) -> int:
    return otherwise if seconds is None else int(seconds * 1000)
