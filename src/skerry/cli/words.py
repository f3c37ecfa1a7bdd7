"""Sizes, times and counts as people read them."""

from __future__ import annotations

import re


def size(count: float) -> str:
    """Returns a number of bytes like `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count % 1 == 0 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def age(seconds: float) -> str:
    """Returns a duration like `3 s`, `12 min`, `4 h`, `9 d`."""
    seconds = max(0.0, seconds)
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86_400:.0f} d"


def plural(count: int, word: str) -> str:
    """Returns `1 task`, `2 tasks`, `3 sandboxes`."""
    if count == 1:
        return f"1 {word}"
    return f"{count} {word}{'es' if word.endswith(('x', 's')) else 's'}"


# What moves a cursor, sets a title, answers a question or turns text around; our own colours stay.
_COMMANDING = re.compile(
    "\x1b\\[(?:0|1|2|3[0-7])m"
    "|[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def harmless(text: str) -> str:
    """Returns text for a terminal in which nothing that others wrote can command it."""
    return _COMMANDING.sub(lambda found: _escaped(found.group()), text)


def _escaped(found: str) -> str:
    return found if len(found) > 1 else ascii(found)[1:-1]


def shown(name: str) -> str:
    """Returns a file's name for a terminal: what is no printable text is escaped."""
    return name if name.isprintable() else ascii(name)[1:-1]
