"""Bad input to a live node: a typed error or result each time, and the neighbour works on."""

from __future__ import annotations

import asyncio
import http.client
import json
import math
import os
import socket
from pathlib import Path

import pytest

from live_node import LiveNode
from skerry.errors import (
    CallerError,
    FileRefused,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    SandboxFailed,
)
from skerry.spec.command import CommandSpec

pytestmark = pytest.mark.root


@pytest.fixture
async def sandbox(node_client):
    """A sandbox, with a neighbour that must not notice."""
    async with (
        await node_client.sandboxes.create() as neighbour,
        await node_client.sandboxes.create() as made,
    ):
        yield made
        for one in (made, neighbour):
            assert (await one.run("echo alive")).stdout == b"alive\n"


async def test_an_unknown_image_is_not_found(node_client):
    for image in ("base/none:1", "none", "debian:99"):
        with pytest.raises(NotFound):
            await node_client.sandboxes.create(image=image)
    for image in (
        "",
        "../etc",
        "a/b/c:d:e",
        "x" * 5000,
        "Debian:12",
        "deb\nian",
        "base/debian@sha256:0",
    ):
        with pytest.raises((InvalidRequest, NotFound)):
            await node_client.sandboxes.create(image=image)
    with pytest.raises(NotFound):
        await node_client.sandboxes.create(layers=["workspace/none"])
    assert await node_client.sandboxes.list() == []


async def test_commands_that_cannot_start_say_why(sandbox):
    for argv, fields, words in (
        (["no-such-program"], {}, ("exec", "no-such-program")),
        (["/etc/passwd"], {}, ("exec", "/etc/passwd")),
        (["/etc"], {}, ("exec", "/etc")),
        (["true"], {"cwd": "/none"}, ("cwd", "/none")),
        (["true"], {"cwd": "/etc/passwd"}, ("cwd", "/etc/passwd")),
        (["true"], {"user": "nobody-here"}, ("user", "nobody-here")),
        (["true"], {"user": "70000"}, ("user", "70000")),
        (["true"], {"cwd": "x" * 300}, ("cwd",)),
    ):
        result = await sandbox.run(argv, **fields)
        assert result.exit_code is None, (argv, fields)
        assert all(word in result.start_error for word in words), result
        assert result.start_errno


async def test_huge_arguments_and_environments(sandbox):
    """Up to the kernel's limits, and a clear result beyond them (report 29)."""
    with pytest.raises(InvalidRequest, match="argv"):
        await sandbox.run(["echo", "x" * 2_200_000])
    with pytest.raises(InvalidRequest, match="argv"):
        await sandbox.run(["true"] + ["a"] * 400_000)
    with pytest.raises(InvalidRequest, match="env"):
        await sandbox.run("true", env={"A": "x" * 2_200_000})
    for size in (59_000, 70_000, 131_000):
        fits = "x" * size
        assert (await sandbox.run(["printf", "%s", fits])).text == fits
    many = [str(n) for n in range(100_000)]
    assert (await sandbox.run(["echo", *many])).text.split() == many
    both = await sandbox.run(
        "echo ${#A} ${#B}", env={"A": "y" * 100_000, "B": "z" * 131_000, "C": "c" * 100_000}
    )
    assert both.text == "100000 131000\n"
    for argv, env in (
        (["echo", "x" * 132_000], {}),
        (["true"], {"A": "x" * 132_000}),
        (["echo", *["x" * 100_000] * 20], {f"A{n}": "y" * 100_000 for n in range(1)}),
    ):
        result = await sandbox.run(argv, env=env)
        assert result.exit_code is None
        assert result.start_error == "args: Argument list too long"


async def test_shell_line_longer_than_the_kernel_takes_in_one_word(sandbox):
    """(report 29)"""
    for image_shell in ("", "exec 2>&1; "):
        line = image_shell + ": padding padding padding padding\n" * 20_000
        result = await sandbox.run(line + "echo $0 $#; cat <<'E'\nhere\nE\nexit 9")
        assert (result.exit_code, result.stderr) == (9, b"")
        assert result.text == "/bin/bash 0\nhere\n"
    wrong = await sandbox.run(": x\n" * 50_000 + "no-such-program-at-all\n")
    assert wrong.exit_code == 127
    assert b"line 50001" in wrong.stderr


