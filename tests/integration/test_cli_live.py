"""The real command as a process of its own, against a node that it started itself."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skerry.testing import rootfs
from skerry.testing.census import Watch

pytestmark = pytest.mark.root

SECONDS = 60.0


class Cli:
    """Runs `skerry` with a state directory of its own."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.prefix = [sys.executable, "-m", "skerry.cli.main"]
        self.prefix += ["--state", str(top / "s"), "--run", str(top / "r")]
        self.env = {key: value for key, value in os.environ.items() if "SKERRY" not in key}

    def __call__(
        self, *words: str, stdin: bytes | None = None, status: int | None = 0
    ) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            [*self.prefix, *words],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            env=self.env,
            timeout=SECONDS,
            check=False,
        )
        assert status is None or done.returncode == status, (words, done)
        return done

    def start(self, *words: str, **streams: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self.prefix, *words],
            env=self.env,
            # A test run in the background of a script has SIGINT ignored, and its children would too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
            **streams,
        )

    def sandboxes(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self("ls", "-a", "--json").stdout.splitlines()]


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """A directory for state and sockets, removed with whatever a failed test left running there."""
    top = Path(tempfile.mkdtemp(prefix="skcli-", dir="/var/tmp"))
    try:
        yield top
    finally:
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if str(top).encode() in (process / "cmdline").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)
        table = Path("/proc/self/mountinfo").read_text().splitlines()
        mounts = [line.split(" ")[4] for line in table]
        for mount in reversed([mount for mount in mounts if mount.startswith(str(top))]):
            subprocess.run(["umount", "-l", mount], check=False)
        shutil.rmtree(top, ignore_errors=True)


@pytest.fixture(scope="module")
def cli() -> Iterator[Cli]:
    """A node with a base image, started by `skerry up` and stopped at the end; nothing may be left."""
    reason = rootfs.container_reason()
    if reason:
        pytest.skip(reason)
    with place() as top:
        yield from node_at(top)


def node_at(top: Path) -> Iterator[Cli]:
    before = Watch()
    before.watch(own=(str(top),))
    cli = Cli(top)
    cli("up")
    try:
        cli(
            "image",
            "import",
            "base/debian:12",
            str(max(Path(rootfs.CACHE, "debian").glob("bookworm-*.tar"))),
        )
        yield cli
    finally:
        cli("up", "--stop", "--destroy", status=None)
    assert before.left() == []


@pytest.fixture
def kept(cli: Cli) -> Iterator[str]:
    """A sandbox that stays for the test."""
    said = cli("run", "--keep", "default", "--", "true").stderr.decode()
    sandbox_id = re.search(r"s[a-z2-7]{20}", said)
    assert sandbox_id is not None, said
    yield sandbox_id[0]
    cli("rm", sandbox_id[0], status=None)


def test_run_keeps_streams_apart_byte_exact_and_its_status(cli: Cli) -> None:
    done = cli(
        "run", "default", "--", "sh", "-c", r"printf 'a\377\r\n'; printf err >&2; exit 7", status=7
    )
    assert done.stdout == b"a\xff\r\n"
    assert done.stderr == b"err"
    assert cli.sandboxes() == []


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("--", "sh", "-c", "kill -TERM $$"), 143),
        (("--timeout", "0.5", "--", "sleep", "60"), 124),
        (("--", "no-such-program"), 127),
        (("--", "/etc/passwd"), 126),
        (("--workdir", "/none", "--", "true"), 126),
        (("--user", "nobody-here", "--", "true"), 126),
        (("--memory", "1", "--", "true"), 125),
        (("--layer", "workspace/none", "--", "true"), 125),
    ],
)
def test_run_ends_as_a_shell_would(cli: Cli, words: tuple[str, ...], status: int) -> None:
    done = cli("run", "default", *words, status=status)
    assert done.stderr.startswith(b"skerry: ") == (status in (124, 125, 126, 127))
    assert b"Traceback" not in done.stderr
    assert cli.sandboxes() == []


def test_run_takes_limits_environment_user_and_directory(cli: Cli) -> None:
    script = "nproc; id -un; pwd; echo $A; cat /sys/fs/cgroup/pids.max 2>/dev/null; true"
    done = cli(
        "run", "--cpu", "1", "--memory", "64MiB", "--pids", "20", "-e", "A=b c", "-u", "nobody",
        "-w", "/tmp", "default", "--", "sh", "-c", script,
    )  # fmt: skip
    assert done.stdout.decode().splitlines()[:4] == ["1", "nobody", "/tmp", "b c"]


def test_large_standard_input_comes_back_whole(cli: Cli) -> None:
    data = os.urandom(3 << 20)
    assert cli("run", "-i", "default", "--", "cat", stdin=data).stdout == data


