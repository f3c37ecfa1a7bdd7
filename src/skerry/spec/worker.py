"""What a worker is told and what it tells: submissions, model requests, answers, states. No I/O.

A worker owns the rollouts of jobs. Each rollout has a number, from 0 in the order task, actor (policies,
then scaffold, then model), index; the id of a rollout is JOB-NUMBER with at least four digits. A model
request is named NUMBER.ATTEMPT.ORDINAL within its job.
"""

from __future__ import annotations

import math
import re
from enum import StrEnum
from typing import Any, Final

import msgspec

from skerry.errors import InvalidRequest
from skerry.spec.ids import check_job_id
from skerry.spec.layers import parse_layer_name
from skerry.spec.limits import LAYERS_MAX
from skerry.spec.rollout import Line, RolloutRecord
from skerry.spec.sandbox import check_env
from skerry.spec.task import TaskSpec

ROLLOUTS_MAX: Final = 1_000_000
CONCURRENCY_MAX: Final = 4096
TASKS_MAX: Final = 10_000
SUBMIT_BYTES_MAX: Final = 64 << 20
REQUEST_BYTES_MAX: Final = 32 << 20  # of one model request
ANSWER_BYTES_MAX: Final = 64 << 20
REQUESTS_MAX: Final = 100_000  # of one attempt of a rollout
WAIT_MAX_S: Final = 60.0  # of one long poll
PAGE_MAX: Final = 1000
_CONSUMER = re.compile(r"[A-Za-z0-9._-]{1,64}")
_REQUEST = re.compile(r"(0|[1-9][0-9]{0,6})\.([0-9]{1,2})\.(0|[1-9][0-9]{0,5})")


