"""A network link for tests and benchmarks: another process relays, slowly, from afar, or with faults.

The throttle is a process of its own so that neither the client nor the server lends it their time
(decision 39). It ends when the block ends, and also if the process that started it dies.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["status", "truncate", "short", "flip", "stall", "cut"]


@dataclass(frozen=True)
class Fault:
    """What happens to a request that matches; the first fault that matches counts.

    status: refused with `status`, an S3 error `code` and `retry_after`; the server does not hear of it.
    truncate: the connection ends after `after` bytes of the answer's body; its head promised more.
    short: the answer is `after` bytes (at least one) too short, and its head agrees.
    flip: one bit is wrong in the body's byte `after`.
    stall: nothing comes for `seconds` after `after` bytes (0: before the head).
    cut: the connection is reset after `after` bytes (0: before the server hears of it).
    """

    kind: Kind
    match: str = ""  # searched in "METHOD PATH"
    times: int = -1  # requests that it happens to; -1: all
    share: float = 1.0  # of those that match, drawn from a fixed seed
    after: int = 0
    seconds: float = 0.0
    status: int = 503
    code: str = "SlowDown"
    retry_after: int | None = None


@dataclass(frozen=True)
class Counts:
    """What passed since the start or the last `reset`; bytes of bodies only."""

    requests: int
    connections: int
    up: int  # bytes to the server
    down: int  # bytes from it
    in_flight_max: int  # requests at once
    injected: dict[str, int]  # faults by kind


class Link:
    """A link to a server on 127.0.0.1; its own `port` is where clients connect.

    `http=False` relays any protocol, without faults. Methods block for about a millisecond.
    """

    def __init__(
        self, port: int, *, rate: float = 0, latency_s: float = 0, http: bool = True
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "skerry.testing.link_proxy", f"127.0.0.1:{port}",
             "http" if http else "tcp"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/",
        )  # fmt: skip
        self._turn = threading.Lock()
        assert self._process.stdout is not None  # noqa: S101 - it was asked for
        self.port: int = json.loads(self._process.stdout.readline())["port"]
        if rate or latency_s:
            self.set(rate=rate, latency_s=latency_s)

    @property
    def endpoint(self) -> str:
        """URL of the near end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The relay's process, to measure what it costs."""
        return self._process.pid

    def set(self, *, rate: float | None = None, latency_s: float | None = None) -> None:
        """Sets bytes a second (all connections together, each way; 0: no limit) and the delay.

        The delay is added to each request (in TCP mode half of it to each piece, each way) and to
        each new connection.
        """
        given = {"rate": rate, "latency_s": latency_s}
        self._order("set", **{name: value for name, value in given.items() if value is not None})

    def faults(self, *faults: Fault) -> None:
        """Has these faults from now on, and no others."""
        self._order("faults", faults=[dataclasses.asdict(fault) for fault in faults])

    def leave(self) -> None:
        """Is gone: connections are reset, new ones refused."""
        self._order("leave")

    def come_back(self) -> None:
        """Is there again, at the same port."""
        self._order("return")

    def cut(self) -> None:
        """Resets the connections there are; new ones are taken."""
        self._order("cut")

    def counts(self) -> Counts:
        """What passed."""
        said = self._order("counts")
        return Counts(**{item.name: said[item.name] for item in dataclasses.fields(Counts)})

    def log(self) -> Sequence[dict[str, Any]]:
        """The last 100,000 requests: `method`, `path`, `range`, `bytes` of the answer's body."""
        log: list[dict[str, Any]] = self._order("log")["log"]
        return log

    def reset(self) -> None:
        """Counts from zero."""
        self._order("reset")

    def _order(self, do: str, **given: Any) -> dict[str, Any]:
        with self._turn:
            assert self._process.stdin is not None  # noqa: S101 - both were asked for
            assert self._process.stdout is not None  # noqa: S101
            self._process.stdin.write(json.dumps({"do": do, **given}) + "\n")
            self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._process.stdout.readline())
            return answer

    def close(self) -> None:
        """Ends the relay; nothing of it is left."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.terminate()
        self._process.wait()


@contextlib.contextmanager
def link(port: int, *, rate: float = 0, latency_s: float = 0, http: bool = True) -> Iterator[Link]:
    """Gives a link for a block (`Link` says what it takes)."""
    made = Link(port, rate=rate, latency_s=latency_s, http=http)
    try:
        yield made
    finally:
        made.close()
