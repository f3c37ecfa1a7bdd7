"""Other people's ways to run one command in a fresh sandbox, in a closed loop.

Usage: python bench/peers.py [--seconds S] [--workers N] [--rounds N]   floor and peers, in turns

- `bwrap`: `bwrap --unshare-all` with the small root bound read-only, its own /proc and /dev. It
  makes all namespaces, but no limit groups and no writable layer.
- `runc`: `runc run` of a prepared bundle with the same root, read-only, with the default
  namespaces, capabilities and masks of `runc spec` and the three limits. It makes no user
  namespace and no overlay (an engine above it would mount that).

Both do less than a sandbox of ours, which is in their favour. The clock of a life runs from
before the program is started until it has been reaped; the client is a C program, because Python
would spend about as much on starting bwrap as bwrap spends itself. The command is the floor's
static no-op.
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from floors import BUILD, Arena, arena, check_floor, run_floor
from harness import BenchmarkFailedError, Party, interleave, run_json


@dataclass(frozen=True)
class Peer:
    """A program that can run here: its name and the command line of one life."""

    name: str
    argv: list[str]


@dataclass
class Tally:
    """Lives and seconds of one party over all rounds."""

    lives: int = 0
    seconds: float = 0.0
    runs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        """Lives of all rounds, divided by their time."""
        return self.lives / self.seconds if self.seconds else 0.0

    def add(self, run: Mapping[str, Any]) -> None:
        """Add the line of JSON that one turn printed."""
        self.lives += run["lives"]
        self.seconds += run["seconds"]
        self.runs.append(dict(run))


def prepare(place: Arena) -> tuple[list[Peer], list[str]]:
    """Find the peers that work on this machine, and for each other one the reason why not."""
    peers, reasons = [], []
    for name, argv_of in (("bwrap", _bwrap), ("runc", _runc)):
        if shutil.which(name) is None:
            reasons.append(f"{name} skipped: not installed")
            continue
        peer = Peer(name, argv_of(place))
        if (trouble := _probe(peer)) is None:
            peers.append(peer)
        else:
            reasons.append(f"{name} skipped: {trouble}")
    return peers, reasons


def _bwrap(place: Arena) -> list[str]:
    mounts = ["--ro-bind", str(place.root), "/", "--proc", "/proc", "--dev", "/dev"]
    return ["bwrap", "--unshare-all", *mounts, "/noop"]


def _runc(place: Arena) -> list[str]:
    bundle = place.place / "bundle"
    bundle.mkdir()
    subprocess.run(["runc", "spec", "--bundle", str(bundle)], check=True, capture_output=True)
    path = bundle / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["process"].update(terminal=False, args=["/noop"])
    config["root"] = {"path": str(place.root), "readonly": True}
    config["linux"]["resources"].update(
        memory={"limit": 256 << 20}, pids={"limit": 64}, cpu={"quota": 100_000, "period": 100_000}
    )
    path.write_text(json.dumps(config), encoding="utf-8")
    # A state directory of its own: nothing of it can be mistaken for another's container.
    state = place.place / "runc"
    return ["runc", "--root", str(state), "run", "--bundle", str(bundle), "{id}"]


def _probe(peer: Peer) -> str | None:
    """Run one life; the end of what it said if it failed."""
    argv = [part.replace("{id}", f"bench-probe-{os.getpid()}") for part in peer.argv]
    done = subprocess.run(argv, check=False, capture_output=True, stdin=subprocess.DEVNULL)
    if done.returncode == 0:
        return None
    return done.stderr.decode(errors="replace").strip()[-200:] or f"status {done.returncode}"


async def run_peer(peer: Peer, *, seconds: float, workers: int) -> dict[str, Any]:
    """Lives of the peer for `seconds`; a life that failed fails the benchmark."""
    argv = [str(BUILD / "spawnloop"), str(seconds), str(workers), *peer.argv]
    return await run_json(argv, limit_seconds=seconds + 60)


class Rivals:
    """The floor and the peers of one run: a turn each for `interleave`, and their sums."""

    def __init__(
        self, place: Arena, *, floor_seconds: float, peer_seconds: float, workers: int
    ) -> None:
        self.peers, self.reasons = prepare(place)
        self.tallies = {name: Tally() for name in ["floor", *(peer.name for peer in self.peers)]}
        self._place = place
        self._floor_seconds = floor_seconds
        self._peer_seconds = peer_seconds
        self._workers = workers

    @property
    def parties(self) -> dict[str, Party]:
        """One turn of the floor and of every peer, by name."""
        return {"floor": self._floor, **{peer.name: self._turn_of(peer) for peer in self.peers}}

    @property
    def peer_rates(self) -> dict[str, float]:
        """Lives per second of every peer that runs here."""
        return {peer.name: self.tallies[peer.name].per_second for peer in self.peers}

    def check(self) -> None:
        """Fail the benchmark if a peer was faster than the floor."""
        check_floor(self.tallies["floor"].per_second, self.peer_rates)

    async def _floor(self, _: int) -> None:
        run = await run_floor(self._place, seconds=self._floor_seconds, workers=self._workers)
        self.tallies["floor"].add(run)

    def _turn_of(self, peer: Peer) -> Party:
        async def turn(_: int) -> None:
            run = await run_peer(peer, seconds=self._peer_seconds, workers=self._workers)
            self.tallies[peer.name].add(run)

        return turn


async def compare(seconds: float, workers: int, rounds: int) -> Rivals:
    with arena() as place:
        rivals = Rivals(place, floor_seconds=seconds, peer_seconds=seconds, workers=workers)
        await interleave(rounds, rivals.parties)
    return rivals


def main() -> int:
    parser = argparse.ArgumentParser(description="Floor and peers in turns.")
    parser.add_argument("--seconds", type=float, default=5.0, help="per party and round")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rivals = asyncio.run(compare(options.seconds, options.workers, options.rounds))
    for name, tally in rivals.tallies.items():
        middle = sorted(run["p50_us"] for run in tally.runs)[len(tally.runs) // 2]
        worst = max(run["p99_us"] for run in tally.runs)
        print(
            f"{name:<6} workers={options.workers} {tally.per_second:8.1f}/s  n={tally.lives:<6} "
            f"p50 {middle / 1000:.2f} ms  p99 (worst round) {worst / 1000:.2f} ms"
        )
    for reason in rivals.reasons:
        print(reason)
    try:
        rivals.check()
    except BenchmarkFailedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
