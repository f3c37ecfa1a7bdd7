"""Which names and ports a sandbox may reach. Pure: no look-ups, no sockets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from skerry.spec.network import PORTS, Entry


class Rule(NamedTuple):
    """One allowed host; `source` is the entry of the user that it comes from."""

    host: str  # canonical; of a wildcard what must follow a further label, "" is every name
    wildcard: bool
    port: int | None  # None: PORTS
    source: str

    @classmethod
    def of(cls, entry: Entry, source: str) -> Rule:
        """Returns the rule of an entry that names a host."""
        return cls(entry.host, entry.wildcard, entry.port, source)

    @property
    def named(self) -> bool:
        """Whether it says which host: `*` does not."""
        return bool(self.host)

    def fits(self, port: int) -> bool:
        """Returns whether it allows the port."""
        return port in PORTS if self.port is None else port == self.port


class Policy:
    """An allowlist. Without rules nothing is allowed."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.rules = tuple(rules)
        self._exact: dict[str, list[Rule]] = {}
        self._below: dict[str, list[Rule]] = {}
        for rule in self.rules:
            (self._below if rule.wildcard else self._exact).setdefault(rule.host, []).append(rule)

    def allows(self, host: str, port: int) -> Rule | None:
        """Returns the rule that allows a canonical host and port, or None."""
        for rule in self._exact.get(host, ()):
            if rule.fits(port):
                return rule
        for parent in _above(host):
            for rule in self._below.get(parent, ()):
                if rule.fits(port):
                    return rule
        return None

    def knows(self, host: str) -> bool:
        """Returns whether some port of the host is allowed: then only the port was wrong."""
        return host in self._exact or any(parent in self._below for parent in _above(host))


def _above(host: str) -> Iterator[str]:
    """Yields what a wildcard that fits the host may end with, longest first; the last is ""."""
    while host:
        host = host.partition(".")[2]
        yield host
