"""`skerry up`: a node in the background, and how to reach it."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click

from skerry.backends.shared import proc
from skerry.cli.app import App, Settings
from skerry.cli.group import SkerryCommand
from skerry.cli.node import read_config
from skerry.cli.words import plural
from skerry.errors import Conflict, InvalidRequest, SkerryError, Unavailable
from skerry.wire.http import Health

START_WITHIN_S = 60.0
STOP_WITHIN_S = 60.0
POLL_S = 0.05
LOG_LINES = 15


@click.command(cls=SkerryCommand)
@click.option("--listen", metavar="HOST:PORT", help="Serve TCP too, for remote clients.")
@click.option("--token-file", metavar="FILE", help="Accepted tokens [one is made, with --listen].")
@click.option("--config", metavar="FILE", help="TOML file of the node; its directories too.")
@click.option("--zram", metavar="SIZE", help="Make compressed swap of that size, as 4GiB.")
@click.option("--stop", is_flag=True, help="Stop the node; its sandboxes wait for the next start.")
@click.option("--destroy", is_flag=True, help="With --stop: destroy its sandboxes first.")
@click.pass_obj
def up(
    app: App,
    /,
    *,
    listen: str | None,
    token_file: str | None,
    config: str | None,
    zram: str | None,
    stop: bool,
    destroy: bool,
) -> None:
    """Start a node in the background and say how to reach it.

    Without it every client finds or starts an embedded node, which ends when nobody uses it.
    """
    if destroy and not stop:
        raise InvalidRequest("--destroy goes with --stop", hint="run `skerry up --stop --destroy`")
    content = read_config(config) if config else {}
    app.settings = with_places(app.settings, content)
    if stop:
        app.wait_for(lambda: stop_node(app, destroy=destroy))
        return
    from skerry.node.config import tcp_address

    if os.geteuid() != 0:
        raise Unavailable("a node needs root", hint="run `sudo skerry up`")
    health = app.wait_for(lambda: answering(app))
    if health is not None:
        if _embedded(health.pid):
            raise Conflict(
                f"an embedded node (pid {health.pid}) has {app.settings.state} while clients use it",
                hint="`skerry up --stop` ends it; then try again",
            )
        app.note("it runs already, as it was started; `skerry up --stop` ends it")
        describe(app, health, None, None, started=False)
        return
    if listen:
        tcp_address(listen)  # a mistake is told here, not in the log of a node that did not start
    if listen and not token_file:
        token_file = make_token(app.settings.state)
    health = app.wait_for(lambda: start_node(app, listen, token_file, config, zram))
    describe(app, health, listen or content.get("tcp"), token_file or config)


def with_places(settings: Settings, content: dict[str, Any]) -> Settings:
    """Returns settings with the directories that a node's file names, where no option does."""
    places = {
        name: content[name]
        for name in ("state_dir", "run_dir")
        if getattr(settings, name) is None and isinstance(content.get(name), str)
    }
    return dataclasses.replace(settings, **places)


async def answering(app: App) -> Health | None:
    """Returns the health of the node at the local socket, None if none answers; starts nothing."""
    from skerry import aio

    if not os.path.exists(app.settings.socket):
        return None
    try:
        async with aio.connect(f"unix://{app.settings.socket}") as client:
            return await client.health()
    except SkerryError:
        return None


async def start_node(
    app: App,
    listen: str | None,
    token_file: str | None,
    config: str | None,
    zram: str | None = None,
) -> Health:
    """Starts the daemon and returns when it answers; Unavailable quotes its log."""
    settings = app.settings
    log = Path(settings.state) / "node.log"
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    argv = [sys.executable, "-m", "skerry.cli.main", "node"]
    argv += ["--state", settings.state, "--run", settings.run, "--log", str(log)]
    for option, value in (("--listen", listen), ("--token-file", token_file), ("--config", config)):
        if value:
            argv += [option, os.path.abspath(value) if option != "--listen" else value]
    argv += ["--zram", zram] if zram else []
    app.note("starting a node")
    with log.open("ab") as output:
        before = output.tell()
        process = subprocess.Popen(  # noqa: ASYNC220 - a fork, once
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
        )
    until = time.monotonic() + START_WITHIN_S
    while time.monotonic() < until and process.poll() is None:
        if (health := await answering(app)) is not None:
            return health
        await asyncio.sleep(POLL_S)
    if process.poll() is None:
        process.terminate()
    raise Unavailable(
        f"the node did not start; its log {log} ends with:\n{logged_since(log, before)}"
    )


