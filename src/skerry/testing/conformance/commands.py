"""Conformance: what a command is and how it ends."""

# ruff: noqa: D102, S101, S108 - tests: their names say it, and asserting is their purpose

from __future__ import annotations

import asyncio
import time

import pytest

from skerry.errors import Conflict, Unavailable
from skerry.guest.api import Operation, Stream
from skerry.testing.conformance.kit import Box, Conformance, Sink

EXEC_ENOENT = 2
EXEC_EACCES = 13


class CommandConformance(Conformance):
    """Ends, places, output, input, trees of processes."""

    async def test_exit_code_is_reported(self, box: Box) -> None:
        assert (await box.run("true")).outcome.exit_code == 0
        assert (await box.sh("exit 7")).outcome.exit_code == 7

    async def test_signal_is_reported(self, box: Box) -> None:
        outcome = (await box.sh("kill -TERM $$")).outcome
        assert (outcome.exit_code, outcome.signal) == (None, 15)

    async def test_missing_program_is_a_result(self, box: Box) -> None:
        outcome = (await box.run("frobnicate-nowhere")).outcome
        assert (outcome.error_step, outcome.errno) == ("exec", EXEC_ENOENT)

    async def test_file_without_x_bit_is_a_result(self, box: Box) -> None:
        outcome = (await box.run("/etc/passwd")).outcome
        assert (outcome.error_step, outcome.errno) == ("exec", EXEC_EACCES)

    async def test_missing_cwd_is_a_result(self, box: Box) -> None:
        outcome = (await box.run("true", cwd=b"/no/such/place")).outcome
        assert (outcome.error_step, outcome.errno) == ("cwd", EXEC_ENOENT)

    async def test_unknown_user_is_a_result(self, box: Box) -> None:
        assert (await box.run("true", user=b"nosuchuser")).outcome.error_step == "user"

    async def test_cwd_is_where_it_runs(self, box: Box) -> None:
        assert (await box.run("pwd", cwd=b"/tmp")).text == "/tmp"

    async def test_default_user_is_root(self, box: Box) -> None:
        assert (await box.run("id", "-u")).text == "0"

    async def test_user_by_number_and_group(self, box: Box) -> None:
        result = await box.sh("id -u; id -g", user=b"1234:4321")
        assert result.text == "1234\n4321"

    async def test_user_by_name_has_its_home(self, box: Box) -> None:
        assert (await box.sh("id -u; echo $HOME", user=b"root")).text == "0\n/root"
        assert (await box.run("id", "-un", user=b"nobody")).text == "nobody"

    async def test_environment_is_defaults_and_given(self, box: Box) -> None:
        lines = (await box.run("env", env=(b"GREETING=hello world",))).text.splitlines()
        assert "GREETING=hello world" in lines
        assert "LANG=C.UTF-8" in lines
        assert any(line.startswith("PATH=") for line in lines)
        assert any(line.startswith("HOME=/") for line in lines)

    async def test_stdin_is_closed_by_default(self, box: Box) -> None:
        result = await box.run("cat")
        assert (result.outcome.exit_code, result.stdout) == (0, b"")

    async def test_stdin_comes_back_through_cat(self, box: Box) -> None:
        data = bytes(range(256)) * 2000
        assert (await box.run("cat", stdin=data)).stdout == data

    async def test_stdout_and_stderr_are_separate(self, box: Box) -> None:
        result = await box.sh("echo out; echo err >&2")
        assert (result.stdout, result.stderr) == (b"out\n", b"err\n")

    async def test_merged_stderr_stands_in_stdout_in_order(self, box: Box) -> None:
        result = await box.sh("echo a; echo b >&2; echo c; echo d >&2", merge=True)
        assert (result.stdout, result.stderr) == (b"a\nb\nc\nd\n", b"")

    async def test_bytes_are_exact(self, box: Box) -> None:
        result = await box.run("printf", r"\000\377\r\n\r x")
        assert result.stdout == b"\x00\xff\r\n\r x"

    async def test_large_output_arrives_whole(self, box: Box) -> None:
        result = await box.run(*self.flood(3_000_001))
        assert len(result.stdout) == 3_000_001
        assert result.outcome.stdout_total == 3_000_001

    async def test_unrecorded_output_blocks_the_command(self, box: Box) -> None:
        sink = Sink(hold=True)
        running, _ = box.start(self.flood(1_000_000), sink)
        waiting = asyncio.ensure_future(running.wait())
        await asyncio.sleep(0.3)
        assert not waiting.done()
        assert len(sink.output[Stream.STDOUT]) <= 131_072
        sink.release()
        async with asyncio.timeout(self.patience_s):
            assert (await waiting).exit_code == 0
        assert len(sink.output[Stream.STDOUT]) == 1_000_000

    async def test_many_commands_run_at_once(self, box: Box) -> None:
        results = await asyncio.gather(*(box.run("echo", str(n)) for n in range(40)))
        assert [result.text for result in results] == [str(n) for n in range(40)]

    async def test_timeout_ends_the_command(self, box: Box) -> None:
        begin = time.monotonic()
        outcome = (await box.run("sleep", "1000", timeout_ms=200)).outcome
        assert outcome.timed_out
        assert outcome.signal == 9
        assert time.monotonic() - begin < 5

    async def test_timeout_keeps_partial_output(self, box: Box) -> None:
        result = await box.sh("echo before; sleep 1000", timeout_ms=500)
        assert result.outcome.timed_out
        assert result.stdout == b"before\n"

    async def test_timeout_ends_double_forked_descendants(self, box: Box) -> None:
        line = "(setsid sh -c 'sleep 1000 & sleep 1000' &) ; (trap '' TERM; sleep 1000)"
        outcome = (await box.sh(line, timeout_ms=700)).outcome
        assert outcome.timed_out
        assert await box.running_named("sleep") == 0

    async def test_cancel_ends_double_forked_descendants(self, box: Box) -> None:
        running, _ = box.start(("sh", "-c", "(setsid sleep 1000 &); sleep 1000"), Sink())
        await running.started

        async def both() -> bool:
            return await box.running_named("sleep") == 2

        await box.until(both, "two sleeps run")
        running.cancel()
        async with asyncio.timeout(self.patience_s):
            assert (await running.wait()).cancelled
        assert await box.running_named("sleep") == 0

    async def test_natural_end_leaves_daemons_alive(self, box: Box) -> None:
        result = await box.sh("setsid sleep 1000 >/dev/null 2>&1 & echo started")
        assert result.stdout == b"started\n"

        async def lives() -> bool:
            return await box.running_named("sleep") == 1

        await box.until(lives, "the daemon runs")
        await asyncio.sleep(0.1)
        assert await lives()

    async def test_daemon_that_holds_the_pipes_does_not_hold_the_result(self, box: Box) -> None:
        begin = time.monotonic()
        assert (await box.sh("sleep 1000 & echo started")).stdout == b"started\n"
        assert time.monotonic() - begin < 5
        assert await box.running_named("sleep") == 1

    async def test_signal_reaches_every_process(self, box: Box) -> None:
        sink = Sink()
        line = "trap 'echo one; exit 3' USR1; echo up; while :; do sleep 0.05; done"
        running, _ = box.start(("sh", "-c", line), sink)

        async def up() -> bool:
            return sink.output[Stream.STDOUT] == b"up\n"

        await box.until(up, "the trap is set")
        running.signal(10)
        async with asyncio.timeout(self.patience_s):
            outcome = await running.wait()
        assert outcome.exit_code == 3
        assert bytes(sink.output[Stream.STDOUT]) == b"up\none\n"

    async def test_broken_pipe_ends_the_writer(self, box: Box) -> None:
        assert (await box.sh("yes | head -n 1", timeout_ms=10_000)).stdout == b"y\n"

    async def test_command_inherits_no_other_descriptors(self, box: Box) -> None:
        names = (await box.sh("ls /proc/self/fd")).text.split()
        assert {"0", "1", "2"} <= set(names) <= {"0", "1", "2", "3"}

    async def test_times_are_told(self, box: Box) -> None:
        before = time.time_ns()
        outcome = (await box.run("true")).outcome
        assert before - 10**9 <= outcome.start_ns <= outcome.end_ns <= time.time_ns() + 10**9

    async def test_terminal_has_its_size(self, box: Box) -> None:
        result = await box.sh("stty size; tty -s && echo tty", terminal=(40, 132), stdin=b"")
        assert result.stdout.replace(b"\r\n", b"\n").startswith(b"40 132\ntty")

    async def test_operation_id_runs_once(self, box: Box) -> None:
        _, first = box.start(("true",), Sink())
        again = Operation(handle=1000, op_id=first.op_id, argv=(b"true",))
        with pytest.raises(Conflict):
            await box.client.start(again, Sink()).wait()

    async def test_result_waits_for_a_lost_connection(self, box: Box) -> None:
        sink = Sink()
        running, operation = box.start(("sh", "-c", "echo a; sleep 0.5; echo b"), sink)
        await running.started
        await box.disconnect()
        with pytest.raises(Unavailable):
            await running.wait()
        client = await box.connect()
        offset = len(sink.output[Stream.STDOUT])
        attached = client.attach(operation.handle, operation.op_id, sink, offset, 0)
        async with asyncio.timeout(self.patience_s):
            outcome = await attached.wait()
        assert outcome.exit_code == 0
        assert bytes(sink.output[Stream.STDOUT]) == b"a\nb\n"