async def test_nul_and_newline_in_words_and_environment(sandbox):
    for argv, env in ((["echo", "a\0b"], {}), (["true"], {"A": "a\0b"}), (["true"], {"A\0": "b"})):
        with pytest.raises(InvalidRequest):
            await sandbox.run(argv, env=env)
    for name in ("", "A=B", "A\nB"):
        with pytest.raises(InvalidRequest):
            await sandbox.run("true", env={name: "x"})
    result = await sandbox.run('printf %s "$A"', env={"A": "one\ntwo\r\n=\t"})
    assert result.stdout == b"one\ntwo\r\n=\t"
    assert (await sandbox.run(["printf", "%s", "a\nb"])).stdout == b"a\nb"
    assert (await sandbox.run(["printf", "%s", ""])).stdout == b""


async def test_text_that_is_no_utf8(sandbox):
    done = await sandbox.run(r"printf '\377\376' ; printf '\303(' >&2")
    assert (done.stdout, done.stderr) == (b"\xff\xfe", b"\xc3(")
    await sandbox.run(r"mkdir /tmp/odd && touch /tmp/odd/$(printf 'a\377b')")
    listed = await sandbox.files.list("/tmp/odd")
    assert len(listed) == 1
    for bad in ("a\ud800b", "\udcff"):
        for call in (
            sandbox.run(["printf", "%s", bad]),
            sandbox.run("true", cwd=f"/tmp/{bad}"),
            sandbox.start("true", env={"A": bad}),
            sandbox.session(cwd=f"/tmp/{bad}"),
            sandbox.attach(["cat", bad]).__aenter__(),
        ):
            with pytest.raises(InvalidRequest, match="is no text"):
                await call
    assert (await sandbox.run("cd /tmp/odd && ls $'a\\377b' | od -c | head -1")).ok


async def test_times_that_are_none(node_client, sandbox):
    for value in (math.nan, -1.0, 0.0, math.inf, -math.inf, 1e300):
        with pytest.raises(InvalidRequest, match="timeout"):
            await sandbox.run("true", timeout=value)
        with pytest.raises(InvalidRequest):
            await node_client.sandboxes.create(ttl=value)
        with pytest.raises(InvalidRequest):
            await node_client.sandboxes.create(idle_timeout=value)
    for fields in (
        {"cpu": math.nan}, {"cpu": -1.0}, {"cpu": math.inf}, {"memory": -1}, {"memory": 1 << 60},
        {"memory": "lots"}, {"pids": 0}, {"pids": -5}, {"nofile": 1 << 40}, {"disk": 1},
        {"hostname": "a b"}, {"hostname": ""}, {"hostname": "x" * 100}, {"backend": "none"},
        {"network": ["internet"]}, {"labels": {"": "x"}}, {"on_idle": "explode"},
    ):  # fmt: skip
        with pytest.raises((CallerError, ValueError)):
            await node_client.sandboxes.create(**fields)
    assert len(await node_client.sandboxes.list()) == 2


