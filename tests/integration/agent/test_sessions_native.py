"""Sessions of the real `skerry-init`: each shell that is here, release and sanitizer build."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest
from native_agent import (
    ACK,
    CANCEL,
    CANCELLED,
    CPU_US,
    END_NS,
    ERRNO,
    EXIT_CODE,
    HANDLE,
    OP_ID,
    REAL,
    SIGNAL,
    SIGNO,
    START_NS,
    STDERR_TOTAL,
    STDOUT_TOTAL,
    TIMED_OUT,
    Client,
    pack,
)
from native_sandbox import Sandbox
from native_session import (
    ATTACH,
    EXEC,
    LINE,
    NO_OUTPUT,
    SEQ,
    SIZE,
    STDOUT_DROPPED,
    Session,
)

pytestmark = REAL
SHELLS = [
    pytest.param(
        name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not here")
    )
    for name in ("bash", "dash", "busybox", "mksh", "zsh", "ksh93")
]
KEEPS_STATE_AT_EXIT = ("bash", "dash")


@pytest.fixture(params=SHELLS)
def session(request: pytest.FixtureRequest, client: Client) -> Iterator[Session]:
    session = Session(client, request.param)
    yield session
    if session.op.done is None:
        session.send(CANCEL)
        while session.op.done is None:
            session.step()
        session.send(ACK)


@pytest.fixture
def bash(client: Client) -> Iterator[Session]:
    session = Session(client, "bash")
    yield session
    if session.op.done is None:
        session.close()


def sleepers(session: Session, mark: str) -> int:
    """How many `sleep MARK` live inside; one that was just forked may not be there yet."""
    look = f"/bin/ps axo args | grep '^/bin/sleep {mark}$'"
    found = session.run(f"for i in 1 2 3 4 5; do {look} && break; /bin/sleep 0.05; done")
    return len(found.stdout.splitlines())


def test_state_persists_and_streams_are_apart(session: Session) -> None:
    first = session.run(
        'cd /usr; export A=1; f() { echo "f$1"; }; set -o noglob; echo to; echo no >&2'
    )
    assert (first.code, first.stdout, first.stderr) == (0, b"to\n", b"no\n")
    assert session.out("pwd; f x; echo $A *") == "/usr\nfx\n1 *\n"
    result = session.run("printf 'no newline'; (exit 7)")
    assert (result.code, result.stdout) == (7, b"no newline")
    assert session.out("echo $?") == "7\n"  # as in any shell
    assert result.fields[END_NS] >= result.fields[START_NS] > 1_600_000_000_000_000_000
    assert result.fields[CPU_US] >= 0


def test_programs_inherit_only_three_descriptors(session: Session) -> None:
    """Of the pipes and the script nothing is seen, before and after `exit`."""
    listing = "/bin/sh -c 'exec ls /proc/self/fd' | tr '\\n' ' '"
    for _ in range(2):
        assert session.out(listing).split()[:3] == ["0", "1", "2"]
        assert len(session.out(listing).split()) == 4  # and the directory itself
        session.run("exit 0")


def test_exit_returns_the_code_and_the_session_lives_on(session: Session, request) -> None:
    """(report 30)"""
    session.run("cd /usr; A=1; f() { exit 4; }")
    result = session.run("echo out; exit 3; echo never")
    assert (result.code, result.stdout) == (3, b"out\n")
    assert session.out("pwd") == "/usr\n"
    if request.node.callspec.params["session"] in KEEPS_STATE_AT_EXIT:
        for command, code in (("f", 4), ("set -e; false", 1), ("false", 1), ("eval 'exit 8'", 8)):
            result = session.run(command)
            assert (result.code, result.reset) == (code, False), command
        assert session.out("set +e; echo $A") == "1\n"


def test_exec_gives_the_status_of_the_program(session: Session) -> None:
    session.run("cd /usr; A=1")
    result = session.run("exec sh -c 'echo p; exit 44'")
    assert (result.code, result.stdout, result.reset) == (44, b"p\n", True)
    assert session.out('pwd; echo "<$A>"') == "/usr\n<>\n"


def test_a_killed_shell_is_told_and_replaced(session: Session) -> None:
    session.run("cd /usr")
    result = session.run("kill -9 $$; echo never")
    assert (result.signal, result.stdout, result.reset) == (9, b"", True)
    after = session.run("pwd")
    assert (after.stdout, after.reset) == (b"/usr\n", False)


def test_a_shell_that_dies_between_commands_is_told_with_the_next(bash: Session) -> None:
    shell = bash.out("A=1; echo $$; (/bin/sleep 0.1; kill -9 $$) &").strip()
    other = bash.client
    while other.run("sh", "-c", f"kill -0 {shell}").done[EXIT_CODE] == 0:  # type: ignore[index]
        time.sleep(0.02)
    result = bash.run('echo "<$A>"')
    assert (result.code, result.stdout, result.reset) == (0, b"<>\n", True)


def test_syntax_errors_and_fatal_errors_are_results(session: Session) -> None:
    for script in ("if then", "echo $((1/0))", "echo 'unterminated", "set -u; echo $nope"):
        result = session.run(script)
        assert result.code not in (None, 0), script
        assert result.stderr, script
        session.run("set +u")
    assert session.out("echo ok") == "ok\n"


def test_stdin_is_at_its_end_and_heredocs_work(session: Session) -> None:
    """(report 25, 28)"""
    assert session.out("cat; echo end") == "end\n"
    assert session.out("cat <<E\nhere $((1 + 1))\nE\n") == "here 2\n"
    assert session.run("read x || echo none").stdout == b"none\n"


def test_scripts_that_close_or_redirect_their_streams_harm_themselves_only(
    session: Session,
) -> None:
    assert session.run("exec >&- 2>&-; echo lost").stdout == b""
    assert session.run("exec >/dev/null 2>&1 </etc/passwd; echo lost").stdout == b""
    assert session.out("cat; echo back") == "back\n"


def test_a_background_job_holds_nothing_back_and_lives_on(session: Session) -> None:
    assert session.out("/bin/sleep 7001 & echo now") == "now\n"
    assert sleepers(session, "7001") == 1
    assert session.run("setsid /bin/sleep 7002 >/dev/null 2>&1 & :").code == 0
    assert sleepers(session, "7002") == 1


def test_a_timeout_ends_all_that_the_command_started_and_nothing_else(session: Session) -> None:
    """(report 1, 3, 6)"""
    session.run("A=1; /bin/sleep 7101 &")
    script = (
        "(setsid /bin/sleep 7102 &); setsid sh -c '/bin/sleep 7103 & /bin/sleep 7104' & "
        "/bin/sleep 7105; echo never"
    )
    result = session.run(script, timeout_ms=300)
    assert (result.signal, result.fields[TIMED_OUT], result.stdout) == (9, 1, b"")
    assert [sleepers(session, str(mark)) for mark in range(7101, 7106)] == [1, 0, 0, 0, 0]
    if not result.reset:
        assert session.out("echo $A") == "1\n"


@pytest.mark.parametrize(
    "script", ["while :; do :; done", "trap '' 62; while :; do :; done", "kill -STOP $$"]
)
def test_a_busy_or_stopped_shell_is_ended_at_its_timeout(bash: Session, script: str) -> None:
    bash.run("cd /usr; /bin/sleep 7201 &")
    result = bash.run(script, timeout_ms=200)
    assert (result.signal, result.fields[TIMED_OUT]) == (9, 1)
    assert result.reset == (script != "while :; do :; done")
    assert bash.out("pwd") == "/usr\n"
    assert sleepers(bash, "7201") == 1


def test_a_fork_bomb_is_ended_at_its_timeout(bash: Session) -> None:
    bash.run("A=1; ulimit -u 300")
    bomb = "for i in 1 2 3 4 5 6 7 8; do (while :; do /bin/sleep 7301 & done) & done; wait"
    result = bash.run(bomb, timeout_ms=300)
    assert result.fields[TIMED_OUT] == 1
    assert sleepers(bash, "7301") == 0


def test_a_silent_command_is_ended(bash: Session) -> None:
    """(report 22)"""
    assert bash.run("for i in 1 2 3; do echo $i; /bin/sleep 0.1; done", quiet_ms=1000).code == 0
    result = bash.run("echo talks; /bin/sleep 7401", quiet_ms=200)
    assert (result.stdout, result.fields[TIMED_OUT], result.fields[NO_OUTPUT]) == (b"talks\n", 1, 1)


def test_a_cancel_by_number_ends_the_command(bash: Session) -> None:
    bash.start("A=1; echo go; /bin/sleep 7501; echo never")
    while not bash.op.out[2]:
        bash.step()
    bash.send(CANCEL, pack(SEQ, bash.seq + 5))  # of no command
    bash.send(CANCEL, pack(SEQ, bash.seq))
    result = bash.wait()
    assert (result.signal, result.fields[CANCELLED], result.stdout) == (9, 1, b"go\n")
    assert (bash.out("echo $A"), sleepers(bash, "7501")) == ("1\n", 0)


def test_a_signal_goes_to_what_the_command_started(bash: Session) -> None:
    bash.run("/bin/sleep 7601 &")
    bash.start(
        "sh -c 'trap \"echo caught; exit 5\" TERM; echo go; while :; do /bin/sleep 0.05; done'"
    )
    while not bash.op.out[2]:
        bash.step()
    bash.send(SIGNAL, pack(SIGNO, 15) + pack(SEQ, bash.seq))
    result = bash.wait()
    assert (result.code, result.stdout.split()[:2]) == (5, [b"go", b"caught"])
    assert sleepers(bash, "7601") == 1


def test_output_between_commands_is_bounded_and_counted(bash: Session) -> None:
    bash.run("(/bin/sleep 0.1; head -c 300000 /dev/zero; echo done >/tmp/flooded) & :")
    while bash.run("test -e /tmp/flooded").code:
        time.sleep(0.05)
    total = len(bash.op.out[2]) + sum(int(r[STDOUT_DROPPED]) for r in bash.rans.values())
    assert total == 300_000
    assert bash.out("rm /tmp/flooded; echo next")[-5:] == "next\n"


def test_much_output_arrives_whole(session: Session) -> None:
    result = session.run("head -c 3000000 /dev/zero | tr '\\0' x; echo end")
    assert (result.code, len(result.stdout), result.stdout[-4:]) == (0, 3_000_004, b"end\n")


def test_a_script_of_megabytes_runs(session: Session) -> None:
    """(report 29)"""
    script = "x='" + "y" * 3_000_000 + "'\necho ${#x}\n"
    assert session.out(script) == "3000000\n"
    assert session.out("echo short") == "short\n"


def test_a_command_runs_at_most_once_and_alone(bash: Session) -> None:
    bash.start("/bin/sleep 0.3; echo once")
    bash.seq += 1
    bash.start("echo second")  # while one runs
    bash.seq -= 2
    result = bash.wait()
    assert (result.stdout, bash.errors) == (b"once\n", [16])  # EBUSY
    bash.send(EXEC, pack(SEQ, 1) + pack(SIZE, 2) + pack(LINE, b":\n"))
    bash.seq = 5
    assert bash.out("echo ok") == "ok\n"
    assert bash.errors == [16, 17]  # EEXIST


def test_a_new_connection_finds_the_command_and_its_result(
    sandbox: Sandbox, client: Client
) -> None:
    session = Session(client, "bash")
    assert session.out("A=1; echo first") == "first\n"
    session.start("echo before; /bin/sleep 0.3; echo after; exit 6")
    while session.op.out[2][-7:] != b"before\n":
        session.step()
    again = sandbox.connect()
    assert [bytes(o[OP_ID][0]) for o in again.live if o[HANDLE] == [session.op.handle]] == [
        session.op.op_id
    ]
    session.client = again
    base = list(session.base)
    again.ops[session.op.handle] = session.op
    session.send(ATTACH, pack(STDOUT_TOTAL, 0) + pack(STDERR_TOTAL, 0))
    result = session.wait()
    assert (session.started[SEQ], session.started[STDOUT_TOTAL]) == (2, base[0])
    assert (result.code, result.stdout) == (6, b"before\nafter\n")
    assert session.out("echo $A") == "1\n"
    session.close()
    again.close()


@pytest.mark.parametrize("forged", ["1 2 3", "x", "1 0 999999", "-1 0 1", "9" * 200])
def test_a_forged_answer_ends_the_shell_only(bash: Session, forged: str) -> None:
    """Whoever finds the pipe of answers can end the command's shell, and not more."""
    bash.run("cd /usr; /bin/sleep 7701 &")
    result = bash.run(f"echo '{forged}' >/proc/$$/fd/11; /bin/sleep 5; echo never")
    assert (result.signal, result.stdout, result.reset) == (9, b"", True)
    assert bash.out("pwd") == "/usr\n"
    assert sleepers(bash, "7701") == 1


