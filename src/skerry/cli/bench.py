"""`skerry bench`: the benchmarks of the checkout, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click

from skerry.cli.app import App
from skerry.cli.checkout import checkout
from skerry.cli.group import SkerryCommand

NO_CHECKOUT = 2
# Parts of the harness, not benchmarks.
PARTS = {"report", "harness", "peers", "floors", "product", "daemons"}


@click.command(cls=SkerryCommand)
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="All of them, then the README's table.")
@click.option("--quick", is_flag=True, help="About 30 seconds each, with a wider error.")
@click.option("--out", metavar="FILE", help="Write the summary here.")
@click.pass_obj
def bench(app: App, /, *, name: str | None, everything: bool, quick: bool, out: str | None) -> int:
    """Run a benchmark of the checkout: its figure beside a floor or a peer of the same run.

    With --json the last line of stdout is one JSON object. Exit status: that of the benchmark; 2
    outside a checkout.
    """
    root = checkout()
    if root is None:
        app.warn("bench: the benchmarks are in the checkout, and this is an installed package")
        click.echo("  clone the repository and run `make bench` there", err=True)
        return NO_CHECKOUT
    known = names(root)
    if everything and (name or out):
        raise click.UsageError("--all takes neither a name nor --out")
    if everything:
        return run_all(app, root, known, quick=quick)
    if name is None:
        for each in known:
            app.emit({"name": each}) if app.as_json else app.line(each)
        app.note("name one of these, or --all")
        return 0
    if name not in known:
        raise click.UsageError(f"there is no benchmark {name!r}; there are: {', '.join(known)}")
    return run_one(app, root, name, quick=quick, out=out)


def names(root: Path) -> list[str]:
    """Returns the benchmarks of a checkout; `NAME_part.py` beside `NAME.py` is a part of that one."""
    stems = {path.stem for path in (root / "bench").glob("*.py")}
    return sorted(stem for stem in stems - PARTS if stem.rpartition("_")[0] not in stems - PARTS)


def run_one(app: App, root: Path, name: str, *, quick: bool, out: str | None) -> int:
    """Runs one with our own interpreter and streams; returns its status."""
    argv = [sys.executable, str(root / "bench" / f"{name}.py")]
    argv += ["--quick"] * quick + ["--json"] * app.as_json
    if out:
        argv += ["--out", str(Path(out).resolve())]
    return subprocess.run(argv, check=False, cwd=root).returncode


def run_all(app: App, root: Path, known: list[str], *, quick: bool) -> int:
    """Runs all, one after the other, then draws the README's table; 1 if one of them failed."""
    statuses = {}
    for number, name in enumerate(known, 1):
        app.note(f"[{number}/{len(known)}] {name}")
        statuses[name] = run_one(app, root, name, quick=quick, out=None)
    failed = [name for name, status in statuses.items() if status != 0]
    if not quick:
        report = [sys.executable, str(root / "bench/report.py"), str(root / "README.md")]
        if subprocess.run(report, check=False, cwd=root).returncode != 0:
            failed.append("report")
        else:
            app.note("the table of README.md is up to date")
    if failed:
        app.warn(f"bench: failed: {', '.join(failed)}")
    elif app.as_json:
        click.echo(json.dumps({"benchmarks": known, "failed": failed}))
    return 1 if failed else 0
