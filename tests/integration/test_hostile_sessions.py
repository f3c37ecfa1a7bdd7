"""Scripts of a session that attack what runs them: each harms its own shell, and the end is told."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.root

WITHIN_S = 20.0  # a command that takes as long has been lost by its driver


@pytest.fixture
async def box(node_client):
    async with await node_client.sandboxes.create(memory="512MiB") as box:
        yield box
        assert (await box.run("echo alive")).text == "alive\n"


async def test_jobs_that_write_while_their_session_ends_harm_nobody(box):
    """What they wrote is for nobody: neither a violation nor something to wait for."""
    for width in (65_536, 1 << 20):
        session = await box.session()
        await session.run(
            f"perl -e 'fcntl($_, 1031, {width}) for STDOUT, STDERR'\n"  # F_SETPIPE_SZ
            "for i in 1 2 3 4 5 6 7 8; do (while :; do echo $i; echo $i >&2; done) & done"
        )
        await session.close()
        left = (await box.run("ls -d /proc/[0-9]* | wc -l")).text
        assert int(left) < 8  # nothing of it runs on
    assert await box.sessions() == []


@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize("ifs", ["\n", ":", "0123456789", " "])
async def test_exit_keeps_the_shell_whatever_it_takes_for_a_separator(box, shell, ifs):
    async with await box.session(shell=shell) as session:
        ended = await session.run(f"IFS='{ifs}'; kept=1; exit 5", timeout=WITHIN_S)
        assert (ended.exit_code, ended.session_reset) == (5, False)
        assert (await session.run('echo "$kept$IFS"')).text == f"1{ifs}\n"


@pytest.mark.parametrize("shell", ["bash", "sh"])
async def test_trace_of_a_script_tells_nothing_of_its_driver(box, shell):
    async with await box.session(shell=shell) as session:
        for script, code in (("set -eux; true; false", 1), ("exit 3", 3), ("true", 0)):
            result = await session.run(script, timeout=WITHIN_S)
            assert result.exit_code == code
            assert b"skerry" not in result.stderr
            assert result.stderr  # the options outlive `exit`, as all that is set does


async def test_shell_that_may_not_answer_any_more_ends_and_is_told_so(box):
    """`set -r` forbids redirections: a script that never ran must not look as if it had failed."""
    async with await box.session() as session:
        for script, code in (("set -r; exit 3", 3), ("set -r; false", 1)):
            result = await session.run(script, timeout=WITHIN_S)
            assert (result.exit_code, result.session_reset) == (code, True)
            assert not result.timed_out
        assert (await session.run("set -r; true")).ok
        never_run = await session.run("echo lost")
        assert (never_run.ok, never_run.session_reset) == (False, True)
        assert (await session.run("echo back")).text == "back\n"


@pytest.mark.parametrize(
    "script",
    [
        'for fd in $(seq 0 60); do eval "exec $fd>&-"; done',
        'for fd in $(seq 3 60); do eval "exec $fd</dev/null"; done',
        "exec 10<&11 11>&12 12>&13 13<&14",
        'for pipe in /proc/$$/fd/*; do echo nonsense >"$pipe"; done',
        'for pipe in /proc/[0-9]*/fd/*; do echo "1 0 $$" >"$pipe" & done; sleep 0.3',
        "kill -9 $PPID $$",
        "for v in $(compgen -v); do unset $v; done; unset -f $(compgen -A function)",
        "for v in n r s a g o e p m x; do readonly __skerry_$v; done; readonly IFS",
        "read() { :; }; echo() { :; }; eval() { :; }; exit() { :; }; builtin() { :; }; trap() { :; }",
        "enable -n echo read builtin eval exit trap return .",
        "shopt -s expand_aliases; alias while=echo read=echo builtin=echo .=echo echo=false",
        "trap 'while :; do sleep 1; done' EXIT; exit 4",
        "trap 'exec sleep 0.1' EXIT; exit 4",
        "trap 'exit 9' DEBUG; trap 'return 3' RETURN; true",
        "ulimit -n 3; ulimit -f 0",
        "exec sh -c 'echo 1 0 1; echo 1 0 $$ >&2; exit 3'",
        "kill -STOP $$",
        "set -n",
        "umount -l /proc; mount -t tmpfs none /proc",
    ],
)
async def test_session_outlives_a_script_that_turns_on_its_driver(box, script):
    """The script ends, at its timeout at the latest, and a shell answers afterwards."""
    async with await box.session() as session:
        await session.run(script, timeout=1.0)
        until_fresh = [await session.run("echo back", timeout=WITHIN_S) for _ in range(3)]
        assert not any(result.timed_out for result in until_fresh)
        await session.run("kill -9 $$", timeout=WITHIN_S)
        assert (await session.run("echo back", timeout=WITHIN_S)).text == "back\n"
