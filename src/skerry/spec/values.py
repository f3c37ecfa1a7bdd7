"""Values of others that are kept, packed and read again: what they may be."""

from __future__ import annotations

import math
from itertools import chain
from typing import Any, Final

from skerry.errors import InvalidRequest

DEPTH_MAX: Final = 128  # far below what any of the encoders that a body passes through bears
VALUES_MAX: Final = 1 << 22  # each may cost a hundred bytes of memory for two in the body
INTEGERS: Final = range(-(1 << 63), 1 << 64)  # that msgpack can say
_CONTAINERS: Final = frozenset({list, tuple, dict})
_JSON: Final = _CONTAINERS | {type(None), bool, int, float, str}


def check_value(value: Any, what: str, *, finite: bool = False) -> None:
    """Raises InvalidRequest unless everything that handles it later can say it again.

    What is read here is packed, nested in pages and read again at other depths of the stack: one that
    only just passed would keep a whole page from its reader. With `finite`, numbers that JSON cannot
    hold are refused, too.
    """
    _check([value], what, finite=finite, json=False)


def check_json_like(value: Any, what: str) -> None:
    """Raises InvalidRequest unless JSON says the same: no bytes, times, numbers that are not finite.

    Otherwise as `check_value`. Keys of dicts are texts.
    """
    _check([[value]], what, finite=True, json=True)


def _check(level: list[Any], what: str, *, finite: bool, json: bool) -> None:
    # A value may have millions of parts: whatever is done for each of them is done by C code.
    count = -1 if json else 0
    for _ in range(DEPTH_MAX + json):
        dicts = [one for one in level if isinstance(one, dict)]
        below = list(chain.from_iterable(one for one in level if not isinstance(one, dict)))
        below += chain.from_iterable(map(dict.values, dicts))
        count += len(below)
        if count > VALUES_MAX:
            raise InvalidRequest(f"{what} has more than {VALUES_MAX} values")
        kinds = set(map(type, below))
        if json:
            for strange in kinds - _JSON:
                raise InvalidRequest(f"{what} has a {strange.__name__}, which JSON cannot say")
            if set(map(type, chain.from_iterable(dicts))) - {str}:
                raise InvalidRequest(f"{what} has a key that is no text")
        if int in kinds:
            integers = [one for one in below if type(one) is int]
            if min(integers) not in INTEGERS or max(integers) not in INTEGERS:
                raise InvalidRequest(f"{what} has an integer of more than 64 bits")
        if finite and float in kinds:
            floats = [one for one in below if type(one) is float]
            if not all(map(math.isfinite, floats)):
                raise InvalidRequest(f"{what} has a number that is not finite")
        level = []
        if not kinds.isdisjoint(_CONTAINERS):
            level = [one for one in below if isinstance(one, dict | list | tuple)]
        if not level:
            return
    raise InvalidRequest(f"{what} is nested more than {DEPTH_MAX} deep")
