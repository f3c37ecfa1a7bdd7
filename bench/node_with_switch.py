"""A node whose record can be switched off and on again, for benchmarks of what it costs.

    python bench/node_with_switch.py node ...            (as `skerry node ...`)

SIGUSR1 switches: from then on records are not encoded, hashed, chained or written, until the next one.
Nothing else differs. Such a node forgets what it did: it is of no other use.
"""

import itertools
import signal
import sys
from typing import Any

from skerry.cli.main import main
from skerry.trajectory.journal.journal import Journal, Position

_real = Journal.append
_seqs = itertools.count(1 << 40)
_off = False


def _append(self: Journal, subject: str, kind: str, data: Any) -> Position:
    if _off:
        return Position(subject, next(_seqs))
    return _real(self, subject, kind, data)


def _switch(*_: object) -> None:
    global _off  # noqa: PLW0603 - the one switch
    _off = not _off


if __name__ == "__main__":
    Journal.append = _append  # type: ignore[method-assign]
    signal.signal(signal.SIGUSR1, _switch)
    sys.exit(main())
