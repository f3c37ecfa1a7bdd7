"""A backend for LangChain's Deep Agents: their files and commands are those of a sandbox.

    with SkerryBackend.create(image="debian:12", layers=["toolkit/python"]) as backend:
        agent = create_deep_agent(model=..., backend=backend)
        agent.invoke({"messages": [...]})

`deepagents` makes ls, read, write, edit, grep and glob of `execute` and the two transfers of files; the
image needs python3 for that. Its async methods do not occupy a thread each here, and a run that is
cancelled ends its command inside.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import AsyncIterator, Iterator
from errno import EISDIR
from typing import Any, Self

from deepagents.backends.protocol import (
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
)
from deepagents.backends.sandbox import BaseSandbox

from skerry import aio
from skerry.compat.options import CONNECTION, Asked, asked, refuse_unknown
from skerry.compat.outcome import NOT_STARTED, exit_status, is_of_platform, remarks, shown
from skerry.compat.reading import read_within
from skerry.errors import (
    FileDenied,
    FileRefused,
    InvalidRequest,
    NotFound,
    SkerryError,
)
from skerry.sdk.portal import Portal
from skerry.spec.limits import MIB

TIMEOUT_S = 1800.0  # of a command for which nobody said anything
# A page of 500 KiB that `read` asks for comes as JSON, with up to six bytes a character.
OUTPUT_LIMIT = 4 * MIB
FILE_LIMIT = 256 * MIB  # downloads are held in memory, and what is inside is not to be trusted

log = logging.getLogger("skerry.langchain")


class SkerryBackend(BaseSandbox):
    """One sandbox of a node. Use `create` or `connect`, best as a context manager.

    A fault of the platform (`skerry.PlatformError`), and a sandbox that is gone, are raised through the
    agent's run: they are never the output of a command, or a file that is not there.
    """

    def __init__(
        self, *, timeout: float | None, output_limit: int, file_limit: int, owns: bool
    ) -> None:
        self._timeout = _seconds(timeout)
        self._output_limit = output_limit
        self._file_limit = file_limit
        self._owns = owns
        self._portal = Portal()
        self._client: aio.Client | None = None
        self._held: aio.Sandbox | None = None

    @classmethod
    def create(
        cls,
        *,
        timeout: float | None = TIMEOUT_S,
        output_limit: int = OUTPUT_LIMIT,
        file_limit: int = FILE_LIMIT,
        **options: Any,
    ) -> Self:
        """Returns a backend with a sandbox of its own, which ends when the backend is closed.

        `options` are those of `skerry.SandboxOptions`, and url, token, backend, wait; without url it is
        SKERRY_URL, or this machine's node. After an hour without a command the sandbox ends, unless
        `idle_timeout` says otherwise. `timeout` is that of commands for which the agent names none; None
        is no limit. Raises InvalidRequest for an option that there is not, and what `create` raises.
        """
        made = cls(timeout=timeout, output_limit=output_limit, file_limit=file_limit, owns=True)
        with made._beginning():
            made._portal.call(made._create(asked(options, harness="deepagents", labels={})))
        return made

    @classmethod
    async def acreate(
        cls,
        *,
        timeout: float | None = TIMEOUT_S,  # noqa: ASYNC109 - of the commands
        output_limit: int = OUTPUT_LIMIT,
        file_limit: int = FILE_LIMIT,
        **options: Any,
    ) -> Self:
        """Returns what `create` does, while the loop goes on; cancelled, it leaves no sandbox."""
        made = cls(timeout=timeout, output_limit=output_limit, file_limit=file_limit, owns=True)
        with made._beginning():
            await made._portal.join(made._create(asked(options, harness="deepagents", labels={})))
        return made

    @classmethod
    def connect(
        cls,
        sandbox_id: str,
        *,
        timeout: float | None = TIMEOUT_S,
        output_limit: int = OUTPUT_LIMIT,
        file_limit: int = FILE_LIMIT,
        **options: Any,
    ) -> Self:
        """Returns a backend for a sandbox that there is; closing leaves that alone. NotFound.

        `options` are url and token.
        """
        refuse_unknown(options, CONNECTION)
        made = cls(timeout=timeout, output_limit=output_limit, file_limit=file_limit, owns=False)
        with made._beginning():
            made._portal.call(made._find(sandbox_id, options))
        return made

    @property
    def id(self) -> str:
        """The sandbox's id, as `skerry ls` shows it."""
        return self._sandbox.id

    def close(self) -> None:
        """Ends the sandbox, if `create` made it; may be called twice. Nothing works afterwards."""
        if self._client is None:
            return
        try:
            self._portal.call(self._leave())
        finally:
            self._portal.close()

    async def aclose(self) -> None:
        """Does what `close` does, while the loop goes on."""
        if self._client is None:
            return
        try:
            await self._portal.join(self._leave())
        finally:
            self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with _without_hiding(kind):
            self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with _without_hiding(kind):
            await self.aclose()

    # --- what BaseSandbox asks for

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Runs a shell line; stdout and stderr are one text, in the order in which they were written.

        The exit code after a timeout is 124; 0 means no timeout, None that of the backend. Raises
        ValueError for another one, and SkerryError as the class says.
        """
        return self._portal.call(self._execute(command, timeout))

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:  # noqa: ASYNC109
        """Does what `execute` does; cancelled, it ends the command inside."""
        return await self._portal.join(self._execute(command, timeout))

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Writes each file whole, parents made; what the sandbox refuses is an answer of its own."""
        return self._portal.call(self._upload(files))

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Does what `upload_files` does, while the loop goes on."""
        return await self._portal.join(self._upload(files))

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Reads each file; what the sandbox refuses, and a file beyond the limit, is an answer."""
        return self._portal.call(self._download(paths))

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Does what `download_files` does, while the loop goes on."""
        return await self._portal.join(self._download(paths))

    @contextlib.contextmanager
    def _beginning(self) -> Iterator[None]:
        """Where the block fails nothing is left; where it does not, at the latest at exit."""
        try:
            yield
        except BaseException:
            self._portal.close()
            raise
        self._portal.before_exit(self._leave)

    # --- on the loop of the portal

    @property
    def _sandbox(self) -> aio.Sandbox:
        if self._held is None:
            raise RuntimeError("the backend is closed")
        return self._held

    async def _create(self, asked_for: Asked) -> None:
        async with self._connected(asked_for.connection) as client:
            self._held = await client.sandboxes.create(**asked_for.creation)

    async def _find(self, sandbox_id: str, connection: dict[str, Any]) -> None:
        async with self._connected(connection) as client:
            self._held = await client.sandboxes.get(sandbox_id)

    @contextlib.asynccontextmanager
    async def _connected(self, connection: dict[str, Any]) -> AsyncIterator[aio.Client]:
        """Gives a client, which stays open for `_leave` if the block succeeds."""
        async with contextlib.AsyncExitStack() as undo:
            client = await undo.enter_async_context(aio.Client(**connection))
            yield client
            undo.pop_all()
        self._client = client

    async def _leave(self) -> None:
        client, held = self._client, self._held
        self._client = self._held = None
        if client is None or held is None:
            return
        try:
            if self._owns:
                await held.destroy()
        finally:
            await client.__aexit__(None, None, None)

    async def _execute(self, command: str, timeout: float | None) -> ExecuteResponse:  # noqa: ASYNC109
        limit = self._timeout if timeout is None else _seconds(timeout)
        try:
            result = await self._sandbox.run(
                command, timeout=limit, merge_stderr=True, output_limit=self._output_limit
            )
        except InvalidRequest as error:  # the agent wrote what no shell could be given
            return ExecuteResponse(output=f"Error: {error}", exit_code=NOT_STARTED)
        output = shown(result, self._output_limit)
        if said := remarks(result, limit):
            output += f"\n{said}" if output and not output.endswith("\n") else said
        return ExecuteResponse(
            output=output, exit_code=exit_status(result), truncated=result.truncated
        )

    async def _upload(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        answers = []
        for path, content in files:
            error = _misplaced(path)
            if error is None:
                try:
                    await self._sandbox.files.write(path, content)
                except SkerryError as why:
                    error = _word_of(why)
            answers.append(FileUploadResponse(path=path, error=error))
        return answers

    async def _download(self, paths: list[str]) -> list[FileDownloadResponse]:
        answers = []
        for path in paths:
            content, error = None, _misplaced(path)
            if error is None:
                try:
                    content = await read_within(self._sandbox, path, self._file_limit)
                except SkerryError as why:
                    error = _word_of(why)
            answers.append(FileDownloadResponse(path=path, content=content, error=error))
        return answers


@contextlib.contextmanager
def _without_hiding(kind: type[BaseException] | None) -> Iterator[None]:
    """Where a run has failed already, that its sandbox cannot be ended is only logged."""
    try:
        yield
    except SkerryError as error:
        if kind is None:
            raise
        log.warning("the sandbox is left to end by itself: %s", error)


def _seconds(timeout: float | None) -> float | None:
    """Returns a timeout as Skerry takes it: 0 is none at all."""
    if timeout is not None and not (math.isfinite(timeout) and timeout >= 0):
        raise ValueError(f"timeout must be 0 or more seconds, not {timeout}")
    return timeout or None


def _misplaced(path: str) -> str | None:
    return None if path.startswith("/") else "invalid_path"


def _word_of(error: SkerryError) -> str:
    """Returns the word that deepagents has for an error; raises those that are not the agent's."""
    if is_of_platform(error):
        raise error
    if isinstance(error, NotFound):
        return "file_not_found"
    if isinstance(error, FileDenied):
        return "permission_denied"
    if isinstance(error, FileRefused):
        return "is_directory" if error.fields.get("errno") == EISDIR else error.message
    if isinstance(error, InvalidRequest):
        return "invalid_path"
    raise error
