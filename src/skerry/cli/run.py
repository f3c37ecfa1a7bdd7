"""`skerry run` and `skerry exec`: one command, its streams, and its own exit status."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
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
    sandbox_options,
    source,
)
from skerry.cli.terminal import DETACH_KEYS, DetachKeys, join
from skerry.errors import InvalidRequest, SkerryError

if TYPE_CHECKING:
    from skerry.aio import Client, RunResult, Sandbox

KILL_WITHIN_S = 5.0
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
    no_output_timeout: float | None = None
    detach_keys: str = DETACH_KEYS

    def keywords(self) -> dict[str, Any]:
        """Returns the SDK's keyword arguments."""
        env = dict(self.env or {})
        if self.tty:
            env.setdefault("TERM", TERM)
        return {
            "env": env,
            "user": self.user,
            "cwd": self.cwd,
            "timeout": self.timeout,
            "no_output_timeout": self.no_output_timeout,
        }


async def run_in(app: App, sandbox: Sandbox, command: Command) -> RunResult | None:
    """Runs the command with our streams as its own; leaving early ends it inside.

    None if it is a terminal's, and was left with the keys for that.
    """
    from skerry.cli import stdio

    terminal = stdio.terminal_size() if command.tty else None
    if command.interactive and command.tty:
        return await _run_terminal(app, sandbox, command)
    if command.interactive:
        return await _run_live(sandbox, command)
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


async def _run_live(sandbox: Sandbox, command: Command) -> RunResult:
    from skerry.cli import stdio

    async with sandbox.attach(list(command.argv), **command.keywords()) as live:
        feeder = asyncio.create_task(stdio.feed(live))
        try:
            return await stdio.show_all(live)
        finally:
            feeder.cancel()  # it fails only with the connection, which was reported


async def _run_terminal(app: App, sandbox: Sandbox, command: Command) -> RunResult | None:
    from skerry.cli import stdio
    from skerry.cli.ops import say_left

    keys = DetachKeys(command.detach_keys)
    started = await sandbox.start(
        list(command.argv),
        terminal=stdio.terminal_size(),
        interactive=True,
        **command.keywords(),
    )
    if started.status.result is not None:
        return started.status.result
    try:
        result = await join(app, started, keys=keys)
    except BaseException:
        with contextlib.suppress(SkerryError, TimeoutError):
            async with asyncio.timeout(KILL_WITHIN_S):
                await started.kill()
        raise
    if result is None:
        say_left(app, sandbox.id, started)
    return result


async def run_for_json(app: App, sandbox: Sandbox, command: Command) -> RunResult:
    """Runs the command, collects its output, and prints the result as one object."""
    from skerry.cli import stdio
    from skerry.cli.jsonable import jsonable
    from skerry.cli.loop import Lane

    stdin = None
    if command.interactive:
        stdin = b"".join([chunk async for chunk in stdio.stdin_chunks(Lane())])
    result = await sandbox.run(list(command.argv), stdin=stdin, **command.keywords())
    app.emit({"sandbox": sandbox.id, **jsonable(result)})
    return result


async def finish(app: App, sandbox: Sandbox, command: Command) -> int:
    """Runs the command as asked for and returns the exit status."""
    from skerry.cli.stdio import status_of

    if app.as_json:
        return status_of(await run_for_json(app, sandbox, command), lambda _: None)
    result = await run_in(app, sandbox, command)
    if result is None:  # left with the keys for that
        return 0
    status = status_of(result, app.warn)
    if result.start_error and " " in command.argv[0]:
        app.note("  to run a shell line, write: -- sh -c 'LINE'")
    return status


async def detached(app: App, sandbox: Sandbox, command: Command) -> int:
    """Starts the command in the background and prints its id; the status says whether it started."""
    from skerry.cli import stdio

    started = await sandbox.start(
        list(command.argv),
        terminal=stdio.terminal_size() if command.tty else None,
        interactive=command.interactive,
        **command.keywords(),
    )
    if app.as_json:
        app.emit(started.status)
    else:
        app.line(started.op_id)
    result = started.status.result
    failed = result is not None and result.start_error is not None
    return stdio.status_of(result, app.warn) if failed and result is not None else 0


