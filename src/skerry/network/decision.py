"""What the proxy decided: kept for a look, and a line of the log each."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

import msgspec

from skerry.wire.network import Decision, Totals

LINES_MAX = 100  # of the log, a sandbox, within LINES_S: what is inside must not fill the disk
LINES_S = 10.0

log = logging.getLogger("skerry.network")
_to_json: Final = msgspec.json.Encoder().encode


class Decisions:
    """The last decisions about one sandbox, oldest first, and how many there were of each kind."""

    def __init__(
        self, sandbox: str, kept_max: int, wall: Callable[[], float], all_counts: Counter[str]
    ) -> None:
        self._all_counts = all_counts  # of every sandbox
        self._sandbox = sandbox
        self._wall = wall
        self._kept: deque[Decision] = deque(maxlen=kept_max)
        self._counts = {"allowed": 0, "refused": 0, "failed": 0}
        self._window = 0.0
        self._lines = 0

    def add(
        self,
        verdict: str,
        *,
        method: str,
        host: str,
        port: int,
        why: str,
        address: str | None = None,
    ) -> None:
        """Takes a decision: allowed (why: by which entry), refused, failed (outside)."""
        decision = Decision(
            at=round(self._wall(), 3),
            verdict=verdict,
            method=method[:16],
            host=host[:253],
            port=port,
            why=why[:300],
            address=address,
        )
        self._kept.append(decision)
        self._counts[verdict] += 1
        self._all_counts[verdict] += 1
        if not LINES_S > decision.at - self._window >= 0:
            if self._lines > LINES_MAX:
                log.warning("%s %d more decisions", self._sandbox, self._lines - LINES_MAX)
            self._window, self._lines = decision.at, 0
        self._lines += 1
        if self._lines <= LINES_MAX:
            level = logging.INFO if verdict == "allowed" else logging.WARNING
            log.log(level, "%s %s", self._sandbox, _to_json(decision).decode())

    def last(self) -> tuple[Decision, ...]:
        """Returns those that are kept."""
        return tuple(self._kept)

    def totals(self) -> Totals:
        """Returns how many there were."""
        return Totals(**self._counts)
