"""`skerry image build`: layers from Debian suites, recipes, and steps."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import click

from skerry.cli.app import App
from skerry.cli.made import log_line, show_made
from skerry.cli.ociimage import AUTHFILE, NO_TLS
from skerry.cli.options import DEFAULT_IMAGE, pair, seconds
from skerry.errors import InvalidRequest

if TYPE_CHECKING:
    from skerry.aio import Client
    from skerry.cli.buildfile import Build
    from skerry.spec.layers import LayerManifest

OF_RECIPES = (
    *("args", "network", "no_cache"),
    *("aliases", "registries", "authfile", "tls_verify"),
)
SUITES = {"11": "bullseye", "12": "bookworm", "13": "trixie"}


def suite_of(name: str) -> str | None:
    """Returns the suite that a name like base/debian:12 or debian:bookworm stands for, or None."""
    from skerry.spec.layers import LayerKind, parse_layer_name

    parsed = parse_layer_name(name, LayerKind.BASE)
    if parsed.kind is not LayerKind.BASE or parsed.name != "debian":
        return None
    if parsed.tag in SUITES.values():
        return parsed.tag
    return SUITES.get(parsed.tag)


@click.command()
@click.argument("name", required=False)
@click.option(
    "--suite", metavar="SUITE", help="Base from this Debian suite (bookworm, trixie, ...)."
)
@click.option("--package", "packages", multiple=True, metavar="NAME", help="With --suite: add it.")
@click.option("--refresh", is_flag=True, help="With --suite: fetch again what is in the cache.")
@click.option("--from", "base", metavar="IMAGE", help="Run the steps on this base.")
@click.option("--layer", "layers", multiple=True, metavar="NAME", help="Layer on that base.")
@click.option(
    "--context",
    type=click.Path(exists=True, file_okay=False),
    help="What a recipe copies from [its directory]; for steps put at /build, not part of the layer.",
)
@click.option("--step", "steps", multiple=True, metavar="LINE", help="Shell line; repeatable.")
@click.option("-e", "--env", type=pair, multiple=True, metavar="NAME=VALUE", help="For the steps.")
@click.option("--memory", metavar="SIZE", help="For the steps [2GiB; of a recipe 4GiB].")
@click.option(
    "--timeout",
    type=seconds,
    default="30m",
    show_default=True,
    metavar="TIME",
    help="Of each step.",
)
@click.option(
    "-f", "--file", "path", metavar="FILE", help="A recipe, or a build file [skerry.toml]."
)
@click.option(
    "--build-arg",
    "args",
    type=pair,
    multiple=True,
    metavar="NAME=VALUE",
    help="For a recipe's ARG.",
)
@click.option(
    "--network",
    "network",
    multiple=True,
    metavar="ENTRY",
    help="What a recipe's steps may reach [build: as the node's operator says]; none for nothing.",
)
@click.option("--no-cache", is_flag=True, help="Run all steps of a recipe again.")
@click.option(
    "--alias",
    "aliases",
    type=pair,
    multiple=True,
    metavar="IMAGE=LAYER",
    help="The base that takes the place of an image of a recipe.",
)
@click.option(
    "--registry",
    "registries",
    multiple=True,
    metavar="HOST",
    help="Where images of a recipe may come from; the first is for names without a host.",
)
@AUTHFILE
@NO_TLS
@click.pass_obj
def build(
    app: App,
    /,
    *,
    name: str | None,
    suite: str | None,
    packages: tuple[str, ...],
    refresh: bool,
    path: str | None,
    **options: Any,
) -> None:
    """Build a layer: a base from a Debian suite, by a recipe, or what shell steps change in a sandbox.

    \b
    skerry image build base/debian:12
    skerry image build base/tools:1 --suite bookworm --package gcc
    skerry image build workspace/x -f x/Dockerfile      FROM, RUN, COPY, ENV, WORKDIR, USER, ARG, ...
    skerry image build workspace/x --from debian:12 --context ./x --step 'pip install .'
    skerry image build                 all layers of ./skerry.toml, in its order
    """  # noqa: D301 - \b tells click to keep the lines
    from skerry.cli.buildfile import Build, read

    steps = options.pop("steps")
    of_recipe = {name: options.pop(name) for name in OF_RECIPES}
    if path is not None and not path.endswith(".toml"):
        if name is None or suite or packages or steps or options["base"] or options["layers"]:
            raise InvalidRequest(
                "a recipe makes the one layer NAME: give a name, no --suite, --from, --layer or --step"
            )
        _build_recipe(app, name, path, options | of_recipe)
        return
    if any(value for name, value in of_recipe.items() if name != "tls_verify"):
        raise InvalidRequest(
            "--build-arg, --network, --no-cache, --alias, --registry and --authfile are for recipes: "
            "give one by -f"
        )
    options["memory"] = options["memory"] or "2GiB"
    if steps or options["base"]:
        if name is None or suite or packages or path:
            raise InvalidRequest(
                "--from and --step make the one layer NAME: give a name, no --suite"
            )
        options["base"] = options["base"] or DEFAULT_IMAGE
        options["env"] = dict(options["env"])
        _build_steps(app, [Build(name=name, steps=steps, **options)])
        return
    known = suite or (suite_of(name) if name and path is None else None)
    if known is not None and name is not None:

        async def debian() -> LayerManifest:
            async with app.client() as client:
                return await build_debian(app, client, name, known, packages, refresh=refresh)

        show_made(app, app.wait_for(debian))
        return
    if path is None and not os.path.exists("skerry.toml"):
        raise InvalidRequest(
            f"there is nothing to build {name or 'a layer'} from",
            hint="give --suite, or --from and --step, or write a skerry.toml",
        )
    _build_steps(app, read(path or "skerry.toml", name))


async def build_debian(
    app: App,
    client: Client,
    name: str,
    suite: str,
    packages: tuple[str, ...] = (),
    *,
    refresh: bool = False,
) -> LayerManifest:
    """Builds a base from a suite, with its progress on stderr."""
    app.note(f"building {name} from Debian {suite}; the first time takes a minute or two")
    started = time.monotonic()
    made = await client.images.debian(
        name, suite, packages, refresh=refresh, on_log=lambda line: log_line(app, line)
    )
    app.note(f"built {made.name} in {time.monotonic() - started:.0f} s")
    return made


def _build_recipe(app: App, name: str, path: str, options: dict[str, Any]) -> None:
    """Builds a layer by a recipe; each line of its progress on stderr."""
    from skerry.sdk.bases import ImageSources

    if options["env"]:
        raise InvalidRequest("-e is for steps: a recipe has ENV, and ARG for --build-arg")
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
    except OSError as error:
        raise InvalidRequest(f"the recipe {path} cannot be read: {error.strerror}") from error
    network = options["network"] or ("build",)
    started = time.monotonic()

    async def work() -> LayerManifest:
        async with app.client() as client:
            return await client.images.build_recipe(
                name,
                text,
                context=options["context"] or os.path.dirname(os.path.abspath(path)),
                args=dict(options["args"]),
                network=() if network == ("none",) else network,
                memory=options["memory"] or "4GiB",
                timeout=options["timeout"],
                cache=not options["no_cache"],
                sources=ImageSources(
                    aliases=dict(options["aliases"]),
                    registries=options["registries"],
                    authfile=options["authfile"],
                    tls_verify=options["tls_verify"],
                ),
                on_log=lambda line: log_line(app, line),
            )

    made = app.wait_for(work)
    app.note(f"built {made.name} in {time.monotonic() - started:.0f} s")
    show_made(app, made)


def _build_steps(app: App, builds: list[Build]) -> None:
    async def work() -> None:
        async with app.client() as client:
            for item in builds:
                app.note(f"building {item.name}")
                made = await client.images.build(
                    item.name,
                    image=item.base,
                    layers=item.layers,
                    context=item.context,
                    steps=item.steps,
                    workdir=item.workdir,
                    env=item.env,
                    keep_context=item.keep_context,
                    memory=item.memory,
                    timeout=item.timeout,
                    on_log=lambda line: log_line(app, line),
                )
                show_made(app, made)

    app.wait_for(work)
