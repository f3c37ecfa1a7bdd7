"""`skerry doctor`: what this machine can do, what is missing, what that costs and how to get it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from skerry.cli.app import App
from skerry.cli.checks import host_checks
from skerry.cli.features import feature_checks
from skerry.cli.findings import Check
from skerry.cli.group import SkerryCommand
from skerry.cli.node import node_config, read_config
from skerry.cli.options import DEFAULT_IMAGE
from skerry.cli.store_checks import store_check
from skerry.errors import SkerryError

if TYPE_CHECKING:
    from skerry.aio import Client
    from skerry.wire.http import BlobsHealth
    from skerry.wire.workers import WorkerInfo

BASE = "base image"
COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "missing": "red"}


@click.command(cls=SkerryCommand)
@click.option("--config", metavar="FILE", help="A node's configuration: try its layer store too.")
@click.pass_obj
def doctor(app: App, /, *, config: str | None) -> int:
    """Say what this machine can do and what is missing, with what to do about it.

    Starts nothing and changes nothing; an object store that --config names is tried with one small
    object, which is removed again. Exit status 1 if sandboxes cannot run here.
    """
    if app.settings.url is not None:
        checks = [app.wait_for(lambda: remote_check(app))]
    else:
        node = None
        if config is not None:
            node = node_config(app.settings, read_config(config), given={})
        network = None if node is None else node.network
        devices = None if node is None else node.devices
        checks = host_checks(app.settings.state, app.settings.run, network, devices)
        checks += feature_checks()
        if node is not None:
            checks.append(store_check(node))
        checks += app.wait_for(lambda: node_checks(app))
    for check in checks:
        if app.as_json:
            app.emit(asdict(check))
        else:
            show(app, check)
    bad = [check.name for check in checks if check.status == "missing"]
    if bad:
        app.note(f"\nSandboxes cannot run here yet: {', '.join(bad)}.")
    elif app.settings.url is None:
        app.note(f"\nSandboxes can run here. {first_step(checks)}")
    return 1 if bad else 0


def first_step(checks: Sequence[Check]) -> str:
    """Returns what works now: a sandbox, or first the image that `default` means."""
    base = next((check for check in checks if check.name == BASE), None)
    if base is not None and f"base/{DEFAULT_IMAGE}" in base.found.split(", "):
        return "Try: skerry run default -- uname -a"
    return (
        f"First: skerry image build base/{DEFAULT_IMAGE} (or skerry demo, which does it too); "
        "then: skerry run default -- uname -a"
    )


def show(app: App, check: Check) -> None:
    """Prints one finding: the fact, and if it is not good, the consequence and the remedy."""
    word = click.style(f"{check.status:<8}", fg=COLOURS[check.status])
    app.line(f"{word} {check.name:<22} {check.found}")
    for text in (check.consequence, check.remedy and f"-> {check.remedy}"):
        if text and check.status != "ok":
            app.line(f"{'':<31} {text}")


async def remote_check(app: App) -> Check:
    """Returns what a remote node says of itself; raises what the connection raises."""
    async with app.client() as client:
        health = await client.health()
    text = ", ".join(f"{name}: {state}" for name, state in health.backends.items())
    usable = "usable" in health.backends.values()
    return Check(
        "node",
        "ok" if usable else "missing",
        f"{health.node}, version {health.version}, {health.sandboxes} sandboxes; {text}",
        "no backend works there",
        "run `skerry doctor` on that machine",
    )


async def node_checks(app: App) -> list[Check]:
    """Returns what the local node says, if one runs; none is started."""
    from skerry import aio
    from skerry.cli.up import answering

    health = await answering(app)
    if health is None:
        return [
            Check("node", "note", f"none answers at {app.settings.socket}",
                  "a client that needs one starts an embedded one", "or run `skerry up`"),
            Check(BASE, "note", "not asked: no node runs"),
        ]  # fmt: skip
    from skerry import __version__

    same = health.version == __version__
    checks = [
        Check(
            "node",
            "ok" if same else "warning",
            f"{health.node} (pid {health.pid}, version {health.version}), "
            f"{health.sandboxes} sandboxes",
            f"this command is version {__version__}",
            "`skerry up --stop`, then `skerry up`: live sandboxes are taken over",
        )
    ]
    if health.blobs is not None:
        checks.append(blobs_check(health.blobs))
    checks += workers_check(health.workers)
    async with aio.connect(f"unix://{app.settings.socket}") as client:
        checks.append(await base_check(client))
    return checks


def workers_check(workers: Sequence[WorkerInfo]) -> list[Check]:
    """Returns how the workers stand that were ever used."""
    used = [worker for worker in workers if worker.state != "unused"]
    away = [worker for worker in used if worker.state != "ready"]
    if not used:
        return []
    if not away:
        pids = ", ".join(str(worker.pid) for worker in used)
        return [Check("workers", "ok", f"{len(used)} of {len(workers)} run (pid {pids})")]
    first = away[0]
    return [
        Check(
            "workers",
            "warning",
            f"worker {first.worker} does not run: {first.problem or 'it is being started'}",
            "rollouts and model requests of its sandboxes wait for it",
            f"see STATE/workers/{first.worker}.log; the node starts it again by itself",
        )
    ]


def blobs_check(blobs: BlobsHealth) -> Check:
    """Returns how layers are read on demand."""
    found = (
        f"process {blobs.pid}, {blobs.blobs} blobs mounted, {blobs.cached_bytes >> 20} MiB cached, "
        f"{blobs.hits} hits, {blobs.misses} misses, {blobs.verify_failures} verify failures"
    )
    if not blobs.serving:
        return Check("layers on demand", "warning", "not served now",
                     "no sandbox can be made on layers that are read on demand",
                     "see STATE/blobs.log; the node starts the process again by itself")  # fmt: skip
    if blobs.store_failing:
        return Check("layers on demand", "warning", f"the layer store does not answer; {found}",
                     "reads of what is not cached wait, and fail after a while",
                     "see STATE/blobs.log, and `skerry doctor --config`")  # fmt: skip
    if blobs.verify_failures or blobs.faults:
        return Check("layers on demand", "warning", f"{found}, {blobs.faults} reads failed",
                     "bytes came wrong from the store, or not at all",
                     "see STATE/blobs.log; `skerry image verify --all` reads all again")  # fmt: skip
    return Check("layers on demand", "ok", found)


async def base_check(client: Client) -> Check:
    """Returns whether there is an image to start from."""
    try:
        bases = [item.name for item in await client.images.list() if item.name.startswith("base/")]
    except SkerryError as error:
        return Check(BASE, "warning", f"the node cannot list its layers: {error.message}")
    if not bases:
        return Check(
            BASE, "warning", "none", "no sandbox can be made before there is one",
            f"`skerry image build base/{DEFAULT_IMAGE}`; `skerry demo` does it too",
        )  # fmt: skip
    return Check(BASE, "ok", ", ".join(bases))
