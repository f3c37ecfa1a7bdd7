"""`skerry ps`, `attach`, `kill`: the commands of a sandbox while they run."""

from __future__ import annotations

import signal as signals
import time
from typing import TYPE_CHECKING

import click

from skerry.cli.app import App
from skerry.cli.group import SkerryCommand
from skerry.cli.options import complete_sandbox
from skerry.cli.terminal import DETACH_KEYS, DetachKeys, join
from skerry.cli.words import age, size
from skerry.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from skerry.aio import CommandHandle, Sandbox

SHORT_ID = 12


async def find(sandbox: Sandbox, op: str) -> CommandHandle:
    """Returns the command whose id begins like that; NotFound unless there is exactly one."""
    matches = [item.op_id for item in await sandbox.ops() if item.op_id.startswith(op)]
    if len(matches) != 1:
        what = "is no operation" if not matches else f"begins {len(matches)} operations"
        raise NotFound(f"{op!r} {what} of {sandbox.id}", hint=f"see `skerry ps -a {sandbox.id}`")
    return await sandbox.command(matches[0])


@click.command(cls=SkerryCommand)
@click.argument("sandbox_id", metavar="ID", shell_complete=complete_sandbox)
@click.option("-a", "--all", "ended_too", is_flag=True, help="Ended ones too.")
@click.pass_obj
def ps(app: App, /, *, sandbox_id: str, ended_too: bool) -> None:
    """List the commands that run in a sandbox."""

    async def work() -> None:
        async with app.client() as client:
            found = await (await client.sandboxes.get(sandbox_id)).ops()
            shown = [one for one in found if ended_too or one.state == "running"]
            if app.as_json:
                for one in shown:
                    app.emit(one)
                return
            rows = [
                (
                    one.op_id[:SHORT_ID],
                    one.state,
                    age(time.time() - one.started),
                    size(one.stdout_total + one.stderr_total) if one.state == "running" else "",
                    one.holder or ("terminal" if one.terminal else ""),
                    one.command,
                )
                for one in shown
            ]
            app.table(("OP", "STATE", ">AGE", ">OUTPUT", "TERMINAL", "COMMAND"), rows)

    app.wait_for(work)


@click.command(cls=SkerryCommand, carries_status=True)
@click.argument("sandbox_id", metavar="ID", shell_complete=complete_sandbox)
@click.argument("op")
@click.option("--takeover", is_flag=True, help="Take the terminal from who has it.")
@click.option("--watch", is_flag=True, help="Only look: nothing that you type goes inside.")
@click.option(
    "--detach-keys", default=DETACH_KEYS, show_default=True, metavar="KEYS", help="What leaves it."
)
@click.pass_obj
def attach(
    app: App, /, *, sandbox_id: str, op: str, takeover: bool, watch: bool, detach_keys: str
) -> int:
    """Join a command that runs: its terminal, or its input and output.

    OP is its id or the beginning of one (`skerry ps`). The command goes on when you leave. The exit
    status is the command's; 0 when you left before its end.
    """
    from skerry.cli.stdio import status_of

    if app.as_json:
        raise InvalidRequest("attach and --json do not go together; see `skerry logs --json`")

    async def work() -> int:
        keys = DetachKeys(detach_keys)
        async with app.client() as client:
            command = await find(await client.sandboxes.get(sandbox_id), op)
            only_look = watch or not command.status.interactive
            result = await join(app, command, keys=keys, takeover=takeover, watch=only_look)
            if result is None:
                say_left(app, sandbox_id, command)
                return 0
            return status_of(result, app.warn)

    return app.wait_for(work)


def say_left(app: App, sandbox_id: str, command: CommandHandle) -> None:
    """Says how to come back to a command that was left."""
    app.note(f"left; it runs on: skerry attach {sandbox_id} {command.op_id[:SHORT_ID]}")


@click.command(cls=SkerryCommand)
@click.argument("sandbox_id", metavar="ID", shell_complete=complete_sandbox)
@click.argument("op")
@click.option("-s", "--signal", "name", metavar="SIGNAL", help="Send this (TERM, 15) to all of it.")
@click.pass_obj
def kill(app: App, /, *, sandbox_id: str, op: str, name: str | None) -> None:
    """End a command with all its processes, or send them a signal.

    Without -s it is killed for certain, and this returns when it has ended.
    """
    number = None if name is None else signal_number(name)

    async def work() -> None:
        async with app.client() as client:
            command = await find(await client.sandboxes.get(sandbox_id), op)
            if number is not None:
                await command.signal(number)
                return
            await command.kill()
            await command.wait()

    app.wait_for(work)


def signal_number(name: str) -> int:
    """Returns the number of a signal named TERM, SIGTERM or 15; InvalidRequest if it is none."""
    if name.isdecimal() and 1 <= int(name) <= 64:
        return int(name)
    full = name.upper() if name.upper().startswith("SIG") else f"SIG{name.upper()}"
    if full not in signals.Signals.__members__:
        raise InvalidRequest(f"{name!r} is no signal")
    return int(signals.Signals[full])
