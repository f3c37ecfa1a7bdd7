"""The figures of a soak: a line an epoch, and what must be flat.

Held to, over the epochs of one process after the first two (which warm it up):

- resident memory of node, launcher and worker: a least-squares slope of at most SLOPE_KIB an epoch, once
  there are SLOPE_EPOCHS of them;
- open descriptors of each: at most FDS_SPREAD above the lowest seen at an epoch's end (idle slots, of
  which the launcher holds two descriptors each, are taken off);
- threads of the node: at most THREADS_MAX;
- the journal: at most JOURNAL_KIB at any epoch's end, for next to nothing lives then: the segments that
  it keeps, one that is filled while the oldest is emptied, one that lies ready, and what file systems
  add. Nothing waits to be shipped, for the store is there. An hour takes no more than ten minutes do.

Latencies are reported; the last quarter's p50 of a command may be at most LATENCY_RATIO that of the
first, which only a real drift exceeds on a shared machine.
"""

from __future__ import annotations

from itertools import groupby

from skerry.trajectory.journal.journal import SEGMENT_BYTES, SEGMENTS_KEPT
from soak.host import Sample
from soak.judge import Judge, rank, slope

WARM = 2
SLOPE_EPOCHS = 5
SLOPE_KIB = 1024.0
FDS_SPREAD = 64
THREADS_MAX = 64
JOURNAL_KIB = ((SEGMENTS_KEPT + 2) * SEGMENT_BYTES >> 10) + 1024
LATENCY_RATIO = 4.0


class Figures:
    """Collects one sample an epoch."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.latencies: list[tuple[float, float]] = []
        self.told = 0

    def take(
        self, number: int, sample: Sample, times: dict[str, list[float]], seconds: float
    ) -> str:
        """Adds an epoch; returns its line."""
        self.samples.append(sample)
        runs, creates = times.get("run", []), times.get("create", [])
        self.latencies.append((rank(runs, 50), rank(runs, 99)))
        done = sum(len(values) for kind, values in times.items() if " " not in kind)
        return (
            f"epoch {number:>3}: {seconds:5.1f} s, {done:>5} operations, "
            f"run {rank(runs, 50) * 1e3:5.1f}/{rank(runs, 99) * 1e3:7.1f} ms, "
            f"create {rank(creates, 50) * 1e3:5.1f}/{rank(creates, 99) * 1e3:7.1f} ms, "
            f"node {sample.node_kib >> 10} MiB {sample.node_fds} fds {sample.node_threads} threads, "
            f"launcher {sample.launcher_kib >> 10} MiB {sample.launcher_fds} fds, "
            f"worker {sample.worker_kib >> 10} MiB {sample.worker_fds} fds, "
            f"{sample.slots} slots, journal {sample.journal_kib >> 10} MiB"
        )

    def drifts(self) -> list[str]:
        """Returns what is not flat."""
        out = []
        for what, pid, values in (
            ("node", lambda s: s.pid, lambda s: s.node_kib),
            ("launcher", lambda s: s.launcher, lambda s: s.launcher_kib),
            ("worker", lambda s: s.worker, lambda s: s.worker_kib),
        ):
            for _, group in groupby(self.samples, key=pid):
                run = [values(sample) for sample in group][WARM:]
                if len(run) >= SLOPE_EPOCHS and slope(run) > SLOPE_KIB:
                    out.append(f"the {what}'s memory grows by {slope(run):.0f} KiB an epoch: {run}")
        late = self.samples[WARM:]
        nodes = [sample.node_fds for sample in late]
        launchers = [sample.launcher_fds - 2 * sample.slots for sample in late]
        workers = [sample.worker_fds for sample in late if sample.worker]
        for what, counts in (("node", nodes), ("launcher", launchers), ("worker", workers)):
            if counts and max(counts) - min(counts) > FDS_SPREAD:
                out.append(f"the {what}'s descriptors go from {min(counts)} to {max(counts)}")
        if any(sample.node_threads > THREADS_MAX for sample in late):
            out.append(f"the node has {max(s.node_threads for s in late)} threads")
        if any(sample.journal_kib > JOURNAL_KIB for sample in late):
            out.append(f"the journal takes {max(s.journal_kib for s in late) >> 10} MiB")
        quarter = len(self.latencies) // 4
        if quarter >= 2:
            first = sorted(p50 for p50, _ in self.latencies[:quarter])[quarter // 2]
            last = sorted(p50 for p50, _ in self.latencies[-quarter:])[quarter // 2]
            if last > first * LATENCY_RATIO:
                out.append(f"a command's p50 went from {first * 1e3:.1f} to {last * 1e3:.1f} ms")
        return out

    def summary(self, judge: Judge, *said: str) -> list[str]:
        """Prints the summary, with what else is said; returns every violation."""
        bad = [*judge.violations, *self.drifts()]
        for line in filter(None, said):
            print(line)
        for title, counts in (
            ("faults", judge.faults),
            ("done", judge.done),
            ("errors, all typed and explained unless listed below", judge.errors),
            ("excused by a fault", judge.excused),
        ):
            print(f"{title}: " + ", ".join(f"{name} {n}" for name, n in sorted(counts.items())))
        for line in bad:
            print(f"VIOLATION {line}")
        print(f"soak: {len(self.samples)} epochs, {sum(judge.done.values())} operations, ", end="")
        print(f"{sum(judge.faults.values())} faults, {len(bad)} violations")
        return bad