async def finish_in_session(app: App, sandbox: Sandbox, name: str, command: Command) -> int:
    """Runs the command in the session, which is made if need be; returns the exit status."""
    from skerry.cli import stdio
    from skerry.cli.jsonable import jsonable

    options: dict[str, Any] = {"env": command.env, "user": command.user, "cwd": command.cwd}
    for known in await sandbox.sessions():
        if known.id == name:
            made = known.spec
            options = {"env": made.env, "user": made.user, "cwd": made.cwd, "shell": made.shell}
    session = await sandbox.session(name, **options)
    words = command.argv
    script = words[0] if len(words) == 1 else shlex.join(words)
    if app.as_json:
        result = await session.run(script, timeout=command.timeout)
        app.emit({"sandbox": sandbox.id, "session": name, **jsonable(result)})
        return stdio.status_of(result, lambda _: None)
    output = stdio.Output()
    events = session.stream(script, timeout=command.timeout)
    try:
        async for event in events:
            await output.show(event)
            if event.result is not None:
                if event.result.session_reset:
                    app.warn("the session's shell was lost: the next command has a fresh one")
                return stdio.status_of(event.result, app.warn)
    finally:
        await close(events)
    raise AssertionError("a stream ends with its result or an error")


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
    no_output_timeout: float | None,
    labels: tuple[tuple[str, str], ...],
    network: tuple[tuple[str, ...], ...],
    restore: str | None,
    **limits: Any,
) -> int:
    """Run one command in a new sandbox, which is then removed.

    IMAGE is a base like debian:12, or `default`; with --restore there is none. The exit status is
    the command's own, 128 + the signal that ended it, 124 after --timeout, 127 if there is no such
    program, 126 if it cannot be started, 125 for an error of Skerry's own.

    \b
    skerry run default -- python3 -c 'print(6*7)'
    tar c . | skerry run -i debian:12 -- tar t
    skerry run --restore workspace/turn-12 -- ls /srv
    """  # noqa: D301 - \b tells click to keep the lines
    check_terminal(app, tty)
    wanted = Command(
        argv=argv_of(command if restore is None else (image, *command)),
        interactive=interactive,
        tty=tty,
        timeout=timeout,
        no_output_timeout=no_output_timeout,
    )
    spec: dict[str, Any] = {**limits, **source(image, restore)}
    spec |= {"env": dict(env), "labels": dict(labels), "network": sum(network, ())}
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
@click.option(
    "-d", "--detach", is_flag=True, help="Start it, print its id, and let it run without us."
)
@click.option(
    "--session", metavar="NAME", help="Run shell lines in this session; made if it is not there."
)
@click.pass_obj
def exec_(
    app: App,
    /,
    *,
    sandbox_id: str,
    command: tuple[str, ...],
    session: str | None,
    interactive: bool,
    tty: bool,
    env: tuple[tuple[str, str], ...],
    user: str | None,
    workdir: str | None,
    timeout: float | None,
    no_output_timeout: float | None,
    detach: bool,
) -> int:
    """Run a command in a live sandbox. The exit status is as in `skerry run`.

    With -d it runs in the background: `skerry ps`, `logs -f`, `attach` and `kill` take the id that is
    printed. With -i too, its input waits for who attaches.

    With --session, directory, variables and functions stay from one call to the next. One word is
    taken as shell lines, several as one command. --env, --user and --workdir count when the session
    is made.

    \b
    skerry exec --session build ID -- 'cd /src && export CC=clang'
    skerry exec --session build ID -- make
    """  # noqa: D301 - \b tells click to keep the lines
    check_terminal(app, tty)
    if session is not None and (interactive or tty or detach):
        raise InvalidRequest("--session goes with none of -i, -t and -d")
    wanted = Command(
        argv=argv_of(command),
        interactive=interactive,
        tty=tty,
        env=dict(env),
        user=user,
        cwd=workdir,
        timeout=timeout,
        no_output_timeout=no_output_timeout,
    )

    async def work() -> int:
        async with app.client() as client:
            sandbox = await client.sandboxes.get(sandbox_id)
            if session is not None:
                return await finish_in_session(app, sandbox, session, wanted)
            return await (detached if detach else finish)(app, sandbox, wanted)

    return app.wait_for(work)
