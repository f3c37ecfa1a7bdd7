"""pytest plugin: the fixtures `census`, `s3_server` and `s3_link`, and rewritten assertions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from skerry.testing import census as census_module

if TYPE_CHECKING:
    from skerry.testing.link import Link
    from skerry.testing.s3_server import S3Server

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


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A real S3 server on loopback for the whole run; tests keep apart by prefixes of their own."""
    from skerry.testing import s3_server as module

    if reason := module.missing():
        pytest.skip(reason)
    with module.S3Server().running() as server:
        yield server


@pytest.fixture
def s3_link(s3_server: S3Server) -> Iterator[Link]:
    """A link to that server, which can be slow, broken or gone."""
    from skerry.testing.link import link

    with link(s3_server.port) as made:
        yield made
