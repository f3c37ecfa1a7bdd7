"""The headers by which a node and its workers speak of an agent's requests for its model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

SANDBOX: Final = "X-Skerry-Sandbox"  # whose request it is
REQUEST: Final = "X-Skerry-Request"  # the name that the node gave it
WAITING: Final = "X-Skerry-Waiting"  # which of that sandbox's requests still wait, by name
HANDED: Final = "X-Skerry-Handed"  # which answers its sandbox has, as `handed_text` spells them
RESUME: Final = "X-Skerry-Resume"  # "1" with an answer: the sandbox goes on when it has it
TENANT: Final = "X-Skerry-Tenant"  # which API token asks, of a trainer's request

_HELD: Final = "held"


def handed_text(handed: Iterable[tuple[str, bool]]) -> str:
    """Returns names of requests, each with whether its sandbox was paused when it got the answer."""
    return ",".join(f"{name};{_HELD}" if held else name for name, held in handed)


def handed_pair(word: str) -> tuple[str, bool]:
    """Returns the name in one word of `handed_text`, and whether its sandbox was paused."""
    name, _, mark = word.partition(";")
    return name, mark == _HELD
