"""Options and argument types that several commands share."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from skerry.cli.app import App, settings_from
from skerry.errors import InvalidRequest, SkerryError

if TYPE_CHECKING:
    from skerry.aio import Client

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_IMAGE = "debian:12"

_UNITS = {"": 1.0, "s": 1.0, "ms": 0.001, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|)")


def pair(text: str) -> tuple[str, str]:
    """Returns the two sides of NAME=VALUE, split at the first `=`."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, value


def labels_option(told: str) -> Callable[[F], F]:
    """Returns the option --label, which may be given again; `labels` holds the pairs."""
    return click.option(
        "--label", "labels", type=pair, multiple=True, metavar="NAME=VALUE", help=told
    )


def seconds(text: str) -> float:
    """Returns the seconds, above 0, of a duration like 90, 1.5s, 300ms, 10m, 2h."""
    match = _DURATION.fullmatch(str(text).strip())
    value = float(match[1]) * _UNITS[match[2]] if match else math.nan
    if not value > 0 or not math.isfinite(value):
        raise click.BadParameter(f"{text!r} is no duration: write 90, 1.5s, 10m or 2h")
    return value


def entries(text: str) -> tuple[str, ...]:
    """Returns the entries of a list with commas, each checked as far as one can here."""
    from skerry.spec.network import parse_entry

    words = tuple(word.strip() for word in text.split(",") if word.strip())
    for word in words:
        parse_entry(word)
    return words


def complete_sandbox(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Completes the ids of sandboxes."""

    async def ids(client: Client) -> list[str]:
        return [info.id for info in await client.sandboxes.list()]

    return _completed(ctx, ids, incomplete)


def complete_job(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Completes the ids of jobs."""

    async def ids(client: Client) -> list[str]:
        return [info.id for info in await client.jobs.list(ended=True)]

    return _completed(ctx, ids, incomplete)


def complete_layer(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Completes names of layers, but for steps of recipes."""
    from skerry.spec.recipe import is_build_cache

    async def names(client: Client) -> list[str]:
        known = [item.name for item in await client.images.list()]
        return [name for name in known if not is_build_cache(name)]

    return _completed(ctx, names, incomplete)


def _completed(
    ctx: click.Context, find: Callable[[Client], Awaitable[list[str]]], incomplete: str
) -> list[str]:
    root = ctx.find_root()
    names = ("url", "token_env", "state_dir", "run_dir")
    app = root.obj if isinstance(root.obj, App) else App()

    async def ask() -> list[str]:
        async with app.client() as client:
            return await find(client)

    try:
        # The top command itself does not run when a line is completed: its options are read here.
        app.settings = settings_from(**{name: root.params.get(name) for name in names})
        if app.settings.url is None and not os.path.exists(app.settings.socket):
            return []  # a key press must not start a node
        return [item for item in app.wait_for(ask) if item.startswith(incomplete)]
    except (SkerryError, OSError):  # an error has no place in a line that is being typed
        return []


def seconds_or_none(text: str) -> float:
    """Returns the seconds of a duration as above, or 0."""
    return 0.0 if text.strip() == "0" else seconds(text)


def command_options(function: F) -> F:
    """Adds how a command is run: -i, -t, --env, --user, --workdir, --timeout."""
    for option in reversed(
        (
            click.option("-i", "--interactive", is_flag=True, help="Feed standard input to it."),
            click.option("-t", "--tty", is_flag=True, help="Give it a terminal."),
            click.option(
                "-e",
                "--env",
                type=pair,
                multiple=True,
                metavar="NAME=VALUE",
                help="Environment variable.",
            ),
            click.option("-u", "--user", metavar="USER", help="User inside: name, uid or uid:gid."),
            click.option("-w", "--workdir", metavar="DIR", help="Directory inside."),
            click.option(
                "--timeout",
                type=seconds,
                metavar="TIME",
                help="End it after this long (90, 10m); status 124.",
            ),
            click.option(
                "--no-output-timeout",
                type=seconds,
                metavar="TIME",
                help="End it after this long without output; status 124.",
            ),
        )
    ):
        function = option(function)
    return function


def sandbox_options(function: F) -> F:
    """Adds what a new sandbox is made of."""
    for option in reversed(
        (
            click.option(
                "--layer", "layers", multiple=True, metavar="NAME", help="Layer on the image."
            ),
            click.option(
                "--restore",
                metavar="NAME",
                help="A commit, with all it was made on, and no image.",
                shell_complete=complete_layer,
            ),
            click.option("--cpu", type=float, default=1.0, show_default=True, help="Cores."),
            click.option(
                "--best-effort",
                "cpu_class",
                flag_value="best-effort",
                default="latency-sensitive",
                help="Run in what other sandboxes leave.",
            ),
            click.option(
                "--cpu-weight", type=int, default=100, metavar="1..10000", help="Share [100]."
            ),
            click.option(
                "--cpu-burst",
                type=float,
                default=0.0,
                metavar="CORES",
                help="Above --cpu, saved up.",
            ),
            click.option("--memory", default="1GiB", show_default=True, metavar="SIZE"),
            click.option("--pids", type=int, default=512, show_default=True, help="Processes."),
            click.option("--disk", metavar="SIZE", help="What it may write [no limit of its own]."),
            click.option(
                "--network",
                multiple=True,
                type=entries,
                metavar="ENTRY[,ENTRY...]",
                help="What it may reach: pypi, example.org, *.example.org:8443 [nothing].",
            ),
            labels_option("Label."),
            click.option("--rollout", metavar="KEY", help="Find its record by this key."),
            click.option("--job", metavar="ID", help="The job that it belongs to."),
            click.option(
                "--durability",
                type=click.Choice(["process", "local", "shared"]),
                help="What its record survives [as the node is configured].",
            ),
            click.option(
                "--wait",
                type=seconds_or_none,
                default="30",
                metavar="TIME",
                help="Wait so long for room on a full node [30]; 0: not at all.",
            ),
        )
    ):
        function = option(function)
    return function


def image_name(image: str) -> str:
    """Returns the image to use; `default` is the one that the guides use."""
    return DEFAULT_IMAGE if image == "default" else image


def source(image: str | None, restore: str | None) -> dict[str, str]:
    """Returns what a new sandbox begins with, as an option of the SDK."""
    return {"image": image_name(image or "")} if restore is None else {"restore": restore}


def argv_of(words: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the sandboxed command's words; InvalidRequest if there are none."""
    if words[:1] == ("--",):
        words = words[1:]
    if not words:
        raise InvalidRequest("no command was given", hint="put it after --, as in: -- ls -l")
    if words[0].startswith("-"):
        raise InvalidRequest(
            f"{words[0]!r} stands where the command should",
            hint="options come first, then --, then the command",
        )
    return words
