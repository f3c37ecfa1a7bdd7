"""Conformance: sessions, the shells that keep their state."""

# ruff: noqa: D102, S101 - tests: their names say it, and asserting is their purpose

from __future__ import annotations

import asyncio
import os

import pytest

from skerry.errors import NotFound, SkerryError
from skerry.guest import shells
from skerry.guest.api import Kind, Operation, Outcome, Stream
from skerry.guest.session import RunningSession, SessionCommand
from skerry.testing.conformance.kit import Box, Conformance, Sink


class SessionConformance(Conformance):
    """State, ends, reconnections."""

    @pytest.fixture
    async def session(self, box: Box) -> RunningSession:
        """A session of /bin/sh."""
        words = tuple(map(os.fsencode, shells.argv("/bin/sh")))
        session = box.client.open_session(
            Operation(handle=1000, op_id=b"session-session-", kind=Kind.SESSION, argv=words)
        )
        async with asyncio.timeout(self.patience_s):
            await session.started
        return session

    async def in_session(
        self, session: RunningSession, script: str, *, timeout_ms: int = 0
    ) -> tuple[Outcome, bytes]:
        """Runs a script to its end."""
        sink = Sink()
        command = await session.execute(
            session.seq + 1, os.fsencode(script), sink, timeout_ms=timeout_ms, no_output_ms=0
        )
        return await self.finish(command, sink)

    async def finish(self, command: SessionCommand, sink: Sink) -> tuple[Outcome, bytes]:
        async with asyncio.timeout(self.patience_s):
            outcome = await command.wait()
        command.acknowledge()
        return outcome, bytes(sink.output[Stream.STDOUT])

    async def test_session_keeps_what_was_set(self, session: RunningSession) -> None:
        outcome, output = await self.in_session(session, "export A=1; cd /; echo out")
        assert (outcome.exit_code, output) == (0, b"out\n")
        assert b"A=1\n" in (await self.in_session(session, "env"))[1]
        outcome, _ = await self.in_session(session, "exit 3")
        assert (outcome.exit_code, outcome.reset) == (3, False)
        assert b"A=1\n" in (await self.in_session(session, "env"))[1]

    async def test_session_outlives_the_timeout_of_a_command(self, session: RunningSession) -> None:
        await self.in_session(session, "export A=1")
        outcome, output = await self.in_session(
            session, "echo begun; sleep 1000; echo never", timeout_ms=200
        )
        assert (outcome.timed_out, outcome.signal, output) == (True, 9, b"begun\n")
        assert b"A=1\n" in (await self.in_session(session, "env"))[1]

    async def test_session_command_is_found_by_a_new_connection(
        self, box: Box, session: RunningSession
    ) -> None:
        await self.in_session(session, "export A=1; echo before")
        sink = Sink()
        command = await session.execute(
            2, b"echo a; sleep 0.5; echo b", sink, timeout_ms=0, no_output_ms=0
        )
        await box.connect()
        with pytest.raises(SkerryError):
            await command.wait()
        again = box.client.attach_session(1000, b"session-session-", (2, sink))
        async with asyncio.timeout(self.patience_s):
            await again.started
        assert again.seq == 2
        assert again.resumed is not None
        assert (await self.finish(again.resumed, sink))[1] == b"a\nb\n"
        assert b"A=1\n" in (await self.in_session(again, "env"))[1]

    async def test_session_ends_with_all_that_runs_in_it(
        self, box: Box, session: RunningSession
    ) -> None:
        command = await session.execute(1, b"sleep 1000", Sink(), timeout_ms=0, no_output_ms=0)
        session.close()
        async with asyncio.timeout(self.patience_s):
            outcome = await command.wait()
            await session.wait()
        assert (outcome.cancelled, outcome.signal) == (True, 9)
        session.acknowledge_end()
        await box.client.ping()
        await box.connect()
        with pytest.raises(NotFound):
            box.client.attach_session(1000, b"session-session-", None)
