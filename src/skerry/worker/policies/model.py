"""Agents that ask a model: the bash-tool agent that comes with Skerry, and any command as scaffold."""

from __future__ import annotations

import json
import shlex
from typing import Any

from skerry.errors import Bug
from skerry.spec.limits import TIMEOUT_MAX_S
from skerry.spec.task import TaskSpec
from skerry.spec.worker import ModelSettings, Scaffold
from skerry.worker.inside import program
from skerry.worker.session import Access, CannotStart, Needs, Session

PORT = 4321  # inside, on loopback
AGENT = "/opt/skerry-agent/agent.py"
SYSTEM = (
    "You are a software engineer. You work in a sandbox without network through the bash tool; "
    "each call starts a new shell in the repository. When you are done, answer without calling the "
    "tool."
)
PROMPT = """\
The repository of the Python package {package} {version} is in {workdir}. It has this bug:

{bug}
Fix it in the package's source. Hidden tests decide. They run on your source files in a fresh copy
of the repository: changes to tests, to test or packaging configuration, and outside {workdir} do
not count, and trying to influence the grading that way makes the attempt void. Do not install
anything. The tests that are there run with: {command}
"""


def prompt_of(task: TaskSpec) -> str:
    """Returns what an agent is told of a task."""
    words = [f"{name}={shlex.quote(value)}" for name, value in task.tests.env.items()]
    return PROMPT.format(
        package=task.package.name,
        version=task.package.bug.version,
        workdir=task.workdir,
        bug=task.bug,
        command=" ".join([*words, shlex.join(task.tests.argv)]),
    )


def _access(session: Session) -> Access:
    if session.access is None:
        raise Bug("the agent was given no model")
    return session.access


class Model:
    """The bash-tool agent: it runs what the model asks for until that asks for nothing."""

    name = "model"

    def __init__(self, settings: ModelSettings | None = None) -> None:
        self._settings = settings or ModelSettings()
        self.needs = Needs(port=PORT)

    def variant(self, task_index: int, rollout_index: int) -> str:
        """Returns the model's name."""
        del task_index, rollout_index
        return self._settings.model

    async def act(self, session: Session, variant: str) -> None:
        """Lets the model work until it is done or out of turns."""
        del variant
        await session.write(AGENT, program("agent").encode(), deed=False)
        result = await session.run(
            [session.task.tests.interpreter, "-I", AGENT],
            stdin=json.dumps(self._told(session)).encode(),
            timeout=None,  # the worker's clock, which stands still while the model is waited for
            deed=False,
        )
        if result.start_error:
            raise CannotStart(f"the agent could not start: {result.start_error}")

    def _told(self, session: Session) -> dict[str, Any]:
        settings, access = self._settings, _access(session)
        return {
            "url": access.base_url,
            "api_key": access.token,
            "model": settings.model,
            "options": settings.request_options,
            "system": SYSTEM,
            "prompt": prompt_of(session.task),
            "turns": settings.turns,
            "seconds": TIMEOUT_MAX_S,
            "request_timeout_s": TIMEOUT_MAX_S,
            "command_timeout_s": settings.command_timeout_s,
            "output_limit": settings.output_limit,
        }


class Command:
    """Any command as the agent. Its exit status decides nothing."""

    def __init__(self, scaffold: Scaffold) -> None:
        self._scaffold = scaffold
        self.name = scaffold.name
        self.needs = Needs(layers=scaffold.layers, port=scaffold.port)

    def variant(self, task_index: int, rollout_index: int) -> str:
        """Returns no variant."""
        del task_index, rollout_index
        return ""

    async def act(self, session: Session, variant: str) -> None:
        """Runs the scaffold to its end; CannotStart if it is not there."""
        del variant
        scaffold, access, task = self._scaffold, _access(session), session.task
        told = {
            "rollout": session.rollout,
            "task": task.id,
            "title": task.title,
            "bug": task.bug,
            "package": task.package.name,
            "version": task.package.bug.version,
            "workdir": task.workdir,
            "prompt": prompt_of(task),
        }
        given = {"OPENAI_BASE_URL": access.base_url, "OPENAI_API_KEY": access.token}
        result = await session.run(
            scaffold.argv,
            stdin=json.dumps(told).encode(),
            env={**scaffold.env, **given, "SKERRY_ROLLOUT": session.rollout},
            cwd=scaffold.cwd,
            user=scaffold.user,
            timeout=None,
            deed=False,
        )
        if result.start_error:
            raise CannotStart(f"the scaffold could not start: {result.start_error}")
