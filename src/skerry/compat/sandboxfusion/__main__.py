"""`python -m skerry.compat.sandboxfusion`: serves SandboxFusion's /run_code until it is interrupted."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import sys

from skerry import aio
from skerry.compat.sandboxfusion.app import build_app
from skerry.compat.sandboxfusion.languages import Defaults
from skerry.compat.serving import serve
from skerry.errors import SkerryError
from skerry.spec.function import CallSpec, Environment, PythonCall
from skerry.spec.limits import MIB

TOKEN = "SKERRY_FUSION_TOKEN"  # noqa: S105 - the variable's name
START_WAIT_S = 120.0


def main() -> int:
    """Returns 0 after an interrupt, 2 if it could not begin."""
    given = _parser().parse_args()
    try:
        defaults = Defaults(
            environment=Environment(
                image=given.image,
                layers=tuple(given.layer),
                modules=tuple(given.module),
                python=given.python,
            ).check(),
            memory_bytes=given.memory_mb * MIB,
            wait_s=given.wait,
            job=given.job or None,
        )
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_serve(given, defaults))
    except (SkerryError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m skerry.compat.sandboxfusion", description=__doc__
    )
    parser.add_argument("--image", default="debian:12", help="with the programs [debian:12]")
    parser.add_argument("--layer", action="append", default=[], help="on it; may be repeated")
    parser.add_argument(
        "--module",
        action="append",
        default=[],
        help="imported once, for Python programs; repeatable",
    )
    parser.add_argument("--python", default="python3", help="of the image [python3]")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen [127.0.0.1]")
    parser.add_argument("--port", type=int, default=8080, help="[8080]; 0: a free one")
    parser.add_argument(
        "--auth-token", default="", help=f"else {TOKEN}, else one is made up and printed"
    )
    parser.add_argument("--url", default="", help="of the node; else SKERRY_URL, or this machine's")
    parser.add_argument(
        "--memory-mb", type=int, default=1024, help="of requests that do not say [1024]"
    )
    parser.add_argument("--wait", type=float, default=8.0, help="seconds for a place [8]")
    parser.add_argument("--job", default="", help="whose calls they are: jobs are served in turn")
    return parser


async def _serve(given: argparse.Namespace, defaults: Defaults) -> None:
    token = given.auth_token or os.environ.get(TOKEN) or secrets.token_urlsafe(24)
    if not token.isascii() or "/" in token:
        raise ValueError("a token is a part of a path: ASCII, without '/'")
    async with aio.Client(**({"url": given.url} if given.url else {})) as client:
        # So that what is wrong is told now, and the first program finds a container.
        probe = CallSpec(
            kind=PythonCall(code="pass", entry=None),
            environment=defaults.environment,
            wait_s=START_WAIT_S,
        )
        seen = await client.functions.call(probe)
        if not seen.ok:
            raise ValueError(f"{given.image} runs no Python: {seen.start_error or seen.error_text}")

        def told(address: str, port: int) -> None:
            url = f"http://{address}:{port}/{token}"
            where = {"url": url, "host": address, "port": port, "auth_token": token}
            print(json.dumps(where), flush=True)

        await serve(build_app(client.functions.call, defaults, token), given.host, given.port, told)


if __name__ == "__main__":
    sys.exit(main())
