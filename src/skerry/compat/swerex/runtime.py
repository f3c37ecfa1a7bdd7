"""One runtime of SWE-ReX: a sandbox, made when it is first needed, its sessions, commands and files."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import Iterator
from errno import EISDIR, ENOENT
from typing import Any, BinaryIO

from skerry import aio
from skerry.compat.options import Asked
from skerry.compat.outcome import NOT_FOUND, is_of_platform, remarks
from skerry.compat.reading import read_within
from skerry.compat.swerex.archives import tar_of_zip
from skerry.compat.swerex.bash import Bash
from skerry.compat.swerex.wire import (
    SESSION_NAME_MAX,
    Action,
    CloseSession,
    Command,
    CreateSession,
    ReadFile,
    WriteFile,
    of_python,
    of_swerex,
)
from skerry.errors import FileDenied, FileRefused, NotFound, SkerryError
from skerry.spec.command import RunResult
from skerry.spec.limits import MIB
from skerry.spec.sandbox import State

OUTPUT_LIMIT = 16 * MIB
FILE_LIMIT = 64 * MIB
SESSIONS_MAX = 32
ANSWERS_WITHIN_S = 5.0
_CHUNK = 1 << 20
_CODEC = re.compile(r"[A-Za-z0-9_.:-]{1,40}")


class Runtime:
    """What the server serves. `close` ends the sandbox, and the next request has a fresh one."""

    def __init__(self, client: aio.Client, asked: Asked) -> None:
        self._client = client
        self._asked = asked
        self._sandbox: aio.Sandbox | None = None
        self._making = asyncio.Lock()
        self._sessions: dict[str, Bash] = {}
        self._place = ""

    async def sandbox(self) -> aio.Sandbox:
        """Returns the sandbox, made if there is none; raises what `create` raises."""
        async with self._making:
            if self._sandbox is None:
                made = await self._client.sandboxes.create(**self._asked.creation)
                place = f"/tmp/.swerex-{secrets.token_hex(8)}"  # noqa: S108 - inside, with a random name
                try:
                    await made.files.mkdir(place, mode=0o700)
                except BaseException:
                    await asyncio.shield(made.destroy())
                    raise
                self._sandbox, self._place = made, place
            return self._sandbox

    async def is_alive(self) -> dict[str, Any]:
        """Says within seconds whether the sandbox lives; a fault of the platform is in the message."""
        try:
            sandbox = await self.sandbox()
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                state = (await sandbox.info()).state
        except SkerryError as error:
            return {"is_alive": False, "message": f"{type(error).__name__}: {error}"}
        except TimeoutError:
            return {"is_alive": False, "message": "Unavailable: the node does not answer"}
        alive = state in (State.RUNNING, State.PAUSED)
        return {"is_alive": alive, "message": "" if alive else f"the sandbox is {state}"}

    # --- sessions

    async def create_session(self, asked: CreateSession) -> dict[str, Any]:
        """Starts a bash under a new name; SessionExistsError."""
        if asked.session in self._sessions:
            raise of_swerex("SessionExistsError", f"session {asked.session} already exists")
        if len(self._sessions) >= SESSIONS_MAX or len(asked.session) > SESSION_NAME_MAX:
            raise of_python("ValueError", f"at most {SESSIONS_MAX} sessions, with short names")
        session = Bash(await self.sandbox(), self._place)
        self._sessions[asked.session] = session
        try:
            output = await session.start(asked)
        except BaseException:
            del self._sessions[asked.session]
            await session.close()
            raise
        return {"output": output, "session_type": "bash"}

    async def run_in_session(self, action: Action) -> dict[str, Any]:
        """Runs an action; SessionDoesNotExistError, and what the session raises."""
        return await self._session(action.session).run(action)

    async def close_session(self, asked: CloseSession) -> dict[str, Any]:
        """Ends a session and what runs in it; SessionDoesNotExistError."""
        session = self._session(asked.session)
        del self._sessions[asked.session]
        await session.close()
        return {"session_type": "bash"}

    def _session(self, name: str) -> Bash:
        if name not in self._sessions:
            raise of_swerex("SessionDoesNotExistError", f"session {name!r} does not exist")
        return self._sessions[name]

    async def close(self) -> dict[str, Any]:
        """Ends all sessions and the sandbox; may be called twice."""
        async with self._making:
            sessions, self._sessions = list(self._sessions.values()), {}
            sandbox, self._sandbox = self._sandbox, None
            for session in sessions:
                await session.close()
            if sandbox is not None:
                with contextlib.suppress(NotFound):
                    await sandbox.destroy()
        return {}

    # --- commands

    async def execute(self, asked: Command) -> dict[str, Any]:
        """Runs a command by itself; CommandTimeoutError, NonZeroExitCodeError, FileNotFoundError."""
        words = [asked.command] if isinstance(asked.command, str) else asked.command
        argv = ["/bin/sh", "-c", *words] if asked.shell else words
        result = await (await self.sandbox()).run(
            argv,
            env=asked.env,
            cwd=asked.cwd,
            timeout=asked.timeout,
            merge_stderr=asked.merge_output_streams,
            output_limit=OUTPUT_LIMIT,
        )
        if result.timed_out:
            message = f"Timeout ({asked.timeout}s) exceeded while running command"
            raise of_swerex("CommandTimeoutError", message)
        if result.start_error is not None:
            name = "FileNotFoundError" if result.start_errno == ENOENT else "PermissionError"
            raise of_python(name, result.start_error)
        answer = _answer(result)
        code = answer["exit_code"]
        if asked.check and code != 0:
            message = f"Command {asked.command!r} failed with exit code {code}. "
            message += f"Stdout:\n{answer['stdout']!r}\nStderr:\n{answer['stderr']!r}"
            if asked.error_msg:
                message = f"{asked.error_msg}: {message}"
            raise of_swerex("NonZeroExitCodeError", message)
        return answer

    # --- files

    async def read_file(self, asked: ReadFile) -> dict[str, Any]:
        """Returns a file as text; FileNotFoundError, IsADirectoryError, ValueError, ..."""
        encoding, errors = asked.encoding or "utf-8", asked.errors or "strict"
        if not (_CODEC.fullmatch(encoding) and _CODEC.fullmatch(errors)):
            raise of_python("ValueError", "encoding: no name of one")
        with _in_pythons_terms(asked.path):
            content = await read_within(await self.sandbox(), asked.path, FILE_LIMIT)
        try:
            return {"content": content.decode(encoding, errors)}
        except (UnicodeError, LookupError, TypeError) as error:
            raise of_python("ValueError", f"{asked.path}: {error}") from None

    async def write_file(self, asked: WriteFile) -> dict[str, Any]:
        """Writes a file whole, parents made."""
        try:
            content = asked.content.encode()
        except UnicodeEncodeError as error:
            raise of_python("ValueError", f"content: {error}") from None
        with _in_pythons_terms(asked.path):
            await (await self.sandbox()).files.write(asked.path, content)
        return {}

    async def upload(
        self, file: BinaryIO, target: str, *, unzip: bool, limit: int
    ) -> dict[str, Any]:
        """Writes a file that was sent, or what a zip holds, beneath `target`; nothing leaves that.

        ValueError for a zip that is none, or holds more than `limit` bytes.
        """
        sandbox = await self.sandbox()
        with _in_pythons_terms(target):
            if not unzip:
                await sandbox.files.write(target, _pieces(file))
                return {}
            with await asyncio.to_thread(tar_of_zip, file, limit) as tar:
                await sandbox.files.mkdir(target, parents=True)
                await sandbox.files.put_tree(target, _pieces(tar))
        return {}


def _answer(result: RunResult) -> dict[str, Any]:
    """Returns it as subprocess would: a signal is a negative exit code."""
    code = result.exit_code
    if code is None:
        code = NOT_FOUND if result.signal is None else -result.signal
    said = remarks(result, None)
    if result.truncated:
        said += f"\nOutput was cut in its middle, beyond {OUTPUT_LIMIT >> 20} MiB a stream."
    return {
        "stdout": result.stdout.decode(errors="backslashreplace"),
        "stderr": result.stderr.decode(errors="backslashreplace") + said,
        "exit_code": code,
    }


async def _pieces(file: BinaryIO) -> Any:
    while piece := await asyncio.to_thread(file.read, _CHUNK):
        yield piece


@contextlib.contextmanager
def _in_pythons_terms(path: str) -> Iterator[None]:
    """What a sandbox refuses in the block is told as Python tells it."""
    try:
        yield
    except (NotFound, FileRefused) as error:
        if is_of_platform(error):
            raise
        if isinstance(error, NotFound):
            raise of_python("FileNotFoundError", f"No such file or directory: {path!r}") from None
        if isinstance(error, FileDenied):
            raise of_python("PermissionError", error.message) from None
        name = "IsADirectoryError" if error.fields.get("errno") == EISDIR else "OSError"
        raise of_python(name, error.message) from None
