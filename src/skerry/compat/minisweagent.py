"""An environment for mini-swe-agent, by its dotted path: each has a sandbox of its own.

    environment:
      environment_class: skerry.compat.minisweagent.SkerryEnvironment
      image: debian:12
      layers: [workspace/repository]
      cwd: /testbed

It behaves as mini-swe-agent's own environments do: stdout and stderr are one text, a command that times
out has the return code -1 and an `exception_info`, and the first line
COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT of a command that succeeds submits the lines below it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from typing import Any

from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel, ConfigDict, Field

import skerry
from skerry.compat.options import CONNECTION, CREATION, asked, refuse_unknown
from skerry.compat.outcome import exit_status, remarks, shown
from skerry.errors import InvalidRequest, SkerryError
from skerry.spec.command import RunResult
from skerry.spec.limits import MIB

SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
FAILED = -1  # as mini-swe-agent's own environments say it
BEGIN_TIMEOUT_S = 60.0
_UNAME = {"s": "system", "n": "node", "r": "release", "v": "version", "m": "machine"}


class SkerryEnvironmentConfig(BaseModel):
    """What a configuration may say of it; further names are those of `skerry.SandboxOptions`.

    The token is never written into a trajectory; better leave it to SKERRY_TOKEN.
    """

    model_config = ConfigDict(extra="allow")

    image: str = "debian:12"
    cwd: str = "/"
    """Where commands run."""
    env: dict[str, str] = {}
    """Variables of every command."""
    forward_env: list[str] = []
    """Names of variables of this process that commands get too, if they are set here; `env` wins."""
    timeout: float = Field(default=30, gt=0)
    """Seconds of a command."""
    interpreter: list[str] = []
    """What a command is an argument of, for instance ["bash", "-lc"]; without it, bash as it is."""
    output_limit: int = Field(default=4 * MIB, ge=1000)
    """Bytes of output that are kept of a command; the middle is cut out, and a line says so."""
    token: str | None = Field(default=None, exclude=True, repr=False)


_OWN = frozenset(SkerryEnvironmentConfig.model_fields)


class SkerryEnvironment:
    """A sandbox for one agent; `cleanup`, the end of the object and that of the program end it.

    A fault of the platform, or a sandbox that is gone, is raised and ends the run; its exit status is
    the error's name (`Unavailable`, ...), nothing is submitted, and it is no output of a command.
    """

    def __init__(self, *, config_class: type = SkerryEnvironmentConfig, **kwargs: Any) -> None:
        """Makes the sandbox. Raises what `create` raises, and InvalidRequest for an unknown option.

        So it does for a `cwd`, an interpreter or a user that the image has not: a model could only
        stumble over that, command after command.
        """
        refuse_unknown(kwargs, _OWN | CONNECTION | CREATION)
        self.config = config_class(**kwargs)
        options = {name: value for name, value in kwargs.items() if name not in _OWN - {"token"}}
        options["image"] = self.config.image
        variables = {
            name: os.environ[name] for name in self.config.forward_env if name in os.environ
        }
        options["env"] = variables | self.config.env
        self._held = _Held(options)
        self._finalizer = weakref.finalize(self, self._held.close)
        try:
            self._uname = self._begin()
        except BaseException:
            self.cleanup()
            raise

    @property
    def sandbox(self) -> skerry.Sandbox:
        """The sandbox, for what mini-swe-agent has no word for: files, commits, forks."""
        return self._held.sandbox

    def _begin(self) -> dict[str, str]:
        """Returns what the sandbox says of its system; InvalidRequest if no command can run in it."""
        said = self._tried(f"for f in {' '.join(_UNAME)}; do uname -$f; done").text
        if self.config.interpreter:
            self._tried([*self.config.interpreter, ""])
        return dict(zip(_UNAME.values(), said.splitlines(), strict=False))

    def _tried(self, line: str | list[str]) -> RunResult:
        result = self.sandbox.run(line, cwd=self.config.cwd, timeout=BEGIN_TIMEOUT_S)
        if result.start_error is not None:
            raise InvalidRequest(
                f"no command can run in the sandbox: {result.start_error}. Check cwd, interpreter, "
                f"user, and that image and layers have them (cwd: {self.config.cwd})"
            )
        return result

    def execute(
        self, action: dict[str, Any], cwd: str = "", *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Runs the command of an action; Submitted, a Skerry error as the class says."""
        command = action.get("command", "")
        limit = timeout or self.config.timeout
        line = [*self.config.interpreter, command] if self.config.interpreter else command
        try:
            result = self.sandbox.run(
                line,
                cwd=cwd or self.config.cwd,
                timeout=limit,
                merge_stderr=True,
                output_limit=self.config.output_limit,
            )
        except InvalidRequest as error:  # the agent wrote what no command can be
            output = _not_run("", "InvalidRequest", str(error))
        else:
            output = self._output_of(result, limit)
        self._check_finished(output)
        return output

    def _output_of(self, result: RunResult, limit: float) -> dict[str, Any]:
        text = shown(result, self.config.output_limit)
        if result.timed_out:
            return _not_run(
                text, "TimeoutExpired", f"the command timed out after {limit:g} seconds"
            )
        if result.start_error is not None:
            return _not_run(text, "OSError", result.start_error)
        if said := remarks(result, limit):
            text += f"\n{said}" if text and not text.endswith("\n") else said
        return {"output": text, "returncode": exit_status(result), "exception_info": ""}

    def _check_finished(self, output: dict[str, Any]) -> None:
        lines = output["output"].lstrip().splitlines(keepends=True)
        if lines and lines[0].strip() == SUBMIT and output["returncode"] == 0:
            submission = "".join(lines[1:])
            extra = {"exit_status": "Submitted", "submission": submission}
            raise Submitted({"role": "exit", "content": submission, "extra": extra})

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """Returns the configuration, what the sandbox says of its system, and `kwargs`."""
        merged: dict[str, Any] = recursive_merge(self.config.model_dump(), self._uname, kwargs)
        return merged

    def serialize(self) -> dict[str, Any]:
        """Returns what a trajectory says of it, with the id of its sandbox and without a token."""
        place = type(self)
        config = {
            "environment": self.config.model_dump(mode="json"),
            "environment_type": f"{place.__module__}.{place.__name__}",
        }
        return {"info": {"config": config, "sandbox": self._held.id}}

    def cleanup(self) -> None:
        """Ends the sandbox; may be called twice."""
        self._finalizer()


class _Held:
    """The client and the sandbox, which end together: early, with their environment, or at exit."""

    def __init__(self, options: dict[str, Any]) -> None:
        connection, creation = asked(options, harness="mini-swe-agent", labels={})
        self._client = skerry.connect(**connection)
        try:
            self.sandbox = self._client.sandboxes.create(**creation)
        except BaseException:
            self._client.close()
            raise
        self.id = self.sandbox.id
        # After the client's own, so before it: what is registered last is done first.
        atexit.register(self.close)

    def close(self) -> None:
        """Ends both; may be called twice. A node that is away ends the sandbox by itself, when idle."""
        atexit.unregister(self.close)
        try:
            with contextlib.suppress(SkerryError, RuntimeError):
                self.sandbox.destroy()
        finally:
            self._client.close()


def _not_run(output: str, kind: str, why: str) -> dict[str, Any]:
    """Returns an output as mini-swe-agent has it for what did not come to its own end."""
    return {
        "output": output,
        "returncode": FAILED,
        "exception_info": f"An error occurred while executing the command: {why}",
        "extra": {"exception_type": kind, "exception": why},
    }