def test_a_flood_of_answers_ends_the_shell_only(bash: Session) -> None:
    bash.run("cd /usr")
    results = [bash.run("(while echo 1; do :; done >/proc/$$/fd/11) & :")]
    results += [bash.run("/bin/sleep 0.05; pwd") for _ in range(3)]
    # it may be ended under the command that begins the flood already
    assert any(result.reset for result in results[:3])
    assert results[-1].stdout == b"/usr\n"


def test_closing_runs_the_exit_trap_and_ends_everything(bash: Session) -> None:
    bash.run("trap 'echo bye' EXIT; /bin/sleep 7801 & setsid /bin/sleep 7802 &")
    bash.close()
    assert bash.op.done is not None
    assert bytes(bash.op.out[2])[-4:] == b"bye\n"
    found = bash.client.run("sh", "-c", "ps axo args | grep -c '^/bin/sleep 780'")
    assert found.stdout == b"0\n"


def test_a_missing_shell_ends_the_session_with_its_reason(client: Client) -> None:
    session = Session(client, "/nowhere/bash")
    while session.op.done is None:
        session.step()
    assert session.op.done[ERRNO] == 2
    session.send(ACK)


PIECES = (
    "echo {n}",
    "v{n}=$(({n} * 2)); echo $v{n}",
    "cd /; pwd",
    "cd /usr/bin; pwd",
    "false",
    "true && echo yes || echo no",
    "(exit {n}); echo $?",
    "f{n}() {{ echo in $1; }}; f{n} a",
    "for i in 1 2 {n}; do printf '%s,' $i; done",
    "x=$(echo {n} | tr 0-9 a-j); echo $x",
    "cat <<E\nline {n}\n\nE",
    "echo {n} >/tmp/prop; cat /tmp/prop; rm /tmp/prop",
    "test -d /usr",
    "export E{n}=e; sh -c 'echo $E{n}'",
    "set -f; echo *; set +f",
    'echo "$v1 $v2 $v3"',
    "case {n} in *1) echo one;; *) echo other;; esac",
    "unset v{n}; echo ${{v{n}-unset}}",
)


@pytest.mark.parametrize("seed", range(4))
def test_random_commands_give_what_the_shell_gives_over_a_pipe(
    session: Session, seed: int, request
):
    """The same pieces in one shell that reads them all from its standard input."""
    shell = request.node.callspec.params["session"]
    rng = random.Random(seed)
    commands = [rng.choice(PIECES).format(n=rng.randrange(1, 9)) for _ in range(25)]
    ours = [session.run("cd /tmp")] + [session.run(command) for command in commands]
    argv = [shell, "sh"] if shell == "busybox" else [shell]
    whole = "".join(f'{command}\necho "=$?="\n' for command in commands)
    plain = subprocess.run(argv, input=whole.encode(), cwd="/tmp", capture_output=True, check=True)
    mine = b"".join(b"%s=%d=\n" % (result.stdout, result.code) for result in ours[1:])
    assert mine == plain.stdout, commands
