"""What the relay of `link_proxy` is made of: a bounded pipe, rules for faults, HTTP messages."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field

SLICE = 64 * 1024  # bytes that pass between two looks at rate and faults
HEAD_MAX = 64 * 1024
LOG_MAX = 100_000


class Pipe:
    """A direction of the link: bytes pass at the rate; waits add up to it exactly, however coarse."""

    def __init__(self) -> None:
        self.rate = 0.0  # bytes a second; 0: no limit
        self.total = 0
        self._free_at = 0.0

    async def take(self, count: int) -> None:
        """Returns when that many bytes have passed."""
        self.total += count
        if self.rate <= 0:
            return
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now - 0.005) + count / self.rate
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)


@dataclass
class Rule:
    """A fault for the requests that match it (`skerry.testing.link.Fault` says what the words mean)."""

    kind: str
    match: str = ""
    times: int = -1
    share: float = 1.0
    after: int = 0
    seconds: float = 0.0
    status: int = 503
    code: str = "SlowDown"
    retry_after: int | None = None
    pattern: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        self.pattern = re.compile(self.match)


@dataclass
class Message:
    """The head of a request or an answer."""

    first: str
    headers: list[tuple[str, str]]

    def header(self, name: str) -> str | None:
        """Returns a header's value."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    def put(self, name: str, value: str) -> None:
        """Replaces a header."""
        self.headers = [(key, old) for key, old in self.headers if key.lower() != name]
        self.headers.append((name, value))

    def encode(self) -> bytes:
        """Returns it as it is sent."""
        lines = [self.first, *(f"{key}: {value}" for key, value in self.headers), "", ""]
        return "\r\n".join(lines).encode("latin-1")
