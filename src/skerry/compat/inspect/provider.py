"""The sandbox environment itself: one sandbox of a sample."""

from __future__ import annotations

import asyncio
import posixpath
from errno import EACCES
from typing import Any, TypeAlias

import anyio
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    sandboxenv,
)
from pydantic import BaseModel
from typing_extensions import override

from skerry.aio import RunResult, Sandbox, State
from skerry.compat.inspect.config import FILES, SkerryConfig, setup_of
from skerry.compat.inspect.errors import TaskRefused, in_inspects_terms, no_nul
from skerry.compat.inspect.nodes import HARNESS, Node, leave, mine, node_of
from skerry.compat.outcome import exit_status
from skerry.compat.reading import read_within
from skerry.errors import SkerryError
from skerry.sdk.client import AsyncClient
from skerry.spec.limits import LABEL_BYTES_MAX, OUTPUT_LIMIT_MAX

Config: TypeAlias = BaseModel | str | None
COMPOSE = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")


@sandboxenv(name="skerry")
class SkerrySandbox(SandboxEnvironment):
    """One sandbox of a sample, of a node at SKERRY_URL or one that is started here.

    What the agent does wrong is raised as what Inspect tells the model; faults of the platform are
    raised as SkerryError, which ends the sample with an error and can be retried.
    """

    def __init__(self, sandbox: Sandbox, node: Node, workdir: str) -> None:
        super().__init__()
        self.sandbox = sandbox
        self._node = node
        self._workdir = workdir

    # --- where its options come from

    @classmethod
    def config_files(cls) -> list[str]:
        """Returns what is looked for beside a task, in this order."""
        return [*FILES, *COMPOSE, "Dockerfile"]

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Returns what a log has kept of a configuration given in code."""
        return SkerryConfig(**config)

    @classmethod
    def default_concurrency(cls) -> int | None:
        """None: the node knows what it has room for, and samples wait there for their turn."""
        return None

    def default_polling_interval(self) -> float:
        """Returns seconds between looks at a sandbox service; a look costs a few milliseconds."""
        return 0.2

    # --- from the beginning of a task to its end

    @classmethod
    @override
    async def task_init(cls, task_name: str, config: Config) -> None:
        """Returns when the node answers and every image is there, or built; raises TaskRefused."""
        _on_asyncio()
        setup = setup_of(config)
        node = node_of(setup)
        node.users += 1
        try:
            await node.prepare(setup)
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await _done(node)
            if isinstance(error, SkerryError):  # nothing has begun: shown without a traceback
                raise TaskRefused(error.message) from error
            raise

    @classmethod
    @override
    async def sample_init(
        cls, task_name: str, config: Config, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Returns the sample's sandboxes, the default one first, or raises and leaves none."""
        _on_asyncio()
        setup = setup_of(config)
        node = node_of(setup)
        labels, sample = _labels(task_name, metadata)
        made: dict[str, SandboxEnvironment] = {}
        ids: list[str] = []
        try:
            for one in setup.wanted:
                sandbox = await node.make(one, setup, labels, sample)
                ids.append(sandbox.id)
                made[one.name] = cls(sandbox, node, await _workdir(sandbox))
        except BaseException:
            with anyio.CancelScope(shield=True):
                await node.remove(ids)
            raise
        return made

    @classmethod
    @override
    async def sample_cleanup(
        cls,
        task_name: str,
        config: Config,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Leaves none of them; one that cannot be reached is tried again at the end of the task."""
        for environment in environments.values():
            own = environment.as_type(cls)
            with anyio.CancelScope(shield=True):
                await own._node.remove([own.sandbox.id])  # noqa: SLF001 - of this class

    @classmethod
    @override
    async def task_cleanup(cls, task_name: str, config: Config, cleanup: bool) -> None:
        """Ends what is left of the evaluation, or with `cleanup` False says what that is."""
        node = node_of(setup_of(config))
        with anyio.CancelScope(shield=True):
            if cleanup:
                await node.remove_all()
            await _done(node, keep=not cleanup)

    @classmethod
    @override
    async def cli_cleanup(cls, id: str | None) -> None:
        """Destroys the sandbox of that id, or all that evaluations of this user here have made."""
        async with AsyncClient(owns=False) as client:
            labels = HARNESS if id else mine()
            found = [info.id for info in await client.sandboxes.list(labels=labels)]
            if id is not None:
                found = [one for one in found if one.startswith(id)]
            if found:
                await client.sandboxes.destroy_many(found)
            print("\n".join([*(f"removed {one}" for one in found), f"{len(found)} removed"]))

    # --- what is done in it

    @override
    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Returns how a command ended; one that timed out has no process left, and is not repeated.

        `concurrency` bounds what runs on the machine of the evaluation, and does nothing here.
        """
        no_nul(*cmd, cwd, user, *(env or {}).values())
        limit = min(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE, OUTPUT_LIMIT_MAX)
        # Where this user cannot enter the sample's directory, and none was asked for: where all can.
        for where in (self._path(cwd or ""), "/"):
            with in_inspects_terms():
                result = await self.sandbox.run(
                    cmd,
                    env=env,
                    cwd=where,
                    user=user,
                    stdin=input,
                    timeout=timeout or None,
                    output_limit=limit,
                )
            if cwd is not None or not (_at_directory(result) and result.start_errno == EACCES):
                break
        return _answer(result, where if _at_directory(result) else cmd[0], timeout)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Writes a file as the sandbox's user; readers see the old content or the new."""
        no_nul(file)
        with in_inspects_terms(file):
            await self.sandbox.files.write(self._path(file), contents)

    async def read_file(self, file: str, text: bool = True) -> Any:
        """Returns a file's content, newlines as they are."""
        no_nul(file)
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        with in_inspects_terms(file):
            content = await read_within(self.sandbox, self._path(file), limit)
        return content.decode("utf-8") if text else content

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """Returns how a person gets a terminal in it; ConnectionError if it does not run."""
        try:
            state = (await self.sandbox.info()).state
        except SkerryError as error:
            raise ConnectionError(error.message) from error
        if state in (State.STOPPED, State.FAILED):
            raise ConnectionError(f"{self.sandbox.id} is {state}")
        # Another user may not enter the sample's directory, and begins in a home of its own.
        command = self._node.command(self.sandbox.id, user, None if user else self._workdir)
        return SandboxConnection(type="skerry", command=command, container=self.sandbox.id)

    def _path(self, file: str) -> str:
        # A path that ends with a slash names a directory, for both sides.
        return posixpath.join(self._workdir, file) if file else self._workdir


def _on_asyncio() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise TaskRefused("sandboxes of Skerry need Inspect's asyncio backend, not trio") from None


async def _workdir(sandbox: Sandbox) -> str:
    """Returns where its commands begin, for each user the same."""
    where = await sandbox.run("pwd")
    return where.text.rstrip("\n") if where.ok and where.text.startswith("/") else "/"


async def _done(node: Node, *, keep: bool = False) -> None:
    node.users -= 1
    if node.users > 0:
        return
    if keep and node.made:
        await node.lease.give_up()
        await _tell(node)
    await leave(node)


async def _tell(node: Node) -> None:
    print("\nSandboxes that are left, and the sample that each is of:")
    for sandbox, sample in node.made.items():
        print(f"  {sandbox}  {sample}")
    print("Remove them all: inspect sandbox cleanup skerry; or one: the same with its id")
    if (await (await node.client()).health()).embedded:
        print("Those that were not made with detached = true end with this process.")


def _labels(task_name: str, metadata: dict[str, str]) -> tuple[dict[str, str], str]:
    """Returns what tells whose a sandbox is, for machines and for people."""
    sample, epoch, run = str(metadata.get("__sample_id__", "")), "", ""
    try:  # no part of Inspect's public names, and only for the listing
        from inspect_ai.log._samples import sample_active

        if (active := sample_active()) is not None:
            sample, epoch, run = str(active.sample.id), str(active.epoch), str(active.eval_id)
    except (ImportError, AttributeError):
        pass
    labels = {"task": task_name, "sample": sample, "epoch": epoch, "eval": run}
    kept = {name: value[:LABEL_BYTES_MAX] for name, value in labels.items() if value}
    return mine() | kept, f"{task_name}, sample {sample or '?'}, epoch {epoch or '?'}"


def _at_directory(result: RunResult) -> bool:
    return (result.start_error or "").startswith("cwd:")


def _answer(result: RunResult, what: str, timeout: int | None) -> ExecResult[str]:
    """Returns a result, or raises what Inspect wants raised; `what` could not be used, if any."""
    if result.timed_out:
        late = TimeoutError(f"Command timed out after {timeout} seconds")
        late.truncated_output = result.text + result.error_text  # type: ignore[attr-defined]
        raise late
    if result.truncated:
        raise OutputLimitExceededError(
            SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, result.text + result.error_text
        )
    if result.start_error is not None:
        return _not_started(result, what)
    return ExecResult(result.ok, exit_status(result), result.text, result.error_text)


def _not_started(result: RunResult, what: str) -> ExecResult[str]:
    """A program that there is not is a result, as a shell would tell it; a closed one is raised."""
    if result.start_errno == EACCES:
        raise PermissionError(EACCES, "Permission denied", what)
    return ExecResult(False, exit_status(result), "", f"{result.start_error}\n")
