"""`skerry commit`, `commits` and `fork`: what a sandbox wrote, as a layer or under new sandboxes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from skerry.cli.app import App
from skerry.cli.group import SkerryCommand
from skerry.cli.options import complete_sandbox, labels_option, seconds
from skerry.cli.words import age, size
from skerry.errors import InvalidRequest

if TYPE_CHECKING:
    from skerry.aio import CommitHandle, SandboxInfo
    from skerry.spec.layers import LayerManifest
    from skerry.wire.commits import CommitInfo

TELL_S = 2.0


@click.command(cls=SkerryCommand)
@click.argument("sandbox_id", metavar="ID", shell_complete=complete_sandbox)
@click.argument("name")
@click.option("--exclude", multiple=True, metavar="PATH", help="Leave this out.")
@click.option("--scrub", multiple=True, metavar="RULE", help="Only these rules, not the default.")
@click.option("--no-scrub", is_flag=True, help="Leave no residue out.")
@click.option("--scrub-git", is_flag=True, help="Leave out what .git has beside HEAD.")
@click.option("--no-wait", is_flag=True, help="Return once it is acknowledged.")
@click.pass_obj
def commit(
    app: App,
    /,
    *,
    sandbox_id: str,
    name: str,
    exclude: tuple[str, ...],
    scrub: tuple[str, ...],
    no_scrub: bool,
    scrub_git: bool,
    no_wait: bool,
) -> None:
    """Make a layer of what a sandbox wrote; it goes on meanwhile.

    NAME is workspace/NAME[:TAG] or toolkit/NAME[:TAG]. All that was written
    before is in it, and nothing that is written after.
    """
    if scrub and no_scrub:
        raise InvalidRequest("give --scrub or --no-scrub")
    rules = scrub if scrub or no_scrub else None

    async def work() -> tuple[CommitHandle, LayerManifest | None]:
        async with app.client() as client:
            sandbox = await client.sandboxes.get(sandbox_id)
            handle = await sandbox.commit(
                name, exclude=exclude, scrub=rules, scrub_git=scrub_git, wait=False
            )
            stood = f"stood still for {handle.freeze_seconds * 1000:.0f} ms"
            app.note(f"acknowledged after {handle.status.seconds * 1000:.0f} ms; {stood}")
            return handle, None if no_wait else await _packed(app, handle)

    handle, layer = app.wait_for(work)
    if app.as_json:
        app.emit(handle.status)
    elif layer is None:
        app.line(handle.id)
    else:
        for taken in layer.scrubbed:
            what = f"{taken.files} left out ({size(taken.bytes)}), first {taken.paths[0]}"
            app.note(f"{taken.rule}: {what}")
        app.line(f"{layer.name} {layer.digest}")


async def _packed(app: App, handle: CommitHandle) -> LayerManifest:
    """Waits for the layer, and tells how far it is when that changes."""
    told = ""
    while True:
        try:
            return await handle.wait(TELL_S)
        except TimeoutError:
            if handle.status.progress != told:
                told = handle.status.progress
                app.note(told)


@click.command(cls=SkerryCommand)
@click.argument("sandbox_id", metavar="[ID]", required=False, shell_complete=complete_sandbox)
@click.pass_obj
def commits(app: App, /, *, sandbox_id: str | None) -> None:
    """List commits under way and the last ones, oldest first."""

    async def work() -> list[CommitInfo]:
        async with app.client() as client:
            return await client.sandboxes.commits(sandbox_id)

    found = app.wait_for(work)
    if app.as_json:
        for info in found:
            app.emit(info)
        return
    if not found:
        app.note("no commits")
        return
    now = time.time()
    app.table(
        ["ID", "SANDBOX", "LAYER", "STATE", ">AGE", "SAYS"],
        [
            (
                info.id,
                info.sandbox,
                info.name,
                info.state,
                age(now - info.acknowledged),
                info.error.message if info.error else info.progress,
            )
            for info in found
        ],
    )


@click.command(cls=SkerryCommand)
@click.argument("sandbox_id", metavar="ID", shell_complete=complete_sandbox)
@click.option("-n", "--count", type=click.IntRange(1), default=1, help="How many; 1.")
@click.option("--partial", is_flag=True, help="As many as can be made, not all or none.")
@click.option("--key", metavar="KEY", help="A repeat with it returns the same ones.")
@click.option("--ttl", type=seconds, metavar="TIME", help="They live that long (90, 10m, 2h).")
@labels_option("Their labels, besides those of ID.")
@click.pass_obj
def fork(
    app: App,
    /,
    *,
    sandbox_id: str,
    count: int,
    partial: bool,
    key: str | None,
    ttl: float | None,
    labels: tuple[tuple[str, str], ...],
) -> None:
    """Make sandboxes that begin with what one has on its disk now.

    Its processes and its memory are not carried over.
    """

    async def work() -> list[SandboxInfo]:
        async with app.client() as client:
            sandbox = await client.sandboxes.get(sandbox_id)
            forks = await sandbox.fork(
                count, all_or_nothing=not partial, key=key, ttl=ttl, labels=dict(labels)
            )
            return [fork.created_as for fork in forks]

    for info in app.wait_for(work):
        if app.as_json:
            app.emit(info)
        else:
            app.line(info.id)
