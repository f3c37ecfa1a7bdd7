"""What users hit elsewhere with commands, tried line by line on a real node."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from pathlib import Path

import pytest

from live_node import LiveNode

pytestmark = pytest.mark.root


@pytest.fixture
async def sandbox(node_client):
    async with await node_client.sandboxes.create() as made:
        yield made


async def alive(sandbox, mark):
    return int((await sandbox.run(f"pgrep -fc '^sleep {mark}'")).text)


async def test_timeout_ends_every_descendant_and_the_list_shows_what_runs(sandbox):
    """(report 1) (report 5)"""
    mark = f"41{secrets.randbelow(10**6)}"
    line = f"setsid sleep {mark} & (setsid sleep {mark} &) & nohup sleep {mark} & sleep {mark}"
    command = await sandbox.start(line, timeout=1.0)
    (listed,) = [one for one in await sandbox.ops() if one.state == "running"]
    assert (listed.op_id, listed.command) == (command.op_id, line)
    result = await command.wait(timeout=30)
    assert result.timed_out
    assert not result.ok
    assert await alive(sandbox, mark) == 0
    assert [one for one in await sandbox.ops() if one.state == "running"] == []


async def test_client_that_goes_ends_every_member_of_a_pipeline_if_asked(live_node, sandbox):
    """(report 3)"""
    mark = f"42{secrets.randbelow(10**6)}"
    reader, writer = await asyncio.open_unix_connection(live_node.url.removeprefix("unix://"))
    body = f'{{"shell": "sleep {mark} | sleep {mark} & sleep {mark} | cat"}}'.encode()
    head = f"POST /v1/sandboxes/{sandbox.id}/run?on_disconnect=kill HTTP/1.1\r\nhost: node\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    for _ in range(200):
        if await alive(sandbox, mark) == 3:
            break
        await asyncio.sleep(0.02)
    assert await alive(sandbox, mark) == 3
    writer.close()
    del reader
    for _ in range(200):
        if await alive(sandbox, mark) == 0:
            break
        await asyncio.sleep(0.02)
    assert await alive(sandbox, mark) == 0


async def test_commands_that_do_not_start_leak_nothing(live_node, sandbox):
    """(report 4) (report 8)"""

    def held():
        children = Path(f"/proc/{live_node.pid}/task/{live_node.pid}/children").read_text().split()
        zombies = [
            pid for pid in children if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
        ]
        return len(os.listdir(f"/proc/{live_node.pid}/fd")), zombies

    async def fail(n):
        argv, cwd = (["no-such-program"], None) if n % 2 else (["true"], "/none")
        assert (await sandbox.run(argv, cwd=cwd)).start_error

    for n in range(20):
        await fail(n)
    before, _ = held()
    for n in range(300):
        await fail(n)
    after, zombies = held()
    assert after <= before + 3
    assert zombies == []
    assert (
        await sandbox.run("ls /proc/self/fd | wc -l; ps axo stat | grep -c ^Z")
    ).text.split() == [
        "4",
        "0",
    ]


async def test_program_cannot_put_its_timeout_off(sandbox):
    """(report 6)"""
    stubborn = "trap '' ALRM TERM INT HUP QUIT USR1; while :; do sleep 0.1; done"
    result = await sandbox.run(stubborn, timeout=0.5)
    assert (result.timed_out, result.signal) == (True, 9)


async def test_partial_output_of_both_streams_survives_a_timeout(sandbox):
    """(report 13) (report 21)"""
    line = r"printf 'a\377b\r\n'; printf 'e\000f' >&2; sleep 60"
    result = await sandbox.run(line, timeout=0.5)
    assert (result.stdout, result.stderr) == (b"a\xffb\r\n", b"e\0f")
    assert result.timed_out
    assert not result.truncated
    cut = await sandbox.run("seq 200000; sleep 60", timeout=3, output_limit=1000)
    assert (cut.timed_out, cut.truncated, len(cut.stdout)) == (True, True, 1000)
    assert cut.stdout.endswith(b"199999\n200000\n")


async def test_lines_of_every_kind_arrive_as_they_were(sandbox):
    """(report 15) (report 16)"""
    long = await sandbox.run("head -c 10000000 /dev/zero | tr '\\0' x", output_limit=16 << 20)
    assert long.stdout == b"x" * 10_000_000
    text = b"\n\n10%\r20%\r100%\r\nlast without end"
    for pieces in (1, 3):
        step = -(-len(text) // pieces)
        line = "".join(
            "printf '%b' '"
            + "".join(f"\\0{byte:o}" for byte in text[at : at + step])
            + "'; sleep 0.05; "
            for at in range(0, len(text), step)
        )
        assert (await sandbox.run(line)).stdout == text


async def test_status_comes_after_all_of_the_output(sandbox):
    """(report 19)"""

    async def once():
        result = await sandbox.run("seq 50000 >&2; seq 50000; exit 3", output_limit=4 << 20)
        return result.exit_code, result.stdout[-6:], result.stderr[-6:], len(result.stdout)

    results = await asyncio.gather(*(once() for _ in range(20)))
    assert set(results) == {(3, b"50000\n", b"50000\n", 288_894)}


async def test_very_long_diff_at_the_end_does_not_hang(sandbox):
    """(report 24)"""
    line = (
        "mkdir -p /tmp/a /tmp/b; seq 1500000 > /tmp/a/f; seq 2 1500001 | sed s/^/x/ > /tmp/b/f;"
        " diff -ru /tmp/a /tmp/b"
    )
    result = await sandbox.run(line, timeout=300)
    assert result.exit_code == 1
    assert result.truncated
    assert result.stdout_total > 20_000_000
    assert result.stdout.endswith(b"+x1500001\n")


async def test_heredocs_work_in_a_line(sandbox):
    """(report 28)"""
    line = "cat <<'EOF' > /tmp/x\n$HOME `id`\nEOF\ncat /tmp/x; cat <<A <<B\nno\nA\nyes\nB\n"
    assert (await sandbox.run(line)).text == "$HOME `id`\nyes\n"


async def test_home_is_set_for_every_user_and_a_missing_directory_is_a_result(sandbox):
    """(report 32)"""
    await sandbox.run("useradd -m -u 1234 ann")
    for user, home in (
        ("root", "/root"),
        ("ann", "/home/ann"),
        ("1234", "/home/ann"),
        ("9999", "/"),
    ):
        assert (await sandbox.run("echo $HOME", user=user)).text.strip() == home
    gone = await sandbox.run("true", cwd="/no/such/place")
    assert gone.start_error == "cwd: No such file or directory: /no/such/place"
    assert gone.exit_code is None


async def test_changed_users_count_from_the_next_command_on(sandbox):
    """What was read of passwd and group is kept while they are the same, and no longer."""
    await sandbox.run("useradd -m -u 1234 ann")
    age = "while [ $(($(date +%s) - $(stat -c %Z /etc/passwd))) -lt 2 ]; do sleep 0.1; done"

    async def seen(user="ann"):
        line = "echo $(id -u) $(id -G) $HOME"
        return (await sandbox.run(line, user=user)).text.strip()

    assert await seen() == "1234 1234 /home/ann"
    await sandbox.run("sed -i s,/home/ann,/home/bob, /etc/passwd")  # another file in its place
    assert await seen() == "1234 1234 /home/bob"
    await sandbox.run(age)  # only what is that old is kept
    for _ in range(3):
        assert await seen() == "1234 1234 /home/bob"
    # In place, and not a byte longer.
    await sandbox.run(
        "perl -pi.old -e s,/home/bob,/home/eve, /etc/passwd; cat /etc/passwd > /tmp/p"
    )
    await sandbox.run("mv /etc/passwd.old /etc/passwd; touch -d '2 days ago' /etc/passwd")
    await sandbox.run(age)
    for _ in range(3):
        assert await seen() == "1234 1234 /home/bob"
    await sandbox.run("cat /tmp/p > /etc/passwd; touch -d '2 days ago' /etc/passwd")
    assert await seen() == "1234 1234 /home/eve"
    await sandbox.run("groupadd -g 4242 extra; usermod -G extra ann")
    assert await seen() == "1234 1234 4242 /home/eve"
    await sandbox.run("deluser ann || userdel ann")
    assert (await sandbox.run("true", user="ann")).start_error == "user: unknown user ann"
    await sandbox.run("rm /etc/passwd /etc/group")
    assert await seen("root") == "0 0 /root"
    assert await seen("1234") == "1234 0 /"


async def test_commands_inherit_no_rank_of_the_daemon_and_have_their_groups(layer_store):
    """(report 33)"""
    ranked = 'echo 321 > /proc/self/oom_score_adj; exec nice -n 7 "$@"'
    program = ("/bin/sh", "-c", ranked, "sh", sys.executable, "-m", "skerry.cli.main")
    node = LiveNode(layer_store, program=program).start()
    try:
        assert Path(f"/proc/{node.pid}/oom_score_adj").read_text().strip() == "321"
        assert os.getpriority(os.PRIO_PROCESS, node.pid) == 7
        async with node.client() as client, await client.sandboxes.create() as sandbox:
            line = "cat /proc/self/oom_score_adj /proc/1/oom_score_adj; nice"
            assert (await sandbox.run(line)).text.split() == ["0", "0", "0"]
            await sandbox.run("groupadd -g 4242 extra; useradd -m -u 1234 -G extra ann")
            assert (await sandbox.run("id -Gn", user="ann")).text.split() == ["ann", "extra"]
            assert (await sandbox.run("id -G", user="1234")).text.split() == ["1234", "4242"]
    finally:
        node.stop()
