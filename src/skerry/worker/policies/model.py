"""A model that works with a bash tool, through any OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
from collections.abc import AsyncIterator

import msgspec

from skerry.errors import InvalidRequest, Unavailable
from skerry.worker.inside import program
from skerry.worker.policies.endpoint import Endpoint, recorder
from skerry.worker.session import Session

PORT = 4321  # inside, on loopback
OPEN_WITHIN_S = 30.0
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


@contextlib.asynccontextmanager
async def _open(session: Session, target_port: int) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(OPEN_WITHIN_S):
                await stack.enter_async_context(session.forward(PORT, "127.0.0.1", target_port))
        except (TimeoutError, ConnectionError) as error:
            why = str(error) or f"no answer within {OPEN_WITHIN_S:g} s"
            raise Unavailable(f"port {PORT} could not be opened inside: {why}") from error
        yield


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one rollout, and what is sent with each request."""

    model: str = "default"
    turns: int = 50
    command_timeout_s: float = 60.0
    request_timeout_s: float = 300.0
    output_limit: int = 16_000
    retry_pause_s: float = 1.0  # before the model's server is asked again; doubled then
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
            retry_pause_s=options.retry_pause_s,
        )
        await session.write(SCAFFOLD, program("agent").encode())
        async with endpoint.serve(), _open(session, endpoint.port):
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
