"""A warden for all tests of a process, a zygote of each of the machine's interpreters."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from zygote_stand import Warden, Zygote, pythons


@pytest.fixture(scope="session")
def warden() -> Iterator[Warden]:
    if os.getuid() != 0:
        pytest.skip("makes namespaces: needs root")
    made = Warden()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def newest() -> str:
    """The interpreter for tests of what does not depend on its version."""
    found = pythons()
    return found.get("debian") or next(reversed(found.values()))


@pytest.fixture(scope="module")
def zygote(warden: Warden, newest: str) -> Iterator[Zygote]:
    made = Zygote(warden, newest, ["json", "threading"])
    assert made.report.error is None, made.report
    yield made
    made.stop()
