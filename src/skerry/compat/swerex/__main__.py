"""`python -m skerry.compat.swerex`: serves one runtime of SWE-ReX until it is interrupted."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import sys
from typing import Any

from skerry import aio
from skerry.compat.options import CREATION, asked
from skerry.compat.serving import serve
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


async def _serve(options: dict[str, Any], host: str, port: int, token: str) -> None:
    wanted = asked(options, harness="swe-rex", labels={})
    async with aio.Client(**wanted.connection) as client:
        runtime = Runtime(client, wanted)
        try:
            sandbox = await runtime.sandbox()  # so that what is wrong with it is told now

            def told(address: str, number: int) -> None:
                where = {"host": f"http://{address}", "port": number, "auth_token": token}
                print(json.dumps(where | {"sandbox": sandbox.id}), flush=True)

            await serve(build_app(runtime, token), host, port, told)
        finally:
            await runtime.close()


if __name__ == "__main__":
    sys.exit(main())
