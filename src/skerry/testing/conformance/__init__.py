"""The conformance suite of the backend seam: every backend runs the same tests.

    class TestMine(BackendConformance):
        known_deviations = {"test_name": "why this backend cannot"}   # such a test must fail

        @pytest.fixture
        async def backend(self): ...    # started; closed afterwards, and nothing left
        @pytest.fixture
        def rootfs(self): ...           # a plan with /bin/sh and the usual small programs

and the methods `kill_first_process` and `restart`. It drives instances through
`skerry.guest.client.GuestClient`, as the node does.
"""

from __future__ import annotations

from skerry.testing.conformance.commands import CommandConformance
from skerry.testing.conformance.files import FileConformance
from skerry.testing.conformance.isolation import IsolationConformance
from skerry.testing.conformance.kit import Box, Conformance, Sink
from skerry.testing.conformance.lifecycle import LifecycleConformance
from skerry.testing.conformance.limits import LimitConformance
from skerry.testing.conformance.sessions import SessionConformance
from skerry.testing.conformance.views import ViewConformance


class BackendConformance(
    CommandConformance,
    FileConformance,
    IsolationConformance,
    LimitConformance,
    LifecycleConformance,
    SessionConformance,
    ViewConformance,
):
    """All parts of the suite."""


__all__ = ["BackendConformance", "Box", "Conformance", "Sink"]
