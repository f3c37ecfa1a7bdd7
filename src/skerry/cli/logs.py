"""`skerry logs`: the commands that a sandbox has had, and what was recorded of their output."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from skerry.cli.app import App
from skerry.cli.group import SkerryCommand
from skerry.cli.ops import find
from skerry.cli.options import complete_sandbox
from skerry.cli.words import age

if TYPE_CHECKING:
    from skerry.aio import CommandHandle, RunResult, Sandbox
    from skerry.wire.http import OpStatus

WAIT_S = 30.0  # a follower asks again after this long
POLL_S = 0.5  # and looks for new commands this often


@click.command(cls=SkerryCommand)
@click.argument("sandbox_id", metavar="ID", shell_complete=complete_sandbox)
@click.argument("op", required=False)
@click.option("-f", "--follow", is_flag=True, help="Show running commands live, and new ones.")
@click.pass_obj
def logs(app: App, /, *, sandbox_id: str, op: str | None, follow: bool) -> None:
    """Show a sandbox's commands and their recorded output.

    With OP (an operation's id, or the beginning of one) only that one's output, on stdout and stderr
    as the command wrote it.
    """

    async def work() -> None:
        async with app.client() as client:
            sandbox = await client.sandboxes.get(sandbox_id)
            if op is not None:
                await _one(app, sandbox, op, follow=follow)
            else:
                await _all(app, sandbox, follow=follow)

    app.wait_for(work)


async def _one(app: App, sandbox: Sandbox, op: str, *, follow: bool) -> None:
    command = await find(sandbox, op)
    if follow and not app.as_json:
        await _show_live(command)
        return
    status = await _ended(sandbox, command.op_id) if follow else command.status
    if app.as_json:
        app.emit(status)
    elif status.error is not None:
        raise status.error.to_error()
    elif status.result is not None:
        _show_output(status.result)
    else:
        app.note(f"it still runs, since {age(time.time() - status.started)}; -f shows it live")


async def _show_live(command: CommandHandle) -> None:
    """Shows a command's output as it comes; we slow nobody: what we cannot keep up with is left out."""
    from skerry.cli.run import close
    from skerry.cli.stdio import Output

    output = Output()
    events = command.output(pace=False)
    try:
        async for event in events:
            await output.show(event)
    finally:
        await close(events)


async def _ended(sandbox: Sandbox, op_id: str) -> OpStatus:
    while True:
        status = await sandbox.op(op_id, wait=WAIT_S)
        if status.state != "running":
            return status


async def _all(app: App, sandbox: Sandbox, *, follow: bool) -> None:
    import asyncio

    shown: set[str] = set()
    while True:
        for item in await sandbox.ops():
            if item.op_id not in shown:
                shown.add(item.op_id)
                if follow and not app.as_json:
                    _show_head(app, item)
                    await _show_live(await sandbox.command(item.op_id))
                    continue
                status = await (_ended(sandbox, item.op_id) if follow else sandbox.op(item.op_id))
                if app.as_json:
                    app.emit(status)
                else:
                    _show_operation(app, status)
        if not follow:
            break
        await asyncio.sleep(POLL_S)
    if not shown:
        app.note("no commands yet")


def _show_head(app: App, status: OpStatus) -> None:
    app.line(click.style(f"# {status.op_id}  {_outcome(status)}  {status.command}", dim=True))


def _show_operation(app: App, status: OpStatus) -> None:
    _show_head(app, status)
    if status.result is not None:
        _show_output(status.result)


def _outcome(status: OpStatus) -> str:
    result = status.result
    if status.error is not None:
        return f"lost: {status.error.message}"
    if result is None and status.state != "running":
        return status.state
    if result is None:
        return f"running for {age(time.time() - status.started)}"
    took = f"{max(0.0, result.ended - result.started):.2f} s"
    if result.start_error is not None:
        return f"not started: {result.start_error}"
    if result.timed_out:
        return f"timed out, {took}"
    if result.oom_killed:
        return f"out of memory, {took}"
    if result.signal is not None:
        return f"{'cancelled' if result.cancelled else f'signal {result.signal}'}, {took}"
    return f"exit {result.exit_code}, {took}"


def _show_output(result: RunResult) -> None:
    from skerry.cli.stdio import write_all

    for stream, data in (("stdout", result.stdout), ("stderr", result.stderr)):
        if data:
            write_all(stream, data)
