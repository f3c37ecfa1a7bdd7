"""`skerry image` with registries: imports of images, pushes, and collapsing layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from skerry.cli.made import log_line, show_made
from skerry.cli.options import complete_layer
from skerry.errors import InvalidRequest

if TYPE_CHECKING:
    from skerry.cli.app import App
    from skerry.spec.layers import LayerManifest

AUTHFILE = click.option(
    "--authfile",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Credentials for the registry, like ~/.docker/config.json.",
)
NO_TLS = click.option(
    "--no-tls-verify",
    "tls_verify",
    flag_value=False,
    default=True,
    help="Take any certificate of the registry, or none.",
)


def import_oci(app: App, name: str, source: str, prefix: str, options: dict[str, Any]) -> None:
    """Makes a layer of an image in a registry, a layout or an archive."""
    from skerry.cli.copy import local_size, progress_bar
    from skerry.sdk.ocisource import parse_oci_source

    if prefix != "/":
        raise InvalidRequest("--prefix is for directories: an image is a whole root")
    found = parse_oci_source(source)
    total = None if found.reference is not None else local_size(str(found.path))

    async def work() -> LayerManifest:
        async with app.client() as client:
            if found.reference is not None:
                return await client.images.import_oci(
                    name, source, on_log=lambda line: log_line(app, line), **options
                )
            with progress_bar(app, f"to {name}", total) as advance:
                platform = options["platform"]
                return await client.images.import_oci(
                    name, source, platform=platform, progress=advance
                )

    show_made(app, app.wait_for(work))


@click.command("push")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_layer)
@click.argument("target", metavar="docker://HOST/NAME[:TAG]")
@AUTHFILE
@NO_TLS
@click.pass_obj
def push(
    app: App,
    /,
    *,
    names: tuple[str, ...],
    target: str,
    authfile: str | None,
    tls_verify: bool,
) -> None:
    """Take layers, composed in their order, to a registry as one OCI image."""

    async def work() -> str:
        async with app.client() as client:
            return await client.images.push(
                names,
                target,
                authfile=authfile,
                tls_verify=tls_verify,
                on_log=lambda line: log_line(app, line),
            )

    digest = app.wait_for(work)
    if app.as_json:
        app.emit({"target": target, "digest": digest})
    else:
        app.line(f"{target}  {digest}")


@click.command("collapse")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_layer)
@click.option("--into", required=True, metavar="NAME", help="The layer to make.")
@click.option(
    "--threshold", metavar="SIZE", help="More than that of files makes a further part [3GiB]."
)
@click.pass_obj
def collapse(app: App, /, *, names: tuple[str, ...], into: str, threshold: str | None) -> None:
    """Make one layer of several that shows what they show together; deletions are kept."""

    async def work() -> LayerManifest:
        async with app.client() as client:
            return await client.images.collapse(
                names, into, threshold=threshold, on_log=lambda line: log_line(app, line)
            )

    show_made(app, app.wait_for(work))
