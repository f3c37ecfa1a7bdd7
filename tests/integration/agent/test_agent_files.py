"""The real `skerry-init`: what file operations do, and as whom."""

from __future__ import annotations

import errno
import random
from pathlib import Path

from native_agent import (
    EXIT_CODE,
    REAL,
    Client,
    failed,
    records,
    shell,
)
from native_sandbox import Sandbox

pytestmark = REAL


def test_write_and_read_back_is_exact_and_atomic(client: Client) -> None:
    data = random.Random(3).randbytes(3_000_000)
    op = client.file("write", "/tmp/w/x/file", "640", "p", stdin_data=data)
    assert records(op.stdout)[b"/tmp/w/x/file"][:5] == ("f", 0o640, 0, 0, len(data))
    assert client.file("read", "/tmp/w/x/file", "0", "-1").stdout == data
    assert client.file("read", "/tmp/w/x/file", "1000", "10").stdout == data[1000:1010]
    assert client.file("read", "/tmp/w/x/file", "3000000", "-1").stdout == b""
    assert list(records(client.file("list", "/tmp/w/x").stdout)) == [b"file"], "no temporary stays"


def test_write_flags_append_exclusive_and_parents(client: Client) -> None:
    client.file("write", "/tmp/flags", "644", "-", stdin_data=b"a")
    client.file("write", "/tmp/flags", "644", "a", stdin_data=b"b")
    assert client.file("read", "/tmp/flags", "0", "-1").stdout == b"ab"
    assert (
        failed(client.file("write", "/tmp/flags", "644", "x", stdin_data=b"c"))[0] == errno.EEXIST
    )
    assert (
        failed(client.file("write", "/tmp/no/dir", "644", "-", stdin_data=b"c"))[0] == errno.ENOENT
    )
    assert failed(client.file("write", "/tmp", "644", "-", stdin_data=b"c"))[0] == errno.EISDIR


def test_write_through_a_link_keeps_the_link(client: Client) -> None:
    shell(client, "cd /tmp; echo old > target; ln -sf target link; chown 1000:1000 target")
    client.file("write", "/tmp/link", "600", "-", stdin_data=b"new")
    listed = records(client.file("list", "/tmp").stdout)
    assert listed[b"link"][0] == "l"
    assert listed[b"link"][5] == b"target"
    assert listed[b"target"][:5] == ("f", 0o600, 1000, 1000, 3), "the owner stays"


def test_words_run_as_the_user_for_whom_they_act(client: Client) -> None:
    shell(client, "umask 077; mkdir -p /tmp/private; echo secret > /tmp/private/x")
    for words in (
        ["read", "/tmp/private/x", "0", "-1"],
        ["list", "/tmp/private"],
        ["write", "/tmp/private/y", "644", "-"],
        ["tree-get", "/tmp/private"],
    ):
        assert failed(client.file(*words, user="1000:1000"))[0] == errno.EACCES
    op = client.file("write", "/tmp/mine", "644", "-", stdin_data=b"", user="1000:1001")
    assert records(op.stdout)[b"/tmp/mine"][2:4] == (1000, 1001)


def test_file_that_is_closed_to_its_user_is_not_replaced(client: Client) -> None:
    """The directory would allow it, as a new file is renamed into the old one's place."""
    shell(client, "mkdir -m 777 /tmp/open; cd /tmp/open; echo old > kept; chmod 444 kept")
    shell(client, "cd /tmp/open; chown 1000:1000 kept; ln -s kept link")
    for path in ("/tmp/open/kept", "/tmp/open/link"):
        for flags in ("-", "k", "a", "p"):
            op = client.file("write", path, "644", flags, stdin_data=b"new", user="1000:1000")
            assert failed(op) == (errno.EACCES, "open")
    assert client.file("read", "/tmp/open/kept", "0", "-1").stdout == b"old\n"
    client.file("write", "/tmp/open/kept", "644", "k", stdin_data=b"root may")
    assert client.file("read", "/tmp/open/kept", "0", "-1").stdout == b"root may"


def test_fifo_and_device_do_not_hang_reads(client: Client) -> None:
    shell(client, "mkfifo /tmp/fifo")
    assert failed(client.file("read", "/tmp/fifo", "0", "-1", timeout_ms=5000))[0] == errno.EINVAL
    assert failed(client.file("write", "/tmp/fifo", "644", "-", stdin_data=b"", timeout_ms=5000))
    assert failed(client.file("read", "/tmp", "0", "-1"))[0] == errno.EISDIR


def test_mkdir_remove_rename_chmod_stat(client: Client) -> None:
    client.file("mkdir", "/tmp/d/e/f", "1777", "p")
    assert records(client.file("stat", "/tmp/d/e/f").stdout)[b"/tmp/d/e/f"][:2] == ("d", 0o1777)
    assert failed(client.file("mkdir", "/tmp/d/e/f", "755", "-"))[0] == errno.EEXIST
    assert client.file("mkdir", "/tmp/d/e/f", "755", "p").done[EXIT_CODE] == 0  # type: ignore[index]
    for path in ("/", "/tmp/d/.", "/tmp/d/e/.."):
        assert client.file("mkdir", path, "755", "p").done[EXIT_CODE] == 0  # type: ignore[index]
    assert failed(client.file("mkdir", "/", "755", "-"))[0] == errno.EINVAL
    client.file("rename", "/tmp/d/e/f", "/tmp/d/g")
    client.file("chmod", "/tmp/d/g", "700")
    assert records(client.file("list", "/tmp/d").stdout)[b"g"][1] == 0o700
    assert failed(client.file("remove", "/tmp/d", "-"))[0] == errno.ENOTEMPTY
    assert client.file("remove", "/tmp/d", "r").done[EXIT_CODE] == 0  # type: ignore[index]
    assert failed(client.file("stat", "/tmp/d"))[0] == errno.ENOENT


def test_remove_of_a_very_deep_tree_succeeds(client: Client) -> None:
    deep = (
        "import os\nos.mkdir('/tmp/deep'); os.chdir('/tmp/deep')\n"
        "for i in range(3000):\n os.mkdir('d'); os.chdir('d')"
    )
    client.file("write", "/tmp/deep.py", "644", "-", stdin_data=deep.encode())
    assert client.run("/usr/bin/python3", "/tmp/deep.py").done[EXIT_CODE] == 0  # type: ignore[index]
    op = client.file("remove", "/tmp/deep", "r")
    assert op.done[EXIT_CODE] == 0, op.stderr  # type: ignore[index]


def test_large_file_streams_in_constant_memory(
    client: Client, sandbox: Sandbox, binary: Path
) -> None:
    shell(client, "truncate -s 60M /tmp/large")
    assert len(client.file("read", "/tmp/large", "0", "-1").stdout) == 60 << 20
    status = Path(f"/proc/{sandbox.init_pid()}/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0])
    assert peak < (1024 if "release" in str(binary) else 32768), peak
    client.file("remove", "/tmp/large", "-")
