"""Values of others that are kept, packed and read again: what they may be."""

from __future__ import annotations

import math
from typing import Any, Final

from skerry.errors import InvalidRequest

DEPTH_MAX: Final = 128  # far below what any of the encoders that a body passes through bears
VALUES_MAX: Final = 1 << 22  # each may cost a hundred bytes of memory for two in the body
INTEGERS: Final = range(-(1 << 63), 1 << 64)  # that msgpack can say
_PLAIN: Final = frozenset({type(None), bool, int, float, str})


def check_value(value: Any, what: str, *, finite: bool = False) -> None:
    """Raises InvalidRequest unless everything that handles it later can say it again.

    What is read here is packed, nested in pages and read again at other depths of the stack: one that
    only just passed would keep a whole page from its reader. With `finite`, numbers that JSON cannot
    hold are refused, too.
    """
    level, count = [value], 0
    for _ in range(DEPTH_MAX):
        below: list[Any] = []
        for one in level:
            below.extend(one.values() if isinstance(one, dict) else one)
        count += len(below)
        if count > VALUES_MAX:
            raise InvalidRequest(f"{what} has more than {VALUES_MAX} values")
        if any(type(one) is int and one not in INTEGERS for one in below):
            raise InvalidRequest(f"{what} has an integer of more than 64 bits")
        if finite and any(type(one) is float and not math.isfinite(one) for one in below):
            raise InvalidRequest(f"{what} has a number that is not finite")
        level = [one for one in below if isinstance(one, dict | list | tuple)]
        if not level:
            return
    raise InvalidRequest(f"{what} is nested more than {DEPTH_MAX} deep")


def check_json_like(value: Any, what: str) -> None:
    """Raises InvalidRequest unless JSON says the same: no bytes, times, numbers that are not finite.

    Otherwise as `check_value`. Keys of dicts are texts.
    """
    level = [value]
    for _ in range(DEPTH_MAX):
        below: list[Any] = []
        for one in level:
            kind = type(one)
            if kind is dict:
                if not all(type(name) is str for name in one):
                    raise InvalidRequest(f"{what} has a key that is no text")
                below.extend(one.values())
            elif kind is list or kind is tuple:
                below.extend(one)
            elif kind not in _PLAIN:
                raise InvalidRequest(f"{what} has a {kind.__name__}, which JSON cannot say")
        if not below:
            break
        level = below
    check_value(value, what, finite=True)
