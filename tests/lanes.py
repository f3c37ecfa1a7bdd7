"""Which tests may run at once (`pytest -n`): files side by side, each file's tests one after the other.

A census tells a node from those of other files by its directories and groups, and what tests make
without a node by the directory of their process. What neither tells apart has one lane: swap is
the machine's, and pages of any process may be in it.
"""

from __future__ import annotations

import pytest

SWAP = (
    "tests/integration/launcher/test_launcher_memory.py",
    "tests/integration/test_census_command.py",
    "tests/integration/test_deep_pause.py",
    "tests/integration/test_idle_reclaim_real.py",
    "tests/security/test_shared_cache.py",
    "tests/unit/density/",
)


def lane(nodeid: str) -> str:
    """Returns what a test shares its process and its turn with."""
    path = nodeid.partition("::")[0]
    return "swap" if path.startswith(SWAP) else path


def scheduler(config: pytest.Config, log):
    """Returns a scheduler that gives whole lanes to processes, in their order."""
    from xdist.scheduler import LoadScopeScheduling

    class Lanes(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return lane(nodeid)

    # Folders with slow files come first; the many small ones even out the end.
    config.option.loadscopereorder = False
    return Lanes(config, log)


def others(config: pytest.Config) -> list[str]:
    """Returns the names of the other processes of this run; none if there is only this one."""
    known = getattr(config, "workerinput", None)
    if known is None:
        return []
    workers = [f"gw{at}" for at in range(known["workercount"])]
    return [worker for worker in workers if worker != known["workerid"]]