def test_a_reader_that_goes_away_ends_the_command(cli: Cli) -> None:
    process = cli.start("run", "default", "--", "yes", stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read(4) == b"y\ny\n"
    process.stdout.close()
    assert process.wait(SECONDS) == 128 + signal.SIGPIPE
    assert cli.sandboxes() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_run_leaves_nothing(cli: Cli, number: signal.Signals) -> None:
    words = ("run", "default", "--", "sh", "-c", "sleep 100 & echo up; sleep 100")
    process = cli.start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.send_signal(number)
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 128 + number
    assert b"Traceback" not in said
    assert cli.sandboxes() == []


def test_exec_ls_inspect_logs_rm_of_a_sandbox_that_stays(cli: Cli, kept: str) -> None:
    done = cli(
        "exec",
        kept,
        "-e",
        "A=1",
        "--",
        "sh",
        "-c",
        "echo $A > /root/a; cat /root/a; exit 3",
        status=3,
    )
    assert done.stdout == b"1\n"
    assert cli("exec", kept, "--", "cat", "/root/a").stdout == b"1\n"
    assert [item["id"] for item in cli.sandboxes()] == [kept]
    assert kept.encode() in cli("ls").stdout
    looked = json.loads(cli("inspect", "--json", kept).stdout)
    assert (looked["state"], looked["usage"]["pids"] >= 0) == ("running", True)
    listed = [json.loads(line) for line in cli("logs", "--json", kept).stdout.splitlines()]
    assert [item["result"]["exit_code"] for item in listed] == [0, 3, 0]
    assert cli("logs", kept, listed[1]["op_id"]).stdout == b"1\n"
    assert cli("rm", kept).stdout.decode().split() == [kept]
    assert cli.sandboxes() == []
    assert b"skerry ls -a" in cli("exec", kept, "--", "true", status=125).stderr


def test_run_json_is_one_object(cli: Cli) -> None:
    done = cli("--json", "run", "default", "--", "sh", "-c", "echo out; exit 2", status=2)
    body = json.loads(done.stdout)
    assert (body["exit_code"], body["stdout"], done.stderr) == (2, "out\n", b"")


def test_an_error_with_json_is_one_object_on_stderr(cli: Cli) -> None:
    done = cli("--json", "run", "base/none:1", "--", "true", status=125)
    assert json.loads(done.stderr)["code"] == "not_found"
    assert done.stdout == b""


def test_files_and_trees_go_both_ways(cli: Cli, kept: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / ".hidden").write_bytes(b"\x00\xff")
    (tree / "sub/ö").write_text("x")
    (tree / "link").symlink_to("sub/ö")
    (tree / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tree / "run.sh").chmod(0o755)
    cli("cp", str(tree), f"{kept}:/srv")
    assert cli("exec", kept, "--", "/srv/tree/run.sh").stdout == b"ran\n"
    cli("cp", f"{kept}:/srv/tree", str(tmp_path / "back"))
    back = tmp_path / "back"
    assert (back / ".hidden").read_bytes() == b"\x00\xff"
    assert (back / "link").readlink() == Path("sub/ö")
    assert (back / "link").read_text() == "x"
    assert os.access(back / "run.sh", os.X_OK)
    single = json.loads(cli("cp", "--json", str(tree / ".hidden"), f"{kept}:/tmp/one").stdout)
    assert single["bytes"] == 2
    cli("cp", f"{kept}:/tmp/one", str(tmp_path / "one"))
    assert (tmp_path / "one").read_bytes() == b"\x00\xff"


def test_standard_streams_are_files_too(cli: Cli, kept: str) -> None:
    data = os.urandom(1 << 20)
    cli("cp", "-", f"{kept}:/tmp/data", stdin=data)
    assert cli("cp", f"{kept}:/tmp/data", "-").stdout == data
    archive = cli("cp", f"{kept}:/tmp", "-").stdout
    cli("exec", kept, "--", "mkdir", "/copy")
    cli("cp", "-", f"{kept}:/copy/", stdin=archive)
    assert cli("cp", f"{kept}:/copy/data", "-").stdout == data
    assert cli("cp", f"{kept}:/none", "-", status=125).stdout == b""


def test_a_layer_is_imported_used_built_upon_and_removed(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "opt/hello").mkdir(parents=True)
    (tmp_path / "opt/hello/hello.txt").write_text("hello\n")
    made = json.loads(cli("image", "import", "--json", "workspace/hello", str(tmp_path)).stdout)
    assert made["name"] == "workspace/hello:latest"
    done = cli("run", "--layer", "workspace/hello", "default", "--", "cat", "/opt/hello/hello.txt")
    assert done.stdout == b"hello\n"
    built = cli(
        "image", "build", "workspace/twice", "--from", "debian:12", "--context", str(tmp_path),
        "--step", "cat opt/hello/hello.txt opt/hello/hello.txt > /opt/twice",
    )  # fmt: skip
    assert b"$ cat opt" in built.stderr
    done = cli("run", "--layer", "workspace/twice", "default", "--", "cat", "/opt/twice")
    assert done.stdout == b"hello\nhello\n"
    names = [json.loads(line)["name"] for line in cli("image", "ls", "--json").stdout.splitlines()]
    assert {"base/debian:12", "workspace/hello:latest", "workspace/twice:latest"} <= set(names)
    cli("image", "rm", "workspace/hello", "workspace/twice")
    assert b"workspace/hello" in cli("image", "inspect", "workspace/hello", status=125).stderr


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, cli: Cli, *words: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execve(sys.executable, [*cli.prefix, *words], cli.env)
        self.seen = b""

    def expect(self, pattern: bytes) -> None:
        until = time.monotonic() + SECONDS
        while not re.search(pattern, self.seen):
            assert time.monotonic() < until, self.seen
            if select.select([self.fd], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.fd, 65_536)
                except OSError:
                    break
        assert re.search(pattern, self.seen), self.seen
        self.seen = b""

    def type(self, text: bytes) -> None:
        os.write(self.fd, text)

    def status(self) -> int:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    os.read(self.fd, 65_536)
                except OSError:
                    time.sleep(0.05)
        raise AssertionError("it does not end")


def test_a_shell_has_a_terminal_of_our_size_and_ends_with_its_status(cli: Cli) -> None:
    import fcntl
    import struct
    import termios

    shell = Terminal(cli, "shell", "--image", "default")
    shell.expect(rb"[#$] ")
    shell.type(b"tty; echo $TERM; stty size\n")
    shell.expect(rb"/dev/pts/\d+\s+xterm-256color\s+\d+ \d+")
    fcntl.ioctl(shell.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 123, 0, 0))
    time.sleep(0.5)
    shell.type(b"stty size\n")
    shell.expect(rb"40 123")
    shell.type(b"sleep 100\n")
    time.sleep(0.3)
    shell.type(b"\x03")  # goes to the shell inside, not to us
    shell.type(b"echo st$?\n")
    shell.expect(rb"st130")
    shell.type(b"exit 9\n")
    assert shell.status() == 9
    assert cli.sandboxes() == []


