"""One thing that Skerry holds on this machine, and the processes that hold them."""

from __future__ import annotations

from dataclasses import dataclass

from skerry.backends.shared import proc


@dataclass(frozen=True)
class Thing:
    """One thing; `node` is "" where nothing tells whose it is."""

    kind: str
    what: str
    node: str = ""


@dataclass
class Process:
    """A process of ours, as /proc shows it."""

    pid: int
    words: tuple[str, ...]
    comm: str
    group_of: str  # the node in whose groups it is

    def option(self, name: str) -> str:
        """Returns the value of a long option; "" if it is not there."""
        return proc.option(self.words, name)

    def still_there(self) -> bool:
        """Returns whether the number still means this process."""
        return proc.words(self.pid) == self.words

    def label(self) -> str:
        """Returns a line that tells it from others."""
        return f"{self.pid} {' '.join(self.words)[:100] or self.comm}"
