"""`skerry trace diff`, `export` and `stats`: what is made of trajectories."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from skerry.cli.app import App
from skerry.cli.group import SkerryCommand
from skerry.cli.trace.places import Place, Traces, named, one_named, open_traces, store_options
from skerry.cli.trace.view import brief, came, cut, inert
from skerry.cli.words import age, size
from skerry.errors import InvalidRequest, LayerDamaged, NotFound
from skerry.sdk.inturn import in_thread
from skerry.sdk.trajectories import unless_gone

if TYPE_CHECKING:
    from skerry.spec.trajectory import Event, TrajectoryInfo
    from skerry.trajectory.reports.difference import Pair
    from skerry.trajectory.reports.export import Writer
    from skerry.trajectory.reports.stats import TrajectoryStats

MARKS = {"same": " ", "request": "!", "outcome": "~", "left_only": "<", "right_only": ">"}
DIFFERENT = 1


@click.command("diff", cls=SkerryCommand)
@click.argument("left", metavar="ONE")
@click.argument("right", metavar="OTHER")
@click.option(
    "--all", "everything", is_flag=True, help="All operations [around the first difference]."
)
@store_options
@click.pass_obj
def diff(
    app: App,
    /,
    *,
    left: str,
    right: str,
    everything: bool,
    store: str | None,
    config: str | None,
) -> int:
    """Show two trajectories side by side, and where they first differ.

    Each is a sandbox, or the key of a rollout with one sandbox. Marks: ! another request, ~ the same
    request with another outcome, < and > only on one side. Times and ids do not count. Exit status 1
    if they differ.
    """
    place = Place(store, config)
    return app.wait_for(lambda: _diff(app, (left, right), place, everything=everything))


async def _diff(app: App, names: tuple[str, str], place: Place, *, everything: bool) -> int:
    async with open_traces(app, place) as traces:
        infos = [await one_named(traces, name) for name in names]
        left, right = (traces.events(info.sandbox) for info in infos)
        view = _Side(app, everything=everything)
        if not app.as_json:
            view.head([info.sandbox for info in infos])
        await in_thread(view.take, left, right)
    return view.end()


class _Side:
    """Two columns; without `everything` three operations before the first difference, ten after it."""

    def __init__(self, app: App, *, everything: bool) -> None:
        self._app = app
        self._everything = everything
        self._width = max(40, (shutil.get_terminal_size((120, 0)).columns - 10) // 2)
        self._before: list[Pair] = []
        self._first: Pair | None = None
        self._count = self._differences = self._after = 0

    def head(self, sandboxes: list[str]) -> None:
        """Says what stands in which column."""
        self._app.line(
            click.style(f"{'':>7}{sandboxes[0]:<{self._width}} {sandboxes[1]}", bold=True)
        )

    def take(self, left: Iterable[Event], right: Iterable[Event]) -> None:
        """Compares, and shows what is to be shown."""
        from skerry.trajectory.reports.difference import Kind, compare

        for pair in compare(left, right):
            self._count += 1
            differs = pair.kind is not Kind.SAME
            self._differences += differs
            if differs and self._first is None:
                self._first = pair
                for one in self._before:
                    self._show(one)
                self._before.clear()
            if self._everything or self._first is not None:
                self._after += 1
                if self._everything or self._after <= 10:
                    self._show(pair)
            else:
                self._before = [*self._before, pair][-3:]

    def end(self) -> int:
        """Says how it came out; returns the exit status."""
        first = self._first
        event = first and (first.left or first.right)
        if self._app.as_json:
            ordinal = event.ordinal if event else None
            self._app.emit(
                {
                    "operations": self._count,
                    "differences": self._differences,
                    "first_difference": ordinal,
                }
            )
        elif first is None or event is None:
            self._app.line(f"the same in all {self._count} operations")
        else:
            from skerry.trajectory.reports.difference import asked_apart

            fields = ", ".join(asked_apart(first))
            how = f"{first.kind}: {inert(fields)}" if fields else first.kind
            self._app.line(
                f"first difference at operation {event.ordinal} ({how}); "
                f"{self._differences} of {self._count} differ"
            )
        return DIFFERENT if self._differences else 0

    def _show(self, pair: Pair) -> None:
        if self._app.as_json:
            from skerry.trajectory.reports.export import whole

            sides = {"left": pair.left, "right": pair.right}
            told = {side: None if one is None else whole(one) for side, one in sides.items()}
            self._app.emit({"kind": str(pair.kind), **told})
            return
        event = pair.left or pair.right
        ordinal = event.ordinal if event is not None else 0
        colour = None if pair.kind == "same" else "yellow" if pair.kind == "outcome" else "red"
        mark = MARKS[str(pair.kind)]
        for number, (one, other) in enumerate(
            zip(self._cells(pair.left), self._cells(pair.right), strict=True)
        ):
            lead = f"{ordinal:>5} {mark}" if number == 0 else " " * 7
            line = f"{lead:<7}{one:<{self._width}} {other}"
            self._app.line(click.style(line, fg=colour) if colour else line)

    def _cells(self, event: Event | None) -> tuple[str, str]:
        if event is None:
            return "", ""
        limit = self._width
        return cut(f"{inert(event.action)} {brief(event)}", limit), cut(f"  {came(event)}", limit)


@click.command("export", cls=SkerryCommand)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("-o", "--output", metavar="FILE", required=True, help="`-`: standard output.")
@click.option("--format", "kind", type=click.Choice(["jsonl", "parquet"]), help="[by FILE's name]")
@click.option("--job", metavar="JOB", help="All sandboxes of this job.")
@click.option("--all", "everything", is_flag=True, help="All sandboxes.")
@click.option(
    "--contents", metavar="DIR", help="Long contents too, as files named by their sha256."
)
@store_options
@click.pass_obj
def export(
    app: App,
    /,
    *,
    names: tuple[str, ...],
    output: str,
    kind: str | None,
    job: str | None,
    everything: bool,
    contents: str | None,
    store: str | None,
    config: str | None,
) -> None:
    """Write trajectories to a file: JSON lines, or Parquet (needs skerry[parquet]).

    A NAME is a sandbox or a rollout's key. One line or row is one event. The columns are described
    in docs/guide/trajectories.md.
    """
    if (bool(names), job is not None, everything).count(True) != 1:
        raise InvalidRequest("give names, --job or --all")
    from skerry.trajectory.reports.export import kind_of

    kind = kind or kind_of(output)
    if output == "-" and kind == "parquet":
        raise InvalidRequest("Parquet needs a file: --output FILE")
    work = _Export(app, names, job, output, kind, contents)
    count = app.wait_for(lambda: work.run(Place(store, config)))
    app.note(f"{count} events in {output}")


@dataclass(frozen=True)
class _Export:
    """One export: what, where to, and how."""

    app: App
    names: tuple[str, ...]
    job: str | None
    output: str
    kind: str
    contents: str | None

    async def run(self, place: Place) -> int:
        """Writes; returns how many events there were."""
        from skerry.trajectory.reports.export import Lines
        from skerry.trajectory.reports.export import export as write

        digests: set[str] = set()
        async with open_traces(self.app, place) as traces:
            events = _events(traces, _chosen(traces, self.names, self.job))

            def work(events: Iterable[Event]) -> int:
                if self.contents is not None:
                    events = _noting(events, digests)
                if self.output == "-":
                    return _to_stdout(Lines(sys.stdout.buffer), events)
                return write(events, self.output, self.kind)

            count = await in_thread(work, events)
            for digest in sorted(digests):
                await self._save(traces, digest)
        return count

    async def _save(self, traces: Traces, digest: str) -> None:
        """Writes a content to a file of its name; one that is missing or changed is told, and left."""
        directory = self.contents or ""
        path = os.path.join(directory, digest)
        os.makedirs(directory, exist_ok=True)
        try:
            await in_thread(partial(_write, path + ".part"), traces.blob(digest))
            os.replace(path + ".part", path)
        except (NotFound, LayerDamaged) as error:
            os.unlink(path + ".part")
            self.app.warn(error.message)


def _write(path: str, pieces: Iterable[bytes]) -> None:
    with open(path, "wb") as file:
        file.writelines(pieces)


def _to_stdout(lines: Writer, events: Iterable[Event]) -> int:
    count = 0
    for event in events:
        lines.write([event])
        count += 1
    sys.stdout.flush()
    return count


def _noting(events: Iterable[Event], digests: set[str]) -> Iterator[Event]:
    """Yields the events, and collects which long contents they name."""
    from skerry.spec.trajectory import blobs_of

    for event in events:
        digests.update(blobs_of(event.request))
        digests.update(blobs_of(event.result))
        yield event


async def _chosen(
    traces: Traces, names: tuple[str, ...], job: str | None
) -> AsyncIterator[TrajectoryInfo]:
    if names:
        for name in names:
            for info in await named(traces, name):
                yield info
        return
    async for info in traces.select(job=job):
        yield info


async def _events(traces: Traces, chosen: AsyncIterator[TrajectoryInfo]) -> AsyncIterator[Event]:
    async for info in chosen:
        async for event in unless_gone(traces.events(info.sandbox)):
            yield event


@click.command("stats", cls=SkerryCommand)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--job", metavar="JOB", help="All sandboxes of this job.")
@click.option(
    "--by", type=click.Choice(["sandbox", "rollout", "job"]), default="rollout", help="[rollout]"
)
@store_options
@click.pass_obj
def stats(
    app: App,
    /,
    *,
    names: tuple[str, ...],
    job: str | None,
    by: str,
    store: str | None,
    config: str | None,
) -> None:
    """Sum trajectories up: commands, time at work and between, output, failures by fault.

    BETWEEN is the time from the end of an operation to the begin of the next: what the model, or
    whoever drives the sandbox, took. MODEL counts its answers on record, TOKENS those that it took and
    gave. FAILURES are by whose fault they are; commands that ended with another status than 0 are under
    NONZERO. All sandboxes, if no name is given.
    """
    chosen = (names, job)
    groups = app.wait_for(lambda: _stats(app, chosen, by, Place(store, config)))
    _show_stats(app, by, groups)


async def _stats(
    app: App, chosen: tuple[tuple[str, ...], str | None], by: str, place: Place
) -> dict[str, TrajectoryStats]:
    from skerry.trajectory.reports.stats import TrajectoryStats, stats_of

    groups: dict[str, TrajectoryStats] = {}
    async with open_traces(app, place) as traces:
        async for info in _chosen(traces, *chosen):
            name = {"sandbox": info.sandbox, "rollout": info.rollout, "job": info.job}[by]
            one = await in_thread(stats_of, unless_gone(traces.events(info.sandbox)))
            groups.setdefault(name or info.sandbox, TrajectoryStats()).add(one)
    return groups


def _show_stats(app: App, by: str, groups: dict[str, TrajectoryStats]) -> None:
    if app.as_json:
        from skerry.cli.jsonable import jsonable

        for name, one in groups.items():
            app.emit({by: name, **jsonable(one)})
        return
    app.table(
        [by.upper(), ">SANDBOXES", ">EVENTS", ">COMMANDS", ">NONZERO", ">BUSY", ">BETWEEN",
         ">MODEL", ">TOKENS", ">CPU", ">OUTPUT", "FAILURES"],
        [
            (
                inert(name), one.sandboxes, one.events, one.commands, one.nonzero,
                age(one.busy_s) if one.busy_s >= 10 else f"{one.busy_s:.2f} s",
                age(one.between_s) if one.between_s >= 10 else f"{one.between_s:.2f} s",
                one.model_requests, one.input_tokens + one.output_tokens,
                f"{one.cpu_seconds:.1f} s", size(one.bytes_out), _failures(one),
            )
            for name, one in groups.items()
        ],
    )  # fmt: skip


def _failures(one: TrajectoryStats) -> str:
    words = [f"{count} {inert(fault)}" for fault, count in sorted(one.failures.items())]
    words += [f"{one.unknown} unknown"] if one.unknown else []
    words += [f"{one.timed_out} timed out"] if one.timed_out else []
    return ", ".join(words) or "-"
