"""`skerry shell`: a terminal in a sandbox."""

from __future__ import annotations

from typing import Any

import click

from skerry.cli.app import App
from skerry.cli.group import SkerryCommand
from skerry.cli.options import complete_sandbox, pair, sandbox_options, source
from skerry.cli.run import Command, check_terminal, finish, new_sandbox
from skerry.cli.terminal import DETACH_KEYS
from skerry.errors import InvalidRequest

# bash where the image has it; a failed exec would end a shell, so it is looked up first.
LOGIN = ("/bin/sh", "-c", "command -v bash >/dev/null && exec bash -l; exec sh -l")


@click.command(cls=SkerryCommand, carries_status=True)
@click.argument("sandbox_id", metavar="[ID]", required=False, shell_complete=complete_sandbox)
@click.option(
    "--image",
    metavar="IMAGE",
    help="Make a new sandbox of this image (or --restore), removed when the shell ends.",
)
@sandbox_options
@click.option(
    "-e", "--env", type=pair, multiple=True, metavar="NAME=VALUE", help="Environment variable."
)
@click.option("-u", "--user", metavar="USER", help="User inside: name, uid or uid:gid.")
@click.option("-w", "--workdir", metavar="DIR", help="Directory inside.")
@click.option(
    "--detach-keys", default=DETACH_KEYS, show_default=True, metavar="KEYS", help="What leaves it."
)
@click.pass_obj
def shell(
    app: App,
    /,
    *,
    sandbox_id: str | None,
    image: str | None,
    env: tuple[tuple[str, str], ...],
    user: str | None,
    workdir: str | None,
    detach_keys: str,
    labels: tuple[tuple[str, str], ...],
    network: tuple[tuple[str, ...], ...],
    restore: str | None,
    **limits: Any,
) -> int:
    """Open a terminal in a live sandbox, or with --image or --restore in a new one.

    Every key goes to the shell inside, Ctrl-C too; `exit` or Ctrl-D ends it. The exit status is the
    shell's. In a live sandbox, the detach keys leave it running: `skerry attach` comes back to it.
    """
    check_terminal(app, tty=True)
    if sum(one is not None for one in (sandbox_id, image, restore)) != 1:
        raise InvalidRequest("give a sandbox's id, or --image or --restore for a new one")
    wanted = Command(
        argv=LOGIN,
        interactive=True,
        tty=True,
        env=dict(env),
        user=user,
        cwd=workdir,
        detach_keys=detach_keys,
    )

    async def work() -> int:
        async with app.client() as client:
            if sandbox_id is not None:
                return await finish(app, await client.sandboxes.get(sandbox_id), wanted)
            spec = {**limits, **source(image, restore), "labels": dict(labels)}
            spec["network"] = sum(network, ())
            async with new_sandbox(client, **spec) as sandbox:
                return await finish(app, sandbox, wanted)

    return app.wait_for(work)
