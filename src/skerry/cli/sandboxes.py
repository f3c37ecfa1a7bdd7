"""`skerry ls`, `inspect` and `rm`: sandboxes as a list, one by one, and gone."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import click

from skerry.cli.app import App
from skerry.cli.group import SkerryCommand
from skerry.cli.options import complete_job, complete_sandbox, labels_option
from skerry.cli.words import age, size
from skerry.errors import InvalidRequest, SkerryError
from skerry.spec.limits import CPU_WEIGHT

if TYPE_CHECKING:
    from skerry.aio import Client, SandboxInfo, Usage
    from skerry.spec.layers import MountedLayer
from skerry.spec.sandbox import SandboxSpec

STATES = (
    "creating", "running", "pausing", "paused", "resuming", "stopping", "stopped", "failed",
)  # fmt: skip
ENDED = ("stopped", "failed")


@click.command(cls=SkerryCommand)
@click.option("-a", "--all", "everything", is_flag=True, help="Stopped and failed ones too.")
@labels_option("Only with this label.")
@click.option("--state", type=click.Choice(STATES), help="Only in this state.")
@click.option("--job", metavar="JOB", shell_complete=complete_job, help="Only of this job.")
@click.pass_obj
def ls(
    app: App,
    /,
    *,
    everything: bool,
    labels: tuple[tuple[str, str], ...],
    state: str | None,
    job: str | None,
) -> None:
    """List sandboxes, oldest first."""

    async def work() -> list[SandboxInfo]:
        async with app.client() as client:
            return await client.sandboxes.list(state=state, labels=dict(labels) or None, job=job)

    found = app.wait_for(work)
    if not everything and state is None:
        found = [info for info in found if info.state not in ENDED]
    if app.as_json:
        for info in found:
            app.emit(info)
        return
    if not found:
        app.note("no sandboxes" if everything else "no live sandboxes (-a shows ended ones)")
        return
    now = time.time()
    app.table(
        ["ID", "STATE", "IMAGE", ">AGE", ">COMMANDS", "LABELS"],
        [
            (
                info.id,
                info.state,
                " + ".join(_short(name) for name in info.spec.made_of),
                age(now - info.created),
                info.running_commands,
                " ".join(f"{name}={value}" for name, value in info.spec.labels.items()),
            )
            for info in found
        ],
    )


@click.command(cls=SkerryCommand)
@click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_sandbox)
@click.pass_obj
def inspect(app: App, /, *, ids: tuple[str, ...]) -> None:
    """Show all that is known of sandboxes."""

    async def work() -> list[tuple[SandboxInfo, Usage | None]]:
        async with app.client() as client:
            return [await _look_at(client, sandbox_id) for sandbox_id in ids]

    for info, usage in app.wait_for(work):
        if app.as_json:
            from skerry.cli.jsonable import jsonable

            app.emit({**jsonable(info), "usage": jsonable(usage)})
        else:
            _describe(app, info, usage)


def _cpu_class(spec: SandboxSpec) -> str:
    words = [str(spec.cpu_class)]
    if spec.cpu_weight != CPU_WEIGHT:
        words.append(f"weight {spec.cpu_weight}")
    if spec.cpu_burst:
        words.append(f"bursts of {spec.cpu_burst:g} more")
    return ", ".join(words)


async def _look_at(client: Client, sandbox_id: str) -> tuple[SandboxInfo, Usage | None]:
    sandbox = await client.sandboxes.get(sandbox_id)
    info = await sandbox.info()
    if info.state in ENDED:
        return info, None
    try:
        return info, await sandbox.usage()
    except SkerryError:  # it has ended between the two questions
        return await sandbox.info(), None


def _short(name: str) -> str:
    """Returns a layer's name without the digest that pins it, which `inspect` has."""
    return name.partition("@")[0] or name


def _made_of(info: SandboxInfo) -> list[tuple[str, object]]:
    spec = info.spec
    if spec.restore is not None:
        return [("restored from", info.restored or spec.restore)]
    return [("image", spec.image), ("layers", ", ".join(spec.layers) or "none")]


def _mount(one: MountedLayer) -> str:
    text = f"{one.digest[:19]} {one.mode}"
    return f"{text} DAMAGED (skerry image verify --last --all)" if one.damaged else text


