"""`skerry run` and `skerry exec`: one command, its streams, and its own exit status."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from skerry.cli.app import App
from skerry.cli.group import SkerryCommand
from skerry.cli.options import (
    argv_of,
    command_options,
    complete_sandbox,
    image_name,
    sandbox_options,
)
from skerry.errors import InvalidRequest

if TYPE_CHECKING:
    from skerry.aio import Client, RunResult, Sandbox

TERM = "xterm-256color"  # what the guest's terminal is unless --env TERM=... says otherwise


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command and how it is run."""

    argv: tuple[str, ...]
    interactive: bool = False
    tty: bool = False
    env: dict[str, str] | None = None
    user: str | None = None
    cwd: str | None = None
    timeout: float | None = None

    def keywords(self) -> dict[str, Any]:
        """Returns the SDK's keyword arguments."""
        env = dict(self.env or {})
        if self.tty:
            env.setdefault("TERM", TERM)
        return {"env": env, "user": self.user, "cwd": self.cwd, "timeout": self.timeout}


async def run_in(app: App, sandbox: Sandbox, command: Command) -> RunResult:
    """Runs the command with our streams as its own; leaving early ends it inside."""
    from skerry.cli import stdio

    terminal = stdio.terminal_size() if command.tty else None
    if command.interactive:
        return await _run_live(app, sandbox, command)
    output = stdio.Output()
    events = sandbox.stream(list(command.argv), terminal=terminal, **command.keywords())
    try:
        async for event in events:
            await output.show(event)
            if event.result is not None:
                return event.result
    finally:
        await close(events)
    raise AssertionError("a stream ends with its result or an error")


async def close(events: AsyncIterator[Any]) -> None:
    """Ends an iteration that may have been left early, so that its clean-up happens now."""
    aclose = getattr(events, "aclose", None)
    if aclose is not None:
        await aclose()


async def _run_live(app: App, sandbox: Sandbox, command: Command) -> RunResult:
    from skerry.cli import stdio

    terminal = stdio.terminal_size() if command.tty else None
    output = stdio.Output()
    async with contextlib.AsyncExitStack() as stack:
        live = await stack.enter_async_context(
            sandbox.attach(list(command.argv), terminal=terminal, **command.keywords())
        )
        if command.tty:
            stack.enter_context(stdio.raw_terminal(app))
            stack.enter_context(stdio.following_size(live))
        feeder = asyncio.create_task(stdio.feed(live, tty=command.tty))
        # It fails only with the connection, which the loop below reports.
        stack.callback(feeder.cancel)
        async for event in live:
            await output.show(event)
            if event.result is not None:
                return event.result
    raise AssertionError("a command ends with its result or an error")


async def run_for_json(app: App, sandbox: Sandbox, command: Command) -> RunResult:
    """Runs the command, collects its output, and prints the result as one object."""
    from skerry.cli import stdio
    from skerry.cli.loop import Lane
    from skerry.cli.plain import plain

    stdin = None
    if command.interactive:
        stdin = b"".join([chunk async for chunk in stdio.stdin_chunks(Lane())])
    result = await sandbox.run(list(command.argv), stdin=stdin, **command.keywords())
    app.emit({"sandbox": sandbox.id, **plain(result)})
    return result


async def finish(app: App, sandbox: Sandbox, command: Command) -> int:
    """Runs the command as asked for and returns the exit status."""
    from skerry.cli.stdio import status_of

    if app.as_json:
        result = await run_for_json(app, sandbox, command)
        return status_of(result, lambda _: None)
    result = await run_in(app, sandbox, command)
    status = status_of(result, app.warn)
    if result.start_error and " " in command.argv[0]:
        app.note("  to run a shell line, write: -- sh -c 'LINE'")
    return status


@contextlib.asynccontextmanager
async def new_sandbox(client: Client, *, keep: bool = False, **spec: Any) -> AsyncIterator[Sandbox]:
    """A sandbox for a block; with `keep` it stays."""
    sandbox = await client.sandboxes.create(detached=keep, **spec)
    try:
        yield sandbox
    finally:
        if not keep:
            await sandbox.destroy()


def check_terminal(app: App, tty: bool) -> None:
    """Raises InvalidRequest if a terminal is asked for where there can be none."""
    if tty and app.as_json:
        raise InvalidRequest("-t and --json do not go together: a terminal has one stream for all")


@click.command(cls=SkerryCommand, carries_status=True, takes_command=True)
@click.argument("image")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@sandbox_options
@command_options
@click.option("--keep", is_flag=True, help="Keep the sandbox; its id is printed on stderr.")
@click.pass_obj
def run(
    app: App,
    /,
    *,
    image: str,
    command: tuple[str, ...],
    keep: bool,
    interactive: bool,
    tty: bool,
    env: tuple[tuple[str, str], ...],
    user: str | None,
    workdir: str | None,
    timeout: float | None,
    labels: tuple[tuple[str, str], ...],
    **limits: Any,
) -> int:
    """Run one command in a new sandbox, which is then removed.

    IMAGE is a base like debian:12, or `default`. The exit status is the command's own, 128 + the
    signal that ended it, 124 after --timeout, 127 if there is no such program, 126 if it cannot be
    started, 125 for an error of Skerry's own.

    \b
    skerry run default -- python3 -c 'print(6*7)'
    tar c . | skerry run -i debian:12 -- tar t
    """  # noqa: D301 - \b tells click to keep the lines
    check_terminal(app, tty)
    wanted = Command(argv=argv_of(command), interactive=interactive, tty=tty, timeout=timeout)
    spec: dict[str, Any] = {**limits, "image": image_name(image)}
    spec |= {"env": dict(env), "labels": dict(labels)}
    spec |= {name: value for name, value in (("user", user), ("workdir", workdir)) if value}

    async def work() -> int:
        async with app.client() as client, new_sandbox(client, keep=keep, **spec) as sandbox:
            if keep:
                app.note(f"sandbox {sandbox.id}")
            return await finish(app, sandbox, wanted)

    return app.wait_for(work)


@click.command("exec", cls=SkerryCommand, carries_status=True, takes_command=True)
@click.argument("sandbox_id", metavar="ID", shell_complete=complete_sandbox)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@command_options
@click.pass_obj
def exec_(
    app: App,
    /,
    *,
    sandbox_id: str,
    command: tuple[str, ...],
    interactive: bool,
    tty: bool,
    env: tuple[tuple[str, str], ...],
    user: str | None,
    workdir: str | None,
    timeout: float | None,
) -> int:
    """Run a command in a live sandbox. The exit status is as in `skerry run`."""
    check_terminal(app, tty)
    wanted = Command(
        argv=argv_of(command),
        interactive=interactive,
        tty=tty,
        env=dict(env),
        user=user,
        cwd=workdir,
        timeout=timeout,
    )

    async def work() -> int:
        async with app.client() as client:
            return await finish(app, await client.sandboxes.get(sandbox_id), wanted)

    return app.wait_for(work)
