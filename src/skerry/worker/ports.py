"""What the worker needs of a client: small protocols that the SDK's async face satisfies.

Participants do not import each other; whoever starts a job hands a client in.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from skerry.spec.command import RunResult
from skerry.spec.files import Change, FileInfo
from skerry.spec.job import JobInfo
from skerry.spec.layers import LayerManifest
from skerry.spec.sandbox import SandboxInfo
from skerry.spec.uplink import Uplink
from skerry.wire.http import Health, OpStatus


class Files(Protocol):
    """Files of a sandbox."""

    async def read(self, path: str) -> bytes:
        """Returns a file's bytes."""

    async def write(self, path: str, content: bytes | str, *, mode: int | None = ...) -> FileInfo:
        """Writes a file, with the directories above it."""

    async def mkdir(self, path: str, *, mode: int = ..., parents: bool = ...) -> None:
        """Makes a directory."""

    async def put_tree(self, path: str, tar: AsyncIterator[bytes]) -> None:
        """Unpacks a tar beneath a path."""


class Command(Protocol):
    """A command that was started."""

    async def wait(self) -> RunResult:
        """Returns its result when it has ended."""

    async def kill(self) -> None:
        """Ends every process of it."""


class Sandbox(Protocol):
    """A running sandbox."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def files(self) -> Files:
        """Its files."""

    @property
    def created_as(self) -> SandboxInfo:
        """What it was when it was made."""

    async def info(self) -> SandboxInfo:
        """Returns its state."""

    async def run(
        self,
        command: str | Sequence[str],
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - kept by the guest agent
        output_limit: int = ...,
    ) -> RunResult:
        """Runs a command to its end."""

    async def start(
        self,
        command: str | Sequence[str],
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - kept by the guest agent
        output_limit: int = ...,
        op_id: str | None = None,
    ) -> Command:
        """Starts a command, or finds the one that was started under this id."""

    async def ops(self) -> list[OpStatus]:
        """Returns the commands it has had."""

    async def cancel(self, op_id: str) -> None:
        """Ends every process of a command."""

    async def pause(self) -> SandboxInfo:
        """Returns once its processes stand still."""

    async def resume(self) -> SandboxInfo:
        """Returns once it runs."""

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
        """Adds to its record, once for each id."""

    async def diff(self) -> tuple[Change, ...]:
        """Returns what changed since it was made."""

    def diff_tar(self, under: str = ...) -> AsyncIterator[bytes]:
        """Yields a tar of what was added and modified."""

    def reverse_forward(
        self, port: int, host: str, target_port: int
    ) -> AbstractAsyncContextManager[Any]:
        """Connects a port inside to a server here, for a block."""

    async def destroy(self) -> None:
        """Leaves nothing of it behind."""


class Sandboxes(Protocol):
    """The sandboxes of a node."""

    async def create(
        self,
        backend: str = ...,
        *,
        image: str = ...,
        layers: Sequence[str] = ...,
        cpu: float = ...,
        memory: int | str = ...,
        pids: int = ...,
        disk: int | str | None = ...,
        workdir: str = ...,
        user: str = ...,
        ttl: float | None = ...,
        labels: dict[str, str] | None = ...,
        key: str | None = ...,
        wait: float = ...,
        detached: bool = ...,
        rollout: str | None = ...,
        job: str | None = ...,
        uplinks: Sequence[Uplink] = ...,
        network: Sequence[str] = ...,
        readonly: Sequence[str] = ...,
        hidden: Sequence[str] = ...,
    ) -> Sandbox:
        """Returns a running sandbox; with a key the one that was made under it."""

    async def get(self, sandbox_id: str) -> Sandbox:
        """Returns a sandbox; raises NotFound."""

    async def list(
        self, *, key: str | None = ..., labels: dict[str, str] | None = ...
    ) -> Sequence[SandboxInfo]:
        """Returns all that match."""


class Images(Protocol):
    """The layers of a node."""

    async def inspect(self, name: str) -> LayerManifest:
        """Returns a layer's manifest; raises NotFound."""

    async def debian(
        self,
        name: str,
        suite: str,
        packages: Sequence[str] = ...,
        *,
        on_log: Callable[[str], None] | None = ...,
    ) -> LayerManifest:
        """Makes a base layer."""

    async def build(
        self,
        name: str,
        *,
        image: str = ...,
        layers: Sequence[str] = ...,
        context: str | os.PathLike[str] | None = ...,
        steps: Sequence[str],
        workdir: str | None = ...,
        network: Sequence[str] = ...,
        timeout: float = ...,  # noqa: ASYNC109 - of each step
        on_log: Callable[[str], None] | None = ...,
    ) -> LayerManifest:
        """Makes a layer by steps in a sandbox, without network unless it is given."""


class Job(Protocol):
    """A job of the node."""

    created_as: JobInfo

    @property
    def images(self) -> Images:
        """The node's layers, built in sandboxes of the job."""


class Jobs(Protocol):
    """The jobs of a node."""

    async def get(self, name: str) -> Job:
        """Returns a job as it stands; NotFound."""


class Client(Protocol):
    """A client of one node."""

    @property
    def sandboxes(self) -> Sandboxes:
        """Its sandboxes."""

    @property
    def images(self) -> Images:
        """Its layers."""

    @property
    def jobs(self) -> Jobs:
        """Its jobs."""

    async def health(self) -> Health:
        """Returns the node's view of itself; raises Unavailable if it does not answer."""
