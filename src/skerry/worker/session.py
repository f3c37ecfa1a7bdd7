"""What a policy acts through: one sandbox, with every command on record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from skerry.errors import SkerryError
from skerry.integrity.conduct import DEEDS_MAX, TEXT_MAX, Deed, deed_of
from skerry.spec.command import RunResult
from skerry.spec.task import TaskSpec
from skerry.trajectory.rollouts import JobLog
from skerry.worker.environment import Environment
from skerry.worker.ports import Sandbox

COMMAND_TIMEOUT_S = 120.0
OUTPUT_LIMIT = 1 << 20


class Session:
    """A policy's hold on its sandbox. Every command and file written is an event of the rollout."""

    def __init__(
        self,
        sandbox: Sandbox,
        environment: Environment,
        log: JobLog,
        rollout: str,
        on_step: Callable[[str], None],
    ) -> None:
        self._sandbox = sandbox
        self._log = log
        self._rollout = rollout
        self._on_step = on_step
        self.environment = environment
        self.deeds: list[Deed] = []  # what conduct is judged by: bounded, the first ones

    @property
    def task(self) -> TaskSpec:
        """The task."""
        return self.environment.task

    async def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes | None = None,
        env: dict[str, str] | None = None,
        timeout: float = COMMAND_TIMEOUT_S,  # noqa: ASYNC109 - the command's
    ) -> RunResult:
        """Runs a command in the workdir, as root, and returns its result."""
        shown = command if isinstance(command, str) else " ".join(command)
        self._on_step(shown[:200])
        data: dict[str, Any] = {"action": "run", "command": shown[:4000]}
        try:
            result = await self._sandbox.run(
                command,
                cwd=self.task.workdir,
                env=env,
                stdin=stdin,
                timeout=timeout,
                output_limit=OUTPUT_LIMIT,
            )
        except SkerryError as error:
            self.record(data | {"error": error.code, "message": error.message[:500]})
            self._did(_words(shown, stdin))
            raise
        self._did(_words(shown, stdin), result)
        self.record(data | self._summary(result))
        return result

    async def write(self, path: str, content: bytes, *, mode: int | None = None) -> None:
        """Writes a file, made with the directories above it; without a mode it keeps the one it has."""
        self._on_step(f"write {path}")
        self._did(_words(path, content))
        await self._sandbox.files.write(path, content, mode=mode)
        self.record(
            {"action": "write", "path": path, "mode": mode, "content": self._log.output(content)}
        )

    async def read(self, path: str) -> bytes:
        """Returns a file's content."""
        return await self._sandbox.files.read(path)

    def forward(self, port: int, host: str, target_port: int) -> AbstractAsyncContextManager[Any]:
        """Connects a port inside to a server of this process, for a block."""
        return self._sandbox.reverse_forward(port, host, target_port)

    def record(self, data: dict[str, Any]) -> None:
        """Adds an event to the rollout."""
        self._log.append("event", {"rollout": self._rollout, **data})

    def output(self, content: bytes) -> dict[str, Any]:
        """Returns how content stands in an event: whole, or its beginning and a digest."""
        return self._log.output(content)

    def _did(self, text: str, result: RunResult | None = None) -> None:
        if len(self.deeds) < DEEDS_MAX:
            self.deeds.append(deed_of(text, result))

    def _summary(self, result: RunResult) -> dict[str, Any]:
        data: dict[str, Any] = {
            "seconds": round(max(0.0, result.ended - result.started), 4),
            "stdout": self._log.output(result.stdout),
            "stderr": self._log.output(result.stderr),
        }
        for key in ("exit_code", "signal", "start_error"):
            value = getattr(result, key)
            if value is not None:
                data[key] = value
        for key in ("timed_out", "oom_killed", "truncated"):
            if getattr(result, key):
                data[key] = True
        return data


def _words(text: str, content: bytes | None) -> str:
    rest = (content or b"")[:TEXT_MAX].decode("utf-8", "replace")
    return f"{text[:TEXT_MAX]}\n{rest}" if rest else text[:TEXT_MAX]


class Policy(Protocol):
    """What acts in a rollout. It is told the task's number and the rollout's, both from 0."""

    name: str

    def variant(self, task_index: int, rollout_index: int) -> str:
        """Returns which of its forms acts; "" if it has one."""

    async def act(self, session: Session, variant: str) -> None:
        """Does its work; what the sandbox then holds is graded. Platform errors pass through."""
