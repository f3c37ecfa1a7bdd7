"""What comes back from a function call, and how its pools stand."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from skerry.errors import InvalidRequest
from skerry.spec import limits
from skerry.spec.device import DeviceClaim, DeviceUse
from skerry.spec.function import POOL_MAX, Environment, Isolation
from skerry.spec.function_limits import Limit

FETCHED_BYTES_MAX: Final = (
    32 * limits.MIB
)  # of files that are returned with a result; streamed: any
VALUE_BYTES_MAX: Final = 8 * limits.MIB  # as JSON
PREWARM_MAX_S: Final = 86_400.0


class CallUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a call, or a compiler, used. Times in seconds."""

    wall_s: float = 0.0
    cpu_s: float = 0.0  # of all its processes
    peak_memory_bytes: int = 0
    disk_bytes: int = 0  # in its files, when it ended
    queued_s: float = 0.0  # until it had a place


class CallError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A Python exception that ended a call: the name of its type, its text, where it came from."""

    type: str
    message: str = ""
    traceback: str = ""


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a program ended: exactly one of `exit_code`, `signal` and `start_error` is set.

    stdout and stderr are byte-exact, up to the limit; the totals count what came.
    """

    exit_code: int | None = None
    signal: int | None = None
    start_error: str | None = None  # e.g. "exec: No such file or directory: gcc"
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_total: int = 0
    stderr_total: int = 0
    limit: Limit | None = None  # that ended it
    usage: CallUsage = CallUsage()

    @property
    def ok(self) -> bool:
        """True if it ended by itself, with status 0."""
        return self.exit_code == 0 and self.limit is None

    @property
    def truncated(self) -> bool:
        """True if there was more output than is here."""
        return self.stdout_total > len(self.stdout) or self.stderr_total > len(self.stderr)

    @property
    def text(self) -> str:
        """stdout as UTF-8, undecodable bytes replaced."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def error_text(self) -> str:
        """stderr as UTF-8, undecodable bytes replaced."""
        return self.stderr.decode("utf-8", "replace")


class CallResult(Step, frozen=True, kw_only=True, omit_defaults=True):
    """How a call ended. If it failed to compile, only `compile` says how: it never ran.

    A Python call with an entry that returned has `returned`, its `value` and exit code 0. One that did
    not has `returned` False, and the `error` if an exception ended it; SystemExit is an exit code.
    """

    value: Any = None
    returned: bool | None = None  # None: there is no function that could
    error: CallError | None = None
    compile: Step | None = None
    files: dict[str, bytes] = {}  # that were asked for, by relative path
    left_out: dict[str, str] = {}  # that were asked for and are not here: why
    worker: str = ""  # the container that it ran in
    device: DeviceUse | None = None  # the one that it ran on

    def check(self) -> CallResult:
        """Returns itself if it is ok; raises CallFailed that says why it is not."""
        if not self.ok:
            raise CallFailed(self)
        return self

    @property
    def ok(self) -> bool:
        """True if it compiled, ended by itself with status 0, and returned if it was to return."""
        compiled = self.compile is None or self.compile.ok
        ended = self.exit_code == 0 and self.limit is None
        return compiled and ended and self.error is None and self.returned is not False


class CallFailed(Exception):
    """A call did not end well; `result` is all of it. Nobody's fault but the call's."""

    def __init__(self, result: CallResult) -> None:
        super().__init__(why_not(result))
        self.result = result


def why_not(result: CallResult) -> str:
    """Returns in one line why a call is not ok; "" if it is."""
    if result.compile is not None and not result.compile.ok:
        return f"it did not compile: {_end_of(result.compile)}"
    if result.error is not None and result.limit is None:
        return f"{result.error.type}: {result.error.message}"[:500]
    if result.returned is False and result.exit_code == 0 and result.limit is None:
        return "it exited before its function returned"
    return "" if result.ok else _end_of(result)


def _end_of(step: Step) -> str:
    if step.limit is not None:
        return f"it reached its limit of {step.limit}"
    if step.start_error is not None:
        return step.start_error
    if step.signal is not None:
        return f"it was ended by signal {step.signal}"
    return f"exit code {step.exit_code}"


class PoolInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pool: the containers of one environment. A cell is a place for one call at a time."""

    key: str
    environment: Environment
    isolation: Isolation = Isolation.PROCESS
    device: str | None = None  # that its containers see; only calls that hold it run there
    containers: int = 0  # that serve
    starting: int = 0
    cells: int = 0
    running: int = 0  # calls that run
    waiting: int = 0  # calls that wait for a place
    target: int = 0  # containers that recent demand asks for
    minimum: int = 0  # containers that are kept whatever the demand is
    maximum: int = 0
    calls: int = 0  # that were answered, since the pool is there
    failed: int = 0  # containers that were lost or did not start
    idle_s: float = 0.0  # since its last call
    last_error: str | None = None  # why a container did not start


class Prewarm(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Keeps containers of an environment ready. None: as it is. 0 containers: as demand asks again."""

    environment: Environment = Environment()
    isolation: Isolation = Isolation.PROCESS
    device: str | None = None  # on each device of that name; None: for calls without one
    minimum: int = 1  # containers
    maximum: int | None = None
    keep_s: float = 600.0  # how long the minimum holds

    def check(self) -> Prewarm:
        """Returns itself if every value is in bounds; raises InvalidRequest naming one that is not."""
        self.environment.check()
        if self.device is not None:
            DeviceClaim(name=self.device).check()
        if not 0 <= self.minimum <= POOL_MAX:
            raise InvalidRequest(f"minimum must be between 0 and {POOL_MAX}, not {self.minimum}")
        if self.maximum is not None and not max(1, self.minimum) <= self.maximum <= POOL_MAX:
            raise InvalidRequest(f"maximum must be between the minimum and {POOL_MAX}")
        limits.check_duration(self.keep_s, "keep", PREWARM_MAX_S)
        return self
