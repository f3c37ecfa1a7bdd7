"""A model that works with a bash tool, through any OpenAI-compatible endpoint."""

from __future__ import annotations

import json
import shlex

import msgspec

from skerry.errors import InvalidRequest
from skerry.worker.inside import program
from skerry.worker.policies.endpoint import Endpoint, recorder
from skerry.worker.session import Session

PORT = 4321  # inside, on loopback
SCAFFOLD = "/opt/skerry-agent/agent.py"
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


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one rollout, and what is sent with each request."""

    model: str = "default"
    turns: int = 50
    command_timeout_s: float = 60.0
    request_timeout_s: float = 300.0
    output_limit: int = 16_000
    request_options: dict[str, object] = {}


class Model:
    """The `--model URL` policy. The key is used by the worker and never enters a sandbox."""

    name = "model"

    def __init__(
        self, url: str, *, api_key: str | None = None, options: ModelOptions | None = None
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidRequest(f"{url!r} is no http address of an OpenAI-compatible endpoint")
        self._url = url
        self._api_key = api_key
        self._options = options or ModelOptions()

    def variant(self, task_index: int, rollout_index: int) -> str:
        """Returns the model's name."""
        del task_index, rollout_index
        return self._options.model

    async def act(self, session: Session, variant: str) -> None:
        """Lets the model work until it is done or out of turns; Unavailable if its server fails."""
        del variant
        options = self._options
        endpoint = Endpoint(
            self._url,
            self._api_key,
            recorder(session.record, session.output),
            requests_max=options.turns + 1,
            timeout_s=options.request_timeout_s,
        )
        await session.write(SCAFFOLD, program("agent").encode())
        async with (
            endpoint.serve(),
            session.forward(PORT, "127.0.0.1", endpoint.port),
        ):
            await session.run(
                [session.task.tests.interpreter, "-I", SCAFFOLD],
                stdin=json.dumps(self._settings(session, endpoint)).encode(),
                timeout=session.task.limits.act_timeout_s,
            )
        endpoint.check()

    def _settings(self, session: Session, endpoint: Endpoint) -> dict[str, object]:
        options, task = self._options, session.task
        return {
            "url": f"http://127.0.0.1:{PORT}{endpoint.path}",
            "model": options.model,
            "options": options.request_options,
            "system": SYSTEM,
            "prompt": PROMPT.format(
                package=task.package.name,
                version=task.package.bug.version,
                workdir=task.workdir,
                bug=task.bug,
                command=self._command(task.tests.argv, task.tests.env),
            ),
            "turns": options.turns,
            "seconds": task.limits.act_timeout_s * 0.95,
            "request_timeout_s": options.request_timeout_s * 3,
            "command_timeout_s": options.command_timeout_s,
            "output_limit": options.output_limit,
        }

    @staticmethod
    def _command(argv: tuple[str, ...], env: dict[str, str]) -> str:
        words = [f"{name}={shlex.quote(value)}" for name, value in env.items()]
        return " ".join([*words, shlex.join(argv)])