class Wire:
    """Requests by hand, as no client of ours would make them."""

    def __init__(self, live_node):
        self.path = f"{live_node.run}/node.sock"

    def __call__(self, method, path, body=b"", headers=None):
        connection = http.client.HTTPConnection("node", timeout=20)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(self.path)
        connection.request(method, path, body, headers or {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, content


async def test_bodies_that_are_none_are_refused_with_a_typed_error(live_node, sandbox):
    wire = Wire(live_node)
    run = f"/v1/sandboxes/{sandbox.id}/run?op={'0' * 32}"
    deep = b"[" * 100_000
    bodies = (
        b"", b"{", b"nonsense", b"\xff\xfe\x00", b"[]", b"null", b"1e999", deep,
        b'{"argv": "true"}', b'{"argv": [1]}', b'{"argv": ["true"], "unknown": 1}',
        b'{"argv": ["true"], "timeout_s": NaN}', b'{"argv": ["true"], "timeout_s": -1}',
        b'{"argv": ["true"], "timeout_s": 1e400}', b'{"argv": ["\xff"]}', b'{"shell": "\\ud800"}',
        b'{"argv": ["true"], "output_limit": -1}', b'{"argv": ["true"], "shell": "true"}',
        b'{"argv": ["true"], "env": {"A": 1}}', b'{"argv": []}', b'{"argv": [""]}',
    )  # fmt: skip
    for body in bodies:
        status, content = await asyncio.to_thread(wire, "POST", run, body)
        assert 400 <= status < 500, (body[:60], status, content[:200])
        error = json.loads(content)
        assert error["fault"] == "caller", (body[:60], error)
    msgpack = {"Content-Type": "application/msgpack"}
    for body in (
        b"",
        b"\xc1",
        b"\x81",
        b"\xdf\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff" + b"\x90" * 100,
    ):
        status, _ = await asyncio.to_thread(wire, "POST", run, body, msgpack)
        assert 400 <= status < 500, body
    for method, path in (
        ("GET", "/v1/sandboxes/none"), ("GET", "/v1/sandboxes/..%2f..%2fetc"), ("PUT", "/v1/sandboxes"),
        ("GET", f"/v1/sandboxes/{sandbox.id}/files?path=%00"), ("GET", "/v1/nothing"),
        ("GET", f"/v1/sandboxes/{sandbox.id}/files?path=/etc/passwd&offset=-5"),
        ("GET", f"/v1/sandboxes/{sandbox.id}/ops/zz"), ("GET", "/v1/sandboxes?limit=NaN"),
        ("GET", "/v1/sandboxes?limit=-1"), ("GET", "/v1/sandboxes?cursor=%ff"),
        ("GET", f"/v1/sandboxes/{sandbox.id}/wait?timeout=nan"),
        ("POST", f"/v1/sandboxes/{sandbox.id}/run?op=short"),
        ("DELETE", "/v1/images/..%2f..%2fetc"), ("GET", "/v1/images/base/%00"),
    ):  # fmt: skip
        body = b'{"argv": ["true"]}' if method == "POST" else b""
        status, content = await asyncio.to_thread(wire, method, path, body)
        assert 400 <= status < 500, (method, path, status, content[:200])


async def test_file_names_that_are_none(sandbox):
    for path in ("", "a\0b", "x" * 5000):
        with pytest.raises(InvalidRequest):
            await sandbox.files.read(path)
    with pytest.raises(NotFound):
        await sandbox.files.read("/none")
    for path in ("/etc", "/dev/zero", "/proc/self/mem", "/dev/tty", "x" * 300, "/etc/passwd/x"):
        with pytest.raises((FileRefused, NotFound)):
            await sandbox.files.read(path)
    await sandbox.run("mkfifo /tmp/fifo")
    with pytest.raises(FileRefused):
        await sandbox.files.read("/tmp/fifo")
    with pytest.raises(FileRefused):
        await sandbox.files.write("/tmp/fifo/x", b"x")
    with pytest.raises((FileRefused, NotFound)):
        await sandbox.files.write("/proc/sys/kernel/hostname", b"x")


async def test_an_operation_id_names_one_command_only(sandbox):
    op = "ab" * 16
    first = await sandbox.run("date +%N", op_id=op)
    assert await sandbox.run("date +%N", op_id=op) == first
    with pytest.raises(CallerError):
        await sandbox.run("rm -rf /", op_id=op)


async def test_more_sandboxes_than_fit(layer_store):
    node = LiveNode(layer_store, options="limits = { sandboxes_max = 3 }").start()
    try:
        async with node.client() as client:
            made = [await client.sandboxes.create() for _ in range(3)]
            with pytest.raises(Overloaded) as caught:
                await client.sandboxes.create(wait=0)
            assert caught.value.fields["limit"] == "sandboxes"
            assert caught.value.fields["retry_after_s"] > 0
            status, _ = await asyncio.to_thread(Wire(node), "POST", "/v1/sandboxes", b"{}")
            assert status == 429
            with pytest.raises(Overloaded):
                await client.sandboxes.create_many(2, wait=0)
            for sandbox in made:
                assert (await sandbox.run("echo alive")).ok
            await made.pop().destroy()
            made.append(await client.sandboxes.create())
            await client.sandboxes.destroy_many(made)
    finally:
        left = node.stop()
    assert not left


async def test_a_sandbox_whose_first_process_dies_fails_and_says_so(node_client, live_node):
    async with await node_client.sandboxes.create() as doomed:
        running = asyncio.create_task(doomed.run("sleep 1000; echo skerry-doomed"))
        pid = 0
        while not pid:
            await asyncio.sleep(0.05)
            for name in Path("/proc").iterdir():
                if name.name.isdigit() and b"skerry-doomed" in _bytes(name / "cmdline"):
                    pid = int(_bytes(name / "stat").rpartition(b")")[2].split()[1])
        os.kill(pid, 9)
        with pytest.raises(OutcomeUnknown):
            await running
        with pytest.raises((SandboxFailed, OutcomeUnknown)):
            await doomed.run("true")
        assert (await doomed.info()).state == "failed"


def _bytes(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_spec_checks_itself_the_same_way():
    with pytest.raises(InvalidRequest):
        CommandSpec(argv=("a",), timeout_s=math.nan).check()
