"""What a command is, and what comes back from one."""

from __future__ import annotations

import msgspec

from skerry.errors import InvalidRequest
from skerry.spec import limits
from skerry.spec.sandbox import check_env
from skerry.spec.session import SCRIPT_BYTES_MAX, check_session_id


class Terminal(msgspec.Struct, frozen=True):
    """The size of a terminal."""

    rows: int = 24
    cols: int = 80


class CommandSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A command: `argv`, or one `shell` line given to `/bin/sh -c` (bash where the image has it)."""

    argv: tuple[str, ...] = ()
    shell: str | None = None
    env: dict[str, str] = {}
    cwd: str | None = None  # None: the sandbox's workdir, else the user's home
    user: str | None = None  # None: the sandbox's user; "name", "uid" or "uid:gid"
    stdin: bytes | None = None  # None: closed
    timeout_s: float | None = None
    no_output_timeout_s: float | None = None  # without a byte of output for that long it is ended
    output_limit: int = limits.OUTPUT_LIMIT_DEFAULT  # bytes kept a stream; half head, half tail
    terminal: Terminal | None = None
    interactive: bool = False  # stdin stays open and is fed over the stream
    merge_stderr: bool = False  # into stdout, in the order in which both were written
    session: str | None = None  # runs `shell` in this session; all of the above are the session's

    def check(self) -> CommandSpec:
        """Returns itself if every value is in bounds; raises InvalidRequest."""
        if bool(self.argv) == (self.shell is not None):
            raise InvalidRequest("give either argv or shell")
        if self.session is not None:
            self._check_in_session(self.session)
        words = self.argv if self.shell is None else (self.shell,)
        total = 0
        for word in words:
            if "\x00" in word:
                raise InvalidRequest("argv: a word holds a NUL")
            total += len(word.encode("utf-8", "surrogatepass")) + 6
        most = limits.ARGV_BYTES_MAX if self.session is None else SCRIPT_BYTES_MAX
        if total > most:
            raise InvalidRequest(f"argv: {total} bytes, at most {most}: write a file and run that")
        if self.argv and not self.argv[0]:
            raise InvalidRequest("argv: the program is empty")
        check_env(self.env, limits.ARGV_BYTES_MAX)
        for what, value in (("cwd", self.cwd), ("user", self.user)):
            if value is not None and (
                "\x00" in value or not 0 < len(value) <= limits.PATH_BYTES_MAX
            ):
                raise InvalidRequest(f"{what} is empty, too long or holds a NUL")
        if self.stdin is not None and len(self.stdin) > limits.STDIN_BYTES_MAX:
            raise InvalidRequest(
                f"stdin: at most {limits.STDIN_BYTES_MAX} bytes; write a file instead"
            )
        limits.check_duration(self.timeout_s, "timeout")
        limits.check_duration(self.no_output_timeout_s, "no_output_timeout")
        if not 0 <= self.output_limit <= limits.OUTPUT_LIMIT_MAX:
            raise InvalidRequest(f"output_limit: at most {limits.OUTPUT_LIMIT_MAX} bytes")
        return self

    def _check_in_session(self, session: str) -> None:
        """A session has its own environment, directory, user and input."""
        check_session_id(session)
        if self.shell is None:
            raise InvalidRequest("argv: a session runs shell lines")
        for what in ("env", "cwd", "user", "terminal", "interactive", "merge_stderr"):
            if getattr(self, what):
                raise InvalidRequest(f"{what}: cannot be given with session")
        if self.stdin is not None:
            raise InvalidRequest("stdin: cannot be given with session: use a heredoc or a file")


class RunResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a command ended. Exactly one of `exit_code`, `signal`, `start_error` is set.

    stdout and stderr are byte-exact; past the limit the middle is cut out, `truncated` is set and
    the totals count everything. With a terminal, or merged, all output is in stdout.
    """

    exit_code: int | None = None
    signal: int | None = None
    start_error: str | None = None  # e.g. "exec: No such file or directory: frobnicate"
    start_errno: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_total: int = 0
    stderr_total: int = 0
    truncated: bool = False
    timed_out: bool = False
    no_output: bool = False  # what timed out was its silence: `timed_out` is set too
    oom_killed: bool = False
    cancelled: bool = False
    session_reset: bool = False  # its session's shell was lost, here or since the command before
    started: float = 0.0  # seconds since the epoch
    ended: float = 0.0
    cpu_seconds: float = 0.0
    op_id: str = ""

    @property
    def ok(self) -> bool:
        """True if the command ran to its own end, with status 0."""
        return self.exit_code == 0 and not self.timed_out and not self.cancelled

    @property
    def text(self) -> str:
        """stdout as UTF-8, undecodable bytes replaced."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def error_text(self) -> str:
        """stderr as UTF-8, undecodable bytes replaced."""
        return self.stderr.decode("utf-8", "replace")
