"""`skerry image`: the layers that environments are composed of."""

from __future__ import annotations

import datetime as dt
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from skerry.cli.app import App
from skerry.cli.group import SkerryGroup
from skerry.cli.imagebuild import build
from skerry.cli.made import show_made
from skerry.cli.ociimage import AUTHFILE, NO_TLS, collapse, import_oci, push
from skerry.cli.options import complete_layer
from skerry.cli.words import age, plural, size
from skerry.errors import InvalidRequest

if TYPE_CHECKING:
    from skerry.spec.layers import CollectReport, LayerCheck, LayerManifest, RecordsCheck
    from skerry.spec.residue import Scrubbed


@click.group(cls=SkerryGroup)
def image() -> None:
    """Build, import, list and remove layers.

    A layer is named kind/name[:tag]; kind is base, workspace or toolkit. Without a kind a base is
    meant: debian:12 is base/debian:12.
    """


image.add_command(build)
image.add_command(push)
image.add_command(collapse)


@image.command("import")
@click.argument("name")
@click.argument("source", metavar="SOURCE")
@click.option(
    "--prefix",
    default="/",
    show_default=True,
    metavar="DIR",
    help="Where a directory's content goes.",
)
@click.option("--platform", metavar="OS/ARCH", help="Of an image [the node's].")
@AUTHFILE
@NO_TLS
@click.pass_obj
def import_(app: App, /, *, name: str, source: str, prefix: str, **options: Any) -> None:
    """Make a layer of a tar file, a directory, a tar on stdin (-), or an image of another system.

    \b
    skerry image import base/mine:1 root.tar.gz             plain, gzip, bzip2, xz, zstd
    skerry image import toolkit/t ./harness --prefix /opt/harness
    skerry image import debian:slim docker://HOST/debian:12-slim
    skerry image import base/app oci:DIR:TAG                or oci-archive:FILE[:TAG]
    skerry image import base/app docker-archive:FILE        what docker save wrote
    """  # noqa: D301 - \b tells click to keep the lines
    from skerry.cli.copy import local_size, progress_bar
    from skerry.sdk.ocisource import is_oci_source

    if is_oci_source(source):
        import_oci(app, name, source, prefix, options)
        return
    if options["platform"] or options["authfile"] or not options["tls_verify"]:
        raise InvalidRequest("--platform, --authfile and --no-tls-verify are for images")
    directory = os.path.isdir(source)
    if prefix != "/" and not directory:
        raise InvalidRequest("--prefix is for directories: a tar's names say where its files go")
    total = None if source == "-" else local_size(source)

    async def work() -> LayerManifest:
        async with app.client() as client:
            with progress_bar(app, f"to {name}", total) as advance:
                if directory:
                    return await client.images.import_directory(
                        name, source, prefix=prefix, progress=advance
                    )
                tar = sys.stdin.buffer if source == "-" else source
                return await client.images.import_tar(name, tar, progress=advance)

    show_made(app, app.wait_for(work))


@image.command("ls")
@click.option("--all", "-a", "every", is_flag=True, help="Also those of the build cache.")
@click.option("--cache", is_flag=True, help="Only those of the build cache.")
@click.pass_obj
def ls(app: App, /, *, every: bool, cache: bool) -> None:
    """List layers.

    Steps of recipes, which builds keep as workspace/build-cache/..., are left out, but with --all;
    --json says of each layer whether it is one (build_cache). They go by themselves after two weeks.
    """
    from skerry.cli.jsonable import jsonable
    from skerry.spec.recipe import is_build_cache

    if every and cache:
        raise InvalidRequest("--all lists the build cache too: give one of --all and --cache")

    async def work() -> list[LayerManifest]:
        async with app.client() as client:
            return await client.images.list()

    known = app.wait_for(work)
    found = [one for one in known if every or is_build_cache(one.name) == cache]
    if app.as_json:
        for item in found:
            app.emit(jsonable(item) | {"build_cache": is_build_cache(item.name)})
        return
    hidden = [one for one in known if is_build_cache(one.name)] if not every and not cache else []
    if hidden:
        total = sum(one.total_bytes for one in hidden)
        app.note(f"and {plural(len(hidden), 'layer')} of the build cache ({size(total)}): --all")
    if not found and cache:
        app.note("nothing in the build cache")
    elif not known:
        app.note("no layers yet; `skerry image build base/debian:12` makes the first")
    if not found:
        return
    app.table(
        ["NAME", ">SIZE", ">FILES", ">AGE", "MADE BY", "DIGEST"],
        [
            (
                item.name,
                size(item.total_bytes),
                item.files,
                _age_of(item.created),
                item.creator,
                item.digest[:19],
            )
            for item in found
        ],
    )


