"""`python -m skerry.compat.swerex`: serves one runtime of SWE-ReX until it is interrupted."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
from collections.abc import Iterator
from typing import Any

import uvicorn

from skerry import aio
from skerry.compat.options import CREATION, asked
from skerry.compat.swerex.app import build_app
from skerry.compat.swerex.runtime import Runtime
from skerry.errors import SkerryError


def main() -> int:
    """Returns 0 after an interrupt, 2 if it could not begin."""
    given = _parser().parse_args()
    token = given.auth_token or os.environ.get("SWEREX_AUTH_TOKEN") or secrets.token_urlsafe(24)
    try:
        options = dict(_option(text) for text in given.option)
        options |= {"image": given.image} | ({"url": given.url} if given.url else {})
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_serve(options, given.host, given.port, token))
    except (SkerryError, ValueError, TypeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m skerry.compat.swerex", description=__doc__)
    parser.add_argument("--image", default="debian:12", help="of the sandbox [debian:12]")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen [127.0.0.1]")
    parser.add_argument("--port", type=int, default=8000, help="[8000]; 0: a free one")
    parser.add_argument(
        "--auth-token", default="", help="else SWEREX_AUTH_TOKEN, else one is made up and printed"
    )
    parser.add_argument("--url", default="", help="of the node; else SKERRY_URL, or this machine's")
    parser.add_argument(
        "-o", "--option", action="append", default=[], metavar="NAME=VALUE",
        help='of the sandbox, for instance memory=4GiB or network=["pypi"]: JSON, or a text; '
        f"{', '.join(sorted(CREATION))}",
    )  # fmt: skip
    return parser


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"-o {text}: write NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


class _Server(uvicorn.Server):
    """uvicorn would end the program by the signal, before the sandbox has ended."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ends the serving, and nothing else, at an interrupt or TERM."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._leave)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _leave(self) -> None:
        self.force_exit = self.should_exit  # the second time without waiting for requests
        self.should_exit = True


async def _serve(options: dict[str, Any], host: str, port: int, token: str) -> None:
    wanted = asked(options, harness="swe-rex", labels={})
    async with aio.Client(**wanted.connection) as client:
        runtime = Runtime(client, wanted)
        server = _Server(
            uvicorn.Config(build_app(runtime, token), host=host, port=port, log_level="warning")
        )
        try:
            sandbox = await runtime.sandbox()  # so that what is wrong with it is told now
            serving = asyncio.create_task(server.serve())
            while not server.started and not serving.done():  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
            if not serving.done():
                where = server.servers[0].sockets[0].getsockname()
                told = {"host": f"http://{where[0]}", "port": where[1], "auth_token": token}
                print(json.dumps(told | {"sandbox": sandbox.id}), flush=True)
            await serving
        finally:
            await runtime.close()


if __name__ == "__main__":
    sys.exit(main())