def logged_since(log: Path, offset: int) -> str:
    """Returns the last lines of what was logged after `offset`, where this node began."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(offset if offset <= size else 0)  # it may have been turned over
        return "\n".join(file.read().decode(errors="replace").splitlines()[-LOG_LINES:])


async def stop_node(app: App, *, destroy: bool) -> None:
    """Ends the node at the local socket and returns when it is gone."""
    from skerry import aio

    health = await answering(app)
    if health is None:
        app.note(f"no node answers at {app.settings.socket}")
        if app.as_json:
            app.emit({"stopped": False})
        return
    if destroy:
        async with aio.connect(f"unix://{app.settings.socket}") as client:
            ids = [info.id for info in await client.sandboxes.list()]
            await client.sandboxes.destroy_many(ids)
            app.note(f"destroyed {plural(len(ids), 'sandbox')}")
    left = 0 if destroy else health.sandboxes
    os.kill(health.pid, signal.SIGTERM)
    until = time.monotonic() + STOP_WITHIN_S
    while proc.runs(health.pid):
        if time.monotonic() > until:
            raise Unavailable(
                f"the node (pid {health.pid}) does not end",
                hint=f"see its log {app.settings.state}/node.log",
            )
        await asyncio.sleep(POLL_S)
    if app.as_json:
        app.emit({"stopped": True, "node": health.node, "sandboxes_left": left})
        return
    app.line(f"node {health.node} has stopped")
    if left:
        app.note(f"{plural(left, 'sandbox')} of it live on; the next start takes them over")


def _embedded(pid: int) -> bool:
    return "--embedded" in proc.words(pid)


def make_token(state_dir: str) -> str:
    """Returns the path of a file (0600) with a token, made if it is missing."""
    path = os.path.join(state_dir, "token")
    os.makedirs(state_dir, mode=0o700, exist_ok=True)
    if not os.path.exists(path):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    return path


def _as_seen_from_afar(listen: str) -> str:
    """Returns HOST:PORT with this machine's name instead of "all addresses"."""
    host, _, port = listen.rpartition(":")
    return f"{socket.gethostname()}:{port}" if host in ("", "0.0.0.0", "[::]", "*") else listen  # noqa: S104


def describe(
    app: App,
    health: Health,
    listen: str | None,
    token_file: str | None,
    *,
    started: bool = True,
) -> None:
    """Says which node runs and how to reach it; of one that ran before, not whether from afar."""
    settings = app.settings
    if app.as_json:
        app.emit(
            {
                "node": health.node,
                "pid": health.pid,
                "version": health.version,
                "socket": settings.socket,
                "url": f"http://{listen}" if listen else None,
                "token_file": token_file,
                "log": f"{settings.state}/node.log",
                "backends": health.backends,
            }
        )
        return
    where = ""
    if settings.state_dir or settings.run_dir:
        where = f" --state {settings.state} --run {settings.run}"
    app.line(f"node {health.node} runs (pid {health.pid})")
    app.line(f"  here     skerry{where} run default -- uname -a")
    if listen:
        app.line(f"  remote   SKERRY_URL=http://{_as_seen_from_afar(listen)} SKERRY_TOKEN=...")
        app.line(f"           the token is in {token_file}")
    elif started:
        app.line("  remote   not served; --listen HOST:PORT would")
    app.line(f"  log      {settings.state}/node.log")
    app.line(f"  stop     skerry{where} up --stop")
    for name, state in health.backends.items():
        if state != "usable":
            app.warn(f"the backend {name} cannot be used: {state}")
