"""`skerry call`: a short program on a warm container, its streams, and its own exit status."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import click

from skerry.cli.app import App
from skerry.cli.call_words import given_limits, kind_of, named_files
from skerry.cli.failure import NOT_FOUND, NOT_STARTED, TIMED_OUT
from skerry.cli.group import SkerryCommand
from skerry.cli.options import image_name, pair, seconds_or_none
from skerry.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from skerry.aio import CallResult, Client
    from skerry.spec.function_result import PoolInfo, Step

ENDED_STATUS = 137  # of a call that a limit ended: as if SIGKILL had


_CALL_OPTIONS = (
    click.option("-c", "code", metavar="CODE", help="Run this Python code."),
    click.option("-p", "--program", is_flag=True, help="The words are a program's."),
    click.option(
        "--script", "interpreter", metavar="PROGRAM", help="Run FILE with this interpreter."
    ),
    click.option("--entry", metavar="NAME", help="Call this function with the words."),
    click.option("--image", default="default", show_default=True, metavar="IMAGE"),
    click.option("--layer", "layers", multiple=True, metavar="NAME", help="On the image."),
    click.option(
        "-m", "--module", "modules", multiple=True, metavar="NAME", help="Already imported."
    ),
    click.option("--stdin", metavar="FILE", help="Its standard input; - is ours [none]."),
    click.option(
        "--file",
        "files",
        multiple=True,
        metavar="[NAME=]PATH",
        help="A file or directory that it finds in its own.",
    ),
    click.option("--fetch", multiple=True, metavar="PATTERN", help="Get these of its files back."),
    click.option("--to", "target", default=".", metavar="DIR", help="Where they go [here]."),
    click.option(
        "-l",
        "--limit",
        "limits",
        type=pair,
        multiple=True,
        metavar="NAME=VALUE",
        help="wall, cpu, memory, output, processes, disk, open_files.",
    ),
    click.option(
        "--compile-limit", "compile_limits", type=pair, multiple=True, metavar="NAME=VALUE"
    ),
    click.option("--flag", "flags", multiple=True, help="For the compiler."),
    click.option("-e", "--env", type=pair, multiple=True, metavar="NAME=VALUE"),
    click.option(
        "--isolation",
        type=click.Choice(["process", "container"]),
        default="process",
        show_default=True,
    ),
    click.option("--idempotent", is_flag=True, help="It may be run again."),
    click.option(
        "--wait",
        type=seconds_or_none,
        default="60",
        metavar="TIME",
        help="Wait so long for a place [60]; 0: not at all.",
    ),
    click.option("--job", metavar="ID", help="The job that it belongs to."),
    click.option("--device", metavar="NAME", help="A device that it needs alone."),
    click.option("--pools", is_flag=True, help="Show how the pools stand, and no more."),
)


def _call_options(function: Any) -> Any:
    for option in reversed(_CALL_OPTIONS):
        function = option(function)
    return function


@click.command(cls=SkerryCommand, carries_status=True, takes_command=True)
@click.argument("words", nargs=-1, metavar="[FILE] [ARGS]...", type=click.UNPROCESSED)
@_call_options
@click.pass_obj
def call(
    app: App,
    /,
    *,
    words: tuple[str, ...],
    image: str,
    stdin: str | None,
    files: tuple[str, ...],
    fetch: tuple[str, ...],
    target: str,
    limits: tuple[tuple[str, str], ...],
    env: tuple[tuple[str, str], ...],
    pools: bool,
    **more: Any,
) -> int:
    """Call a short program on a container that is there already; nothing of it is left.

    FILE decides what it is: a program in Python (*.py), C, C++, Fortran, Go, Java or Rust, or a script
    with a first line that names its interpreter (#!). With -c it is Python code, with -p a program of
    the image. With --entry a function of the Python code is called; ARGS are JSON then, or texts, and
    what it returns is printed as JSON.

    The exit status is the program's own, 128 + the signal that ended it, 124 if its time was over, 137
    at another limit, 127 or 126 if it cannot be started, 125 for an error of Skerry's own.

    \b
    skerry call -c 'print(6*7)'
    skerry call --entry main square.py 7
    skerry call --stdin - --limit wall=5 solution.cpp
    skerry call -p -- sort --version
    """  # noqa: D301 - \b tells click to keep the lines
    if pools:
        return app.wait_for(lambda: _show_pools(app))
    kind, options = kind_of(words, more)
    options |= {"image": image_name(image), **given_limits(limits, "--limit")}
    for name in ("layers", "modules", "isolation", "idempotent", "wait", "job", "device"):
        if more[name]:
            options[name] = more[name]
    options |= {"env": dict(env), "files": named_files(files), "wait": more["wait"]}
    if fetch:
        options |= {"fetch": fetch, "fetch_to": target}

    async def work() -> int:
        async with app.client() as client:
            return await _finish(app, client, kind, stdin, options)

    return app.wait_for(work)


async def _finish(
    app: App, client: Client, kind: str, stdin: str | None, options: dict[str, Any]
) -> int:
    from skerry.cli import stdio
    from skerry.cli.loop import Lane

    lane = Lane()
    if stdin is not None:
        options["stdin"] = stdio.stdin_chunks(Lane()) if stdin == "-" else _local(stdin)
    if app.as_json:
        result = await client.functions.call(kind, **options)
        app.emit(result)
        return status_of(result)
    options["on_output"] = lambda stream, data: lane.call(stdio.write_all, stream, data)
    result = await client.functions.call(kind, **options)
    if result.compile is not None:
        for data in (result.compile.stdout, result.compile.stderr):
            await lane.call(stdio.write_all, "stderr", data)
    if result.returned:
        app.line(json.dumps(result.value, ensure_ascii=False))
    _say(app, result)
    return status_of(result)


def _local(path: str) -> Any:
    from pathlib import Path

    if not os.path.exists(path):
        raise InvalidRequest(f"--stdin: there is no {path!r}")
    return Path(path) if os.path.isfile(path) else _chunks(path)


async def _chunks(path: str) -> AsyncIterator[bytes]:
    import asyncio

    with open(path, "rb", buffering=0) as file:  # noqa: ASYNC230 - a pipe or a device: opened once
        while data := await asyncio.to_thread(file.read, 1 << 16):
            yield data


def _say(app: App, result: CallResult) -> None:
    """Says what a status alone does not tell."""
    for step, what in ((result.compile, "the compiler"), (result, "it")):
        if step is not None and step.limit is not None:
            app.warn(f"{what} was ended: it reached its limit of {step.limit} (--limit raises it)")
        if step is not None and step.start_error is not None:
            app.warn(step.start_error)
    if result.error is not None and result.limit is None:
        app.warn(f"{result.error.type}: {result.error.message}")  # where from: on stderr already
    if result.returned is False and result.exit_code == 0:
        app.warn("it exited before its function returned")
    for name, why in result.left_out.items():
        app.warn(f"{name}: {why}")


def status_of(result: CallResult) -> int:
    """Returns the status that a shell would give."""
    if result.compile is not None and not result.compile.ok:
        return _status_of_step(result.compile)
    status = _status_of_step(result)
    failed = result.error is not None or result.returned is False
    return status or int(failed)


def _status_of_step(step: Step) -> int:
    if step.limit is not None:
        return TIMED_OUT if step.limit in {"wall", "cpu"} else ENDED_STATUS
    if step.start_error is not None:
        return NOT_FOUND if "No such file" in step.start_error else NOT_STARTED
    if step.signal is not None:
        return 128 + step.signal
    return step.exit_code if step.exit_code is not None else NOT_STARTED


async def _show_pools(app: App) -> int:
    async with app.client() as client:
        pools = await client.functions.pools()
    if app.as_json:
        for pool in pools:
            app.emit(pool)
        return 0
    columns = [
        "POOL",
        "ENVIRONMENT",
        "LEVEL",
        ">CONTAINERS",
        ">RUNNING",
        ">WAITING",
        ">CALLS",
        "IDLE",
    ]
    app.table(columns, [_row(pool) for pool in pools])
    return 0


def _row(pool: PoolInfo) -> list[object]:
    said = " ".join((pool.environment.image, *pool.environment.layers, *pool.environment.modules))
    if pool.device is not None:
        said += f" on {pool.device}"
    starting = f" (+{pool.starting})" if pool.starting else ""
    return [
        pool.key[:8],
        said,
        pool.isolation,
        f"{pool.containers}{starting}",
        pool.running,
        pool.waiting,
        pool.calls,
        f"{pool.idle_s:.0f} s",
    ]