def test_a_shell_in_a_live_sandbox_sees_what_others_did(cli: Cli, kept: str) -> None:
    cli("exec", kept, "--", "touch", "/root/seen")
    shell = Terminal(cli, "shell", kept)
    shell.expect(rb"[#$] ")
    shell.type(b"ls /root\n")
    shell.expect(rb"seen[\s\S]*[#$] ")  # the prompt: Ctrl-D before it would not count
    shell.type(b"\x04")
    assert shell.status() == 0
    assert [item["id"] for item in cli.sandboxes()] == [kept]


def test_up_twice_finds_the_node_and_doctor_knows_it(cli: Cli) -> None:
    first = json.loads(cli("up", "--json").stdout)
    assert first["backends"] == {"container": "usable"}
    checks = [json.loads(line) for line in cli("doctor", "--json").stdout.splitlines()]
    by_name = {item["name"]: item for item in checks}
    assert first["node"] in by_name["node"]["found"]
    assert "base/debian:12" in by_name["base image"]["found"]


def test_a_stopped_node_leaves_its_sandboxes_to_the_next(cli: Cli, kept: str) -> None:
    cli("exec", kept, "--", "sh", "-c", "echo kept > /root/file")
    assert b"live on" in cli("up", "--stop").stderr
    cli("up")
    assert cli("exec", kept, "--", "cat", "/root/file").stdout == b"kept\n"


def test_a_shell_is_left_and_joined_again_and_the_terminal_is_restored(cli: Cli, kept: str) -> None:
    import termios

    shell = Terminal(cli, "shell", kept)
    before = termios.tcgetattr(shell.fd)
    shell.expect(rb"[#$] ")
    shell.type(b"here=$((40 + 2)); echo at-$here\n")
    shell.expect(rb"at-42")
    shell.type(b"\x1dd")
    shell.expect(rb"skerry attach \S+ ([0-9a-f]+)")
    assert termios.tcgetattr(shell.fd)[3] == before[3]
    assert shell.status() == 0
    op = cli("ps", kept, "--json").stdout
    op_id = json.loads(op)["op_id"]
    again = Terminal(cli, "attach", kept, op_id[:8])
    again.expect(rb"at-42")
    again.type(b"echo back-$((here + 1))\n")
    again.expect(rb"back-43")
    other = Terminal(cli, "attach", kept, op_id[:8], "--takeover")
    again.expect(rb"taken over by")
    assert again.status() == 0
    other.type(b"exit 6\n")
    assert other.status() == 6
    assert [item["id"] for item in cli.sandboxes()] == [kept]


def test_a_command_in_the_background_is_listed_followed_and_killed(cli: Cli, kept: str) -> None:
    line = "echo begun; while :; do sleep 0.1; done"
    op = cli("exec", "-d", kept, "--", "sh", "-c", line).stdout.decode().strip()
    assert op in cli("ps", kept, "--json").stdout.decode()
    follower = Terminal(cli, "logs", "-f", kept, op)
    follower.expect(rb"begun")  # it has not ended, and is shown
    cli("kill", kept, op[:10])
    assert follower.status() == 0
    assert cli("ps", kept, "--json").stdout == b""
    assert cli("exec", kept, "--no-output-timeout", "300ms", "--", "sleep", "50", status=124)
