"""`skerry disk`: block disks of the layer store, open on this machine as files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from skerry.cli.app import App
from skerry.cli.group import SkerryGroup
from skerry.cli.words import size
from skerry.errors import InvalidRequest, Unavailable

if TYPE_CHECKING:
    from skerry.images.disks.library import Disks
    from skerry.spec.layers import LayerManifest

WAIT_S = 3600.0


@click.group(cls=SkerryGroup)
@click.option("--config", metavar="FILE", help="Configuration of this machine's node.")
@click.option("--root", metavar="DIR", help="Where open disks are kept [STATE/disks].")
@click.option("--store", metavar="STORE", help="Layer store: a directory, s3://BUCKET/PREFIX.")
@click.pass_context
def disk(ctx: click.Context, /, *, config: str | None, root: str | None, store: str | None) -> None:
    """Make block disks, open them on this machine, take snapshots.

    A disk is named disk/NAME[:TAG]. It works on this machine's own node, as root; names are removed
    and pinned by skerry image. Containers mount none: an open disk is a file for a virtual machine.
    """
    ctx.meta["skerry.disk"] = (config, root, store)


@contextmanager
def _disks(app: App) -> Iterator[Disks]:
    """Gives the disks of this machine, as its node's configuration says."""
    config, root, store = click.get_current_context().meta["skerry.disk"]
    if os.geteuid() != 0:
        raise Unavailable("disks need root on the machine where they are opened")
    import dataclasses

    from skerry.cli.node import node_config, read_config
    from skerry.images.disks.config import ServiceConfig, holder_of
    from skerry.images.disks.library import Disks

    node = node_config(app.settings, read_config(config) if config else {}, {})
    root = os.path.abspath(root or os.path.join(node.state_dir, "disks"))
    options = {
        field.name: getattr(node.lazy, field.name) for field in dataclasses.fields(node.lazy)
    }
    made = Disks(
        ServiceConfig(
            root=root,
            store=store or node.store or node.store_dir,
            s3=node.s3,
            holder=holder_of(root),
            **options,
        )
    )
    try:
        yield made
    finally:
        made.close_store()


def _show(app: App, manifest: LayerManifest) -> None:
    if app.as_json:
        app.emit(manifest)
        return
    app.line(f"{manifest.name}@{manifest.digest}")


@disk.command("create")
@click.argument("name")
@click.option("--size", "wanted", metavar="SIZE", help="How large it appears, as 4GiB.")
@click.option("--from", "source", metavar="FILE", help="A raw image that it begins with.")
@click.pass_obj
def create(app: App, /, *, name: str, wanted: str | None, source: str | None) -> None:
    """Make a disk of zeros, or of a raw image."""
    from skerry.spec.limits import parse_bytes

    if wanted is None and source is None:
        raise InvalidRequest("--size or --from says how large the disk is")
    with _disks(app) as disks:
        bytes_wanted = parse_bytes(wanted, "--size") if wanted else 0
        _show(app, disks.create(name, bytes_wanted, source=source))


@disk.command("ls")
@click.pass_obj
def ls(app: App, /) -> None:
    """List the disks of the store."""
    with _disks(app) as disks:
        found = disks.list()
    if app.as_json:
        for one in found:
            app.emit(one)
        return
    app.table(
        ["NAME", ">SIZE", ">STORED", ">BLOBS", "MADE BY", "DIGEST"],
        [
            (
                one.name,
                size(one.disk_bytes),
                size(one.total_bytes),
                len(one.layers()),
                one.creator,
                one.digest[:19],
            )
            for one in found
        ],
    )


@disk.command("inspect")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.pass_obj
def inspect(app: App, /, *, names: tuple[str, ...]) -> None:
    """Show all that the store knows of disks."""
    with _disks(app) as disks:
        for name in names:
            app.emit(disks.find(name))


@disk.command("open")
@click.argument("name")
@click.argument("disk_id", metavar="[ID]", required=False)
@click.pass_obj
def open_(app: App, /, *, name: str, disk_id: str | None) -> None:
    """Open a disk on this machine, and print the file that it is.

    \b
    skerry disk open disk/data work
    losetup --find --show --direct-io=on FILE               then it is a block device
    """  # noqa: D301 - \b tells click to keep the lines
    with _disks(app) as disks:
        view = disks.open(name, disk_id)
    if app.as_json:
        app.emit(view)
    else:
        app.line(view.path)


@disk.command("status")
@click.pass_obj
def status(app: App, /) -> None:
    """List the disks that are open on this machine."""
    with _disks(app) as disks:
        found = disks.start()
    if app.as_json:
        app.emit(found)
        return
    app.table(
        ["ID", "BASED ON", ">SIZE", ">LOCAL", "IN USE", "PACKING", "FAILED"],
        [
            (
                one.id,
                one.name,
                size(one.size),
                size(one.local_bytes),
                "yes" if one.opens else "no",
                " ".join(one.packing),
                " ".join(one.failed),
            )
            for one in found.disks
        ],
    )


@disk.command("snapshot")
@click.argument("disk_id", metavar="ID")
@click.argument("name")
@click.option("--freeze", metavar="MOUNTPOINT", help="Let the file system there rest meanwhile.")
@click.option("--no-wait", is_flag=True, help="End when it is taken, not when it is stored.")
@click.pass_obj
def snapshot(app: App, /, *, disk_id: str, name: str, freeze: str | None, no_wait: bool) -> None:
    """Take a snapshot of an open disk, which may be in use."""
    with _disks(app) as disks:
        made = disks.snapshot(disk_id, name, frozen=freeze, wait_s=None if no_wait else WAIT_S)
    if made is not None:
        _show(app, made)


@disk.command("flatten")
@click.argument("name")
@click.pass_obj
def flatten(app: App, /, *, name: str) -> None:
    """Let a disk lie in one or two data blobs; snapshots do so by themselves."""
    with _disks(app) as disks:
        _show(app, disks.flatten(name))


@disk.command("close")
@click.argument("disk_id", metavar="ID")
@click.option("--discard", is_flag=True, help="Lose what is in no snapshot.")
@click.option("--force", is_flag=True, help="Even if it seems to be in use.")
@click.pass_obj
def close(app: App, /, *, disk_id: str, discard: bool, force: bool) -> None:
    """Take a disk away from this machine."""
    with _disks(app) as disks:
        disks.close(disk_id, discard=discard, force=force)


@disk.command("stop")
@click.option("--force", is_flag=True, help="Even if disks are in use: their users get errors.")
@click.pass_obj
def stop(app: App, /, *, force: bool) -> None:
    """End the service; the next open, status or snapshot serves the same disks again."""
    with _disks(app) as disks:
        disks.stop(force=force)
