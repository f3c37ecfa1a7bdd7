"""The fake passes what needs no kernel. It claims neither limits nor isolation: it has none."""

from __future__ import annotations

from typing import ClassVar

import pytest

from skerry.backends.api import Exit
from skerry.spec.layers import RootfsPlan
from skerry.testing.conformance.commands import CommandConformance
from skerry.testing.conformance.files import FileConformance
from skerry.testing.conformance.lifecycle import LifecycleConformance
from skerry.testing.conformance.sessions import SessionConformance
from skerry.testing.conformance.views import ViewConformance
from skerry.testing.fake import FakeBackend

PROCESSES = "a fake program is no process: it has no children, descriptors or disposition"
SHELL = "the fake's shell knows a few words joined by ; and && only"
FILES = "the fake enforces no permissions and shares nothing with a kernel's overlay"


class TestFake(
    CommandConformance,
    FileConformance,
    LifecycleConformance,
    SessionConformance,
    ViewConformance,
):
    patience_s = 2.0
    known_deviations: ClassVar[dict[str, str]] = {
        "test_file_without_x_bit_is_a_result": FILES,
        "test_user_by_number_and_group": SHELL,
        "test_user_by_name_has_its_home": SHELL,
        "test_timeout_ends_double_forked_descendants": PROCESSES,
        "test_cancel_ends_double_forked_descendants": PROCESSES,
        "test_natural_end_leaves_daemons_alive": PROCESSES,
        "test_daemon_that_holds_the_pipes_does_not_hold_the_result": PROCESSES,
        "test_signal_reaches_every_process": PROCESSES,
        "test_broken_pipe_ends_the_writer": PROCESSES,
        "test_command_inherits_no_other_descriptors": PROCESSES,
        "test_terminal_has_its_size": "the fake has no terminals",
        "test_users_have_their_own_rights": FILES,
        "test_file_written_by_a_command_is_read_by_the_helper": SHELL,
        "test_pause_stops_and_resume_goes_on": SHELL,
        "test_snapshot_is_consistent_and_shows_what_was_written": SHELL,
        "test_snapshot_loses_no_acknowledged_write": SHELL,
    }

    @pytest.fixture
    async def backend(self):
        made = FakeBackend()
        await made.start()
        yield made
        await made.close(keep_instances=False)
        assert not made.world.instances

    @pytest.fixture
    def rootfs(self):
        return RootfsPlan(())

    def kill_first_process(self, instance):
        instance.die(Exit(signal=9))

    async def restart(self, backend):
        second = FakeBackend(world=backend.world)
        await second.start()
        return second

    def flood(self, size):
        return ("flood", str(size))