def _describe(app: App, info: SandboxInfo, usage: Usage | None) -> None:
    spec = info.spec
    now = time.time()
    disk = size(spec.disk_bytes) if spec.disk_bytes is not None else "no limit of its own"
    memory = size(spec.memory_bytes)
    limits = f"cpu {spec.cpu:g}, memory {memory}, {spec.pids} processes, disk {disk}"
    rows: list[tuple[str, object]] = [
        ("state", f"{info.state} ({info.reason})" if info.reason else info.state),
        ("backend", spec.backend),
        *_made_of(info),
        ("digests", ", ".join(info.digests)),
        ("mounts", ", ".join(map(_mount, info.mounts))),
        ("limits", limits),
        ("cpu class", _cpu_class(spec)),
        ("network", ", ".join(spec.network) or "loopback only"),
        ("user", spec.user or "the image's, or root"),
        ("directory", spec.workdir or "the image's, or the user's home"),
        ("created", f"{age(now - info.created)} ago"),
        ("last activity", f"{age(now - info.last_activity)} ago"),
        ("running commands", info.running_commands),
        ("outlives its maker", "yes" if spec.detached else "no"),
    ]
    rows += [
        (name, value)
        for name, value in (
            ("rollout", spec.rollout),
            ("job", spec.job),
            ("durability", spec.durability),
        )
        if value is not None
    ]
    if info.parent is not None:
        rows.append(("forked from", info.parent))
    if info.create_ms is not None:
        rows.append(("made in", f"{info.create_ms:.1f} ms"))
    if info.pause_freed_bytes is not None:
        took = f"{info.pause_ms or 0:.0f} ms"
        rows.append(("its last pause", f"gave back {size(info.pause_freed_bytes)} in {took}"))
    if info.expires is not None:
        rows.append(("expires", f"in {age(info.expires - now)}"))
    if spec.job is not None:
        rows.append(("job", spec.job))
    if spec.labels:
        labels = " ".join(f"{name}={value}" for name, value in spec.labels.items())
        rows.append(("labels", labels))
    if usage is not None:
        memory = f"{size(usage.memory_bytes)} (peak {size(usage.memory_peak_bytes)})"
        rows.append(("used", f"{usage.cpu_seconds:.2f} s CPU, {memory}, {usage.pids} processes"))
        if usage.memory_swapped:
            rows.append(("in swap", size(usage.memory_swapped)))
        if usage.oom_kills:
            rows.append(("killed for memory", usage.oom_kills))
    app.line(info.id)
    for name, value in rows:
        app.line(f"  {name:<19} {value}")


@click.command(cls=SkerryCommand)
@click.argument("ids", metavar="ID...", nargs=-1, shell_complete=complete_sandbox)
@click.option("--all", "everything", is_flag=True, help="All sandboxes of the node.")
@labels_option("All with this label.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before --all.")
@click.pass_obj
def rm(
    app: App,
    /,
    *,
    ids: tuple[str, ...],
    everything: bool,
    labels: tuple[tuple[str, str], ...],
    yes: bool,
) -> None:
    """Destroy sandboxes: when this returns, nothing of them is left."""
    if sum((bool(ids), everything, bool(labels))) != 1:
        raise InvalidRequest("give ids, or --all, or --label NAME=VALUE")

    async def find() -> list[str]:
        async with app.client() as client:
            return [info.id for info in await client.sandboxes.list(labels=dict(labels) or None)]

    async def find_ids() -> list[str]:
        # The node counts unknown ids as destroyed: right for repeats, wrong for typing errors.
        async with app.client() as client:
            found = await asyncio.gather(*(client.sandboxes.get(item) for item in ids))
            return list(dict.fromkeys(sandbox.id for sandbox in found))

    async def destroy(wanted: list[str]) -> None:
        async with app.client() as client:
            await client.sandboxes.destroy_many(wanted)

    wanted = app.wait_for(find_ids if ids else find)
    if everything and wanted and not yes and _at_a_terminal(app):
        click.confirm(f"Destroy all {len(wanted)} sandboxes of the node?", abort=True, err=True)
    if wanted:
        app.wait_for(lambda: destroy(wanted))
    else:
        app.note("no sandboxes match")
    for sandbox_id in wanted:
        if app.as_json:
            app.emit({"id": sandbox_id, "destroyed": True})
        else:
            app.line(sandbox_id)


def _at_a_terminal(app: App) -> bool:
    import sys

    return sys.stdin.isatty() and not app.as_json