def _age_of(created: str) -> str:
    try:
        when = dt.datetime.fromisoformat(created)
    except ValueError:
        return created
    return age(time.time() - when.timestamp())


@image.command("inspect")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_layer)
@click.pass_obj
def inspect(app: App, /, *, names: tuple[str, ...]) -> None:
    """Show all that the store knows of layers."""

    async def work() -> list[LayerManifest]:
        async with app.client() as client:
            return [await client.images.inspect(name) for name in names]

    for item in app.wait_for(work):
        if app.as_json:
            app.emit(item)
            continue
        app.line(item.name)
        rows = [("digest", item.digest), ("data", item.data_digest or "in the same blob")]
        rows += [("size", _sizes(item)), ("files", str(item.files))]
        rows += [("created", item.created), ("made by", item.creator)]
        rows += [("compression", item.compression), *sorted(item.recipe.items())]
        rows += [("part below", part.digest) for part in item.parts]
        rows += [("made on", digest) for digest in item.parents]
        rows += [("left out", _scrubbed(one)) for one in item.scrubbed]
        rows += _config_rows(item)
        for label, value in rows:
            indented = value.rstrip().replace("\n", "\n" + " " * 15)  # a recipe has lines
            app.line(f"  {label:<12} {indented}")


def _scrubbed(one: Scrubbed) -> str:
    shown = ", ".join(one.paths)
    more = ", ..." if one.files > len(one.paths) else ""
    return f"{one.rule}: {plural(one.files, 'file')}, {size(one.bytes)} ({shown}{more})"


def _sizes(item: LayerManifest) -> str:
    if item.data_digest is None:
        return size(item.size_bytes)
    stored = "" if item.data_codec == "none" else f", stored as {size(item.stored_bytes)} of zstd"
    return f"{size(item.size_bytes)} of metadata, {size(item.data_bytes)} of data{stored}"


def _config_rows(item: LayerManifest) -> list[tuple[str, str]]:
    config = item.config
    if config is None:
        return []
    rows = [("env", f"{name}={value}") for name, value in config.env.items()]
    rows += [("label", f"{name}={value}") for name, value in config.labels.items()]
    single = (("workdir", config.workdir), ("user", config.user))
    lists = (("entrypoint", " ".join(config.entrypoint)), ("command", " ".join(config.cmd)))
    return rows + [(label, value) for label, value in (*single, *lists) if value]


@image.command("rm")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_layer)
@click.pass_obj
def rm(app: App, /, *, names: tuple[str, ...]) -> None:
    """Remove layers; one that a sandbox uses is refused."""

    async def work() -> None:
        async with app.client() as client:
            for name in names:
                await client.images.remove(name)
                if app.as_json:
                    app.emit({"name": name, "removed": True})
                else:
                    app.line(name)

    app.wait_for(work)


@image.command("verify")
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_layer)
@click.option("--all", "every", is_flag=True, help="All layers of the store.")
@click.option(
    "--remove-damaged",
    is_flag=True,
    help="Remove damaged blobs, so that making the layer again stores them anew.",
)
@click.option("--last", is_flag=True, help="Read no layer: say what the last check found.")
@click.pass_obj
def verify(
    app: App, /, *, names: tuple[str, ...], every: bool, remove_damaged: bool, last: bool
) -> int:
    """Read all bytes of layers again and compare them with their digests.

    Says which chunks are damaged and which files have bytes there; with --all also which records
    of the store are (names, manifests, pins, leases), and what to do about each. Nodes read layers
    again slowly by themselves; --last says what they found. The exit status is 1 if anything is
    damaged.
    """
    if every == bool(names):
        raise InvalidRequest("name layers, or give --all")
    if last and remove_damaged:
        raise InvalidRequest("--last reads no layer: --remove-damaged goes without it")

    async def work() -> bool:
        async with app.client() as client:
            wanted, bad = names, False
            if every:
                # First: a layer whose record is damaged is in no list of layers.
                records = await client.images.verify_records()
                _tell_records(app, records)
                bad = bool(records.problems)
                # Layers that have several names are read once.
                found = {item.digest: item.name for item in await client.images.list()}
                wanted = tuple(sorted(found.values()))
            for name in wanted:
                if last:
                    check = await client.images.last_check(name)
                else:
                    app.note(f"reading {name}")
                    check = await client.images.verify(name, remove_damaged=remove_damaged)
                _tell_check(app, check, last=last)
                bad = bad or bool(check.damage)
            return bad

    return 1 if app.wait_for(work) else 0


