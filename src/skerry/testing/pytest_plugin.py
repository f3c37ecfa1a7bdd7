"""pytest plugin: the fixture `census`, and rewritten assertions in the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from skerry.testing import census as census_module

pytest.register_assert_rewrite("skerry.testing.conformance")


@pytest.fixture
def census() -> Iterator[census_module.Watch]:
    """Fails a test that leaves something behind on this machine.

    Give it the processes and directories to be watched more closely: `census.watch(pids, places)`.
    """
    watch = census_module.Watch()
    yield watch
    left = watch.left()
    if left:
        pytest.fail("left behind:\n  " + "\n  ".join(left), pytrace=False)
