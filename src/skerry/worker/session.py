"""What a policy acts through: one sandbox, with every command on record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from skerry.errors import Fault, InvalidRequest, SkerryError
from skerry.integrity.conduct import DEEDS_MAX, TEXT_MAX, TOTAL_MAX, Deed, deed_of
from skerry.spec.command import RunResult
from skerry.spec.task import TaskSpec
from skerry.trajectory.rollouts.job_log import JobLog
from skerry.worker.environment import Environment
from skerry.worker.ids import operation_id
from skerry.worker.memory import Kept, Memory
from skerry.worker.ports import Sandbox

COMMAND_TIMEOUT_S = 120.0
OUTPUT_LIMIT = 1 << 20
READ_BYTES_MAX = 4 << 20  # a quarter of what the book takes as one record


class CannotStart(Exception):
    """A scaffold that is not there, or cannot be run: nobody acted, so nobody is graded."""


class Access(msgspec.Struct, frozen=True):
    """How an agent reaches its model: a port on loopback inside, and a key of its own."""

    port: int
    token: str

    @property
    def base_url(self) -> str:
        """What OpenAI's clients call it."""
        return f"http://127.0.0.1:{self.port}/v1"


class Session:
    """A policy's hold on its sandbox. Every command and file is an event of the rollout, once.

    Each call is a step, counted from 0: a policy that is run again makes the same calls in the same
    order, and each gets what it got before. Commands are the node's to remember, by the id of their
    step; of files the rollout's memory knows.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        environment: Environment,
        log: JobLog,
        rollout: str,
        on_step: Callable[[str], None],
        *,
        memory: Memory,
        access: Access | None = None,
    ) -> None:
        self._sandbox = sandbox
        self._log = log
        self._on_step = on_step
        self._memory = memory
        self._step = 0
        self.rollout = rollout
        self.environment = environment
        self.deeds: list[Deed] = []  # what conduct is judged by: bounded, the first ones
        self.access = access

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
        cwd: str | None = None,
        user: str | None = None,
        timeout: float | None = COMMAND_TIMEOUT_S,  # noqa: ASYNC109 - the command's
        deed: bool = True,
    ) -> RunResult:
        """Runs a command in the workdir, as root unless a user is named, and returns its result.

        It goes on inside when this is cancelled: whoever ends the acting ends it. Without `deed` its
        words are the trainer's own, and only how it ended tells of the agent.
        """
        step = self._next()
        shown = command if isinstance(command, str) else " ".join(command)
        self._on_step(shown[:200])
        words = _words(shown, stdin) if deed else ""
        data: dict[str, Any] = {"action": "run", "command": shown[:4000]}
        try:
            started = await self._sandbox.start(
                command,
                cwd=cwd or self.task.workdir,
                env=env,
                user=user,
                stdin=stdin,
                timeout=timeout,
                output_limit=OUTPUT_LIMIT,
                op_id=operation_id(self.rollout, self._memory.attempt, step),
            )
            result = await started.wait()
        except SkerryError as error:
            if error.fault in (Fault.SANDBOX, Fault.CALLER):
                data |= {"error": error.code, "message": error.message[:500]}
                self.record(data, step=str(step))
            self._did(words)
            raise
        self._did(words, result)
        self.record(data | self._summary(result), step=str(step))
        return result

    async def write(
        self, path: str, content: bytes, *, mode: int | None = None, deed: bool = True
    ) -> None:
        """Writes a file, made with the directories above it; without a mode it keeps the one it has.

        Without `deed` it is the trainer's own, and nothing that the agent did.
        """
        step = self._next()
        self._on_step(f"write {path}")
        if deed:
            self._did(_words(path, content))
        if step not in self._memory.kept:
            await self._sandbox.files.write(path, content, mode=mode)
            self._memory.note(Kept(step=step))
        data = {"action": "write", "path": path, "mode": mode}
        self.record(data | {"content": self._log.output(content)}, step=str(step))

    async def read(self, path: str) -> bytes:
        """Returns a file's content, as it was when it was first read; at most 4 MiB of it."""
        step = self._next()
        if step not in self._memory.kept:
            content = await self._sandbox.files.read(path)
            if len(content) > READ_BYTES_MAX:
                raise InvalidRequest(f"{path} is larger than {READ_BYTES_MAX} bytes")
            self._memory.note(Kept(step=step, content=content))
        return self._memory.kept[step]

    async def end_commands(self) -> None:
        """Ends every command that still runs."""
        for status in await self._sandbox.ops():
            if status.state == "running":
                await self._sandbox.cancel(status.op_id)

    def _next(self) -> int:
        step = self._step
        self._step += 1
        return step

    def record(self, data: dict[str, Any], *, step: str) -> None:
        """Adds an event to the rollout, unless this step's is there."""
        self._log.event(self.rollout, f"{self._memory.attempt}.{step}", data)

    def output(self, content: bytes) -> dict[str, Any]:
        """Returns how content stands in an event: whole, or its beginning and a digest."""
        return self._log.output(content)

    def told_deeds(self) -> tuple[Deed, ...]:
        """Returns what it did, as much of it as is looked at: it goes into the book."""
        left, told = TOTAL_MAX, []
        for deed in self.deeds:
            left -= len(deed.text)
            told.append(deed if left >= 0 else msgspec.structs.replace(deed, text=""))
        return tuple(told)

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


class Needs(msgspec.Struct, frozen=True):
    """What an agent's sandbox has beyond the task's."""

    layers: tuple[str, ...] = ()  # toolkits, above the others
    port: int | None = None  # inside, where its model answers; None: it asks none


class Policy(Protocol):
    """What acts in a rollout. It is told the task's number and the rollout's, both from 0.

    `act` may be run again after this process was killed: it makes the same calls in the same order,
    and decides by nothing but what they return.
    """

    name: str
    needs: Needs

    def variant(self, task_index: int, rollout_index: int) -> str:
        """Returns which of its forms acts; "" if it has one."""

    async def act(self, session: Session, variant: str) -> None:
        """Does its work; what the sandbox then holds is graded. Platform errors pass through."""