def _tell_records(app: App, check: RecordsCheck) -> None:
    if app.as_json:
        app.emit(check)
        return
    for one in check.problems:
        app.line(f"{one.name}  DAMAGED {one.kind}")
        app.line(f"  {one.problem}")
        app.line(f"  what to do: {one.advice}")
    for one in check.mended:
        app.line(f"{one.name}  made again: {one.kind}")
    if not check.problems:
        app.line(f"records of the store  good  {check.read}")


def _tell_check(app: App, check: LayerCheck, *, last: bool) -> None:
    if app.as_json:
        app.emit(check)
        return
    state = "DAMAGED" if check.damage else "good"
    if last and not check.checked and not check.damage:
        state = "not checked since it was made"
    when = f"  {check.checked}" if check.checked else ""
    app.line(f"{check.name}  {state}  {size(check.bytes_read)}{when}")
    for one in check.damage:
        app.line(f"  {one.part} {one.digest}: {one.problem}")
        if one.chunks:
            app.line(f"    chunks {_some([str(chunk) for chunk in one.chunks])}")
        if one.files:
            app.line(f"    files {_some(list(one.files))}")
    for one in check.mended:
        app.line(f"  made again: {one.part} {one.digest}: {one.problem}")
    if check.removed:
        app.line("  the damaged blobs are removed: make the layer again")


def _some(words: list[str]) -> str:
    return ", ".join(words[:20]) + (f" and {len(words) - 20} more" if len(words) > 20 else "")


@image.command("gc")
@click.option("--dry-run", is_flag=True, help="Only say what would go, and why the rest stays.")
@click.pass_obj
def collect(app: App, /, *, dry_run: bool) -> None:
    """Remove the bytes that no name, pin or sandbox needs, on any node of the store.

    Takes ten seconds on a local store, a minute and a half on a shared one: what others just began
    to use is looked for twice.
    """

    async def work() -> CollectReport:
        async with app.client() as client:
            return await client.images.collect(dry_run=dry_run)

    if not dry_run:
        app.note("collecting; this takes the grace period of the store")
    report = app.wait_for(work)
    if app.as_json:
        app.emit(report)
        return
    rows = [
        (one.digest[7:26], size(one.size_bytes), "would go" if dry_run else "gone")
        for one in report.removed
    ]
    if dry_run:
        rows += [(one.digest[7:26], size(one.size_bytes), _reasons(one.why)) for one in report.kept]
    if rows:
        app.table(["BLOB", ">SIZE", "WHY"], rows)
    word = "would free" if dry_run else "freed"
    app.note(f"{word} {size(report.freed_bytes)} in {len(report.removed)} blobs")


def _reasons(why: tuple[str, ...]) -> str:
    more = f" and {len(why) - 3} more" if len(why) > 3 else ""
    return (", ".join(why[:3]) or "came during the collection") + more


@image.command("pin")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_layer)
@click.pass_obj
def pin(app: App, /, *, names: tuple[str, ...]) -> None:
    """Keep what names stand for now, whatever becomes of the names."""
    _pin(app, names, on=True)


@image.command("unpin")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_layer)
@click.pass_obj
def unpin(app: App, /, *, names: tuple[str, ...]) -> None:
    """Take pins back; one whose name has moved on is named with its digest, NAME@sha256:..."""
    _pin(app, names, on=False)


def _pin(app: App, names: tuple[str, ...], *, on: bool) -> None:
    async def work() -> list[LayerManifest]:
        async with app.client() as client:
            change = client.images.pin if on else client.images.unpin
            return [await change(name) for name in names]

    for made in app.wait_for(work):
        if app.as_json:
            app.emit({"name": made.name, "digest": made.digest, "pinned": on})
        else:
            app.line(f"{made.name}@{made.digest}")