class Scaffold(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Any command as the agent, run in the agent's sandbox.

    It finds its model at OPENAI_BASE_URL with OPENAI_API_KEY, and the task as a JSON object on its
    standard input (task, title, bug, workdir, package, version, prompt, command). Its exit status
    decides nothing: what the sandbox then holds is graded.
    """

    argv: tuple[str, ...]
    name: str = "scaffold"
    layers: tuple[str, ...] = ()  # toolkits, above those of the task
    env: dict[str, str] = {}
    user: str | None = None  # None: the task's (stages.agent.user)
    cwd: str | None = None  # None: the task's workdir
    port: int = 4321  # on loopback inside, of its model


class ModelSettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The bash-tool agent that comes with Skerry."""

    model: str = "default"
    turns: int = 50
    command_timeout_s: float = 60.0
    output_limit: int = 16_000
    request_options: dict[str, Any] = {}


class AnswerUrl(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """An OpenAI-compatible server that the worker asks itself; the key never enters a sandbox."""

    url: str
    api_key: str | None = None
    timeout_s: float = 600.0
    tries: int = 5  # in a row; then the request waits, to be tried or answered later


class Submit(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A job's rollouts. `check()` must have passed. The same again changes nothing."""

    job: str
    tasks: tuple[TaskSpec, ...]
    policies: tuple[str, ...] = ()  # gold, noop, cheat, cheat:VARIANT
    scaffold: Scaffold | None = None
    model: ModelSettings | None = None
    n: int = 1
    concurrency: int = 4
    share: tuple[int, int] = (0, 1)  # of this worker: rollouts whose number modulo [1] is [0]
    answers: AnswerUrl | None = None
    pause_after_s: float = 60.0  # a sandbox whose request has waited for that long is paused

    @property
    def actors(self) -> tuple[str, ...]:
        """The names of what acts, in the order in which rollouts are numbered."""
        names = list(self.policies)
        if self.scaffold is not None:
            names.append(self.scaffold.name)
        if self.model is not None:
            names.append("model")
        return tuple(names)

    @property
    def total(self) -> int:
        """How many rollouts the job has, those of other workers too."""
        return len(self.tasks) * len(self.actors) * self.n

    def numbers(self) -> range:
        """The numbers of this worker's rollouts."""
        return range(self.share[0], self.total, self.share[1])

    def check(self) -> Submit:
        """Returns itself if every value is in bounds; raises InvalidRequest naming one that is not."""
        check_job_id(self.job)
        if not 1 <= len(self.tasks) <= TASKS_MAX:
            raise InvalidRequest(f"tasks: 1 to {TASKS_MAX}")
        for task in self.tasks:
            task.check()
        if len({task.id for task in self.tasks}) != len(self.tasks):
            raise InvalidRequest("two tasks have the same id")
        if not self.actors:
            raise InvalidRequest("nobody acts: give policies, a scaffold or a model")
        if len(set(self.actors)) != len(self.actors):
            raise InvalidRequest("two of those who act have the same name")
        if self.n < 1 or self.total > ROLLOUTS_MAX:
            raise InvalidRequest(f"a job has 1 to {ROLLOUTS_MAX} rollouts")
        if not 1 <= self.concurrency <= CONCURRENCY_MAX:
            raise InvalidRequest(f"concurrency must be between 1 and {CONCURRENCY_MAX}")
        index, count = self.share
        if not 0 <= index < count <= 1024:
            raise InvalidRequest("share: the worker's index, and how many there are, up to 1024")
        _check_seconds("pause_after_s", self.pause_after_s, 0.05, 86_400.0)
        self._check_actors()
        return self

    def _check_actors(self) -> None:
        if self.scaffold is not None:
            _check_scaffold(self.scaffold)
        if self.model is not None:
            if not 1 <= self.model.turns < REQUESTS_MAX:
                raise InvalidRequest(f"model.turns: 1 to {REQUESTS_MAX - 1}")
            _check_seconds("model.command_timeout_s", self.model.command_timeout_s, 0.1, 86_400.0)
        if self.answers is not None:
            if not self.answers.url.startswith(("http://", "https://")):
                raise InvalidRequest(f"answers.url: {self.answers.url[:200]!r} is no http address")
            _check_seconds("answers.timeout_s", self.answers.timeout_s, 0.1, 86_400.0)
            if not 1 <= self.answers.tries <= 100:
                raise InvalidRequest("answers.tries: 1 to 100")


def _check_scaffold(scaffold: Scaffold) -> None:
    if not scaffold.argv or not scaffold.argv[0] or any("\x00" in word for word in scaffold.argv):
        raise InvalidRequest("scaffold.argv: a program and its arguments")
    if re.fullmatch(r"[a-z0-9][a-z0-9._:-]{0,63}", scaffold.name) is None:
        raise InvalidRequest(f"scaffold.name {scaffold.name[:80]!r} is no plain name")
    if len(scaffold.layers) > LAYERS_MAX // 2:
        raise InvalidRequest(f"scaffold.layers: at most {LAYERS_MAX // 2}")
    for layer in scaffold.layers:
        parse_layer_name(layer)
    check_env(scaffold.env)
    if not 1 <= scaffold.port <= 65_535:
        raise InvalidRequest("scaffold.port: 1 to 65535")


def _check_seconds(what: str, value: float, least: float, most: float) -> None:
    if not (math.isfinite(value) and least <= value <= most):
        raise InvalidRequest(f"{what}: {least:g} to {most:g} seconds")


def check_consumer(name: str) -> str:
    """Returns a consumer's name; raises InvalidRequest if it is none."""
    if _CONSUMER.fullmatch(name) is None:
        raise InvalidRequest("consumer: 1 to 64 letters, digits and . _ -")
    return name


def rollout_id(job: str, number: int) -> str:
    """Returns the id of a rollout."""
    return f"{job}-{number:04d}"


def request_id(number: int, attempt: int, ordinal: int) -> str:
    """Returns the name of a model request within its job."""
    return f"{number}.{attempt}.{ordinal}"


def parse_request_id(text: str) -> tuple[int, int, int]:
    """Returns number, attempt and ordinal; raises InvalidRequest."""
    match = _REQUEST.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"{text[:80]!r} names no request: NUMBER.ATTEMPT.ORDINAL")
    return int(match[1]), int(match[2]), int(match[3])


class RolloutState(StrEnum):
    """Where a rollout is."""

    WAITING = "waiting"  # for its turn
    STARTING = "starting"  # its sandbox is being made
    ACTING = "acting"
    ASKING = "asking"  # it waits for the answer to a model request
    COLLECTING = "collecting"
    VERIFYING = "verifying"
    ENDED = "ended"


class RolloutStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rollout, now."""

    number: int
    rollout: str
    task: str
    policy: str
    state: RolloutState
    attempt: int = 0
    sandbox: str | None = None  # of the agent
    paused: bool = False  # by the worker, since its request waits for so long
    asked: int = 0  # model requests of this attempt
    answered: int = 0
    active_s: float = 0.0  # what counts against its act_timeout_s
    record: RolloutRecord | None = None  # once it has ended


class JobStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """This worker's share of a job."""

    job: str
    total: int  # of all workers
    share: tuple[int, int]
    rollouts: int  # of this worker
    counts: dict[str, int]  # by state
    created: float
    built: bool = False  # its environments are made
    building: str = ""  # what is being made of them
    ended: bool = False  # no rollout of this worker is left
    trouble: str = ""  # what is waited for: the server that is to answer does not
    failure: str = ""  # why it cannot go on: its environments cannot be made
    page: tuple[RolloutStatus, ...] = ()  # those that were asked for
    next: int | None = None  # what to ask for to go on


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a scaffold asks its model; `body` is what it sent."""

    id: str
    job: str
    rollout: str
    number: int
    attempt: int
    ordinal: int
    task: str
    policy: str
    endpoint: str  # "chat.completions" or "responses"
    body: dict[str, Any]
    digest: str  # sha256 of the canonical body
    asked: float
    deliveries: int = 1  # of this request, this one included


class RequestPage(msgspec.Struct, frozen=True):
    """What a long poll gives; each request is leased to its consumer."""

    requests: tuple[ModelRequest, ...]
    ended: bool = False  # no request will ever come again
    turn: int = 0  # the next poll says it as `got`: else what is in this page is given again


class AnswerBody(msgspec.Struct, frozen=True):
    """The answer to a request: a text, a message, a whole object of the call, or an error.

    `skerry.worker.model.answers` says what is filled in.
    """

    answer: Any


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """The answer is on record: nothing can replace it.

    `first` is false for the same one again; `needed` is false if nobody waits for it any more, since
    the attempt that asked was given up: then nothing is recorded.
    """

    id: str
    first: bool
    needed: bool = True


class LogPage(msgspec.Struct, frozen=True):
    """Lines of a job's record from a cursor on, and the next cursor."""

    lines: tuple[Line, ...]
    next: int
    ended: bool = False


class ResultPage(msgspec.Struct, frozen=True):
    """Rollouts that have ended, in the order in which they did, and the next cursor."""

    records: tuple[RolloutRecord, ...]
    next: int
    ended: bool = False


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """For whoever schedules GPUs: is there work for the model, and if not, when."""

    version: int  # changes when any of the counts does
    waiting: int  # requests that nobody holds
    leased: int  # requests that a consumer holds
    oldest_s: float  # how long the oldest of both has waited
    sandboxes_busy: int  # agents that work and wait for nothing
    verifying: int
    rollouts_waiting: int
    rollouts_running: int
    rollouts_ended: int
    next_request_s: float | None  # estimate; 0 if one waits, None if none will come
