"""A node over TCP, and the embedded one, through the real command."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_cli_live import place

from skerry.testing import rootfs
from skerry.testing.census import Watch

pytestmark = pytest.mark.root


@pytest.fixture(autouse=True)
def possible() -> None:
    reason = rootfs.container_reason()
    if reason:
        pytest.skip(reason)


@pytest.fixture
def top() -> Iterator[Path]:
    with place() as made:
        yield made


def skerry(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if "SKERRY" not in key}
    argv = [sys.executable, "-m", "skerry.cli.main", *words]
    return subprocess.run(
        argv, env=clean | env, capture_output=True, text=True, timeout=60, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_up_with_listen_serves_who_has_the_token_only(top: Path) -> None:
    local = ("--state", str(top / "s"), "--run", str(top / "r"))
    address = f"127.0.0.1:{free_port()}"
    before = Watch()
    before.watch(own=(str(top),))
    made = skerry(*local, "--json", "up", "--listen", address)
    assert made.returncode == 0, made.stderr
    try:
        said = json.loads(made.stdout)
        token = Path(said["token_file"]).read_text().strip()
        assert Path(said["token_file"]).stat().st_mode & 0o077 == 0
        good = skerry("ls", "--json", SKERRY_URL=said["url"], SKERRY_TOKEN=token)
        assert (good.returncode, good.stdout) == (0, "")
        bad = skerry("ls", SKERRY_URL=said["url"], SKERRY_TOKEN="x" * 43)
        assert bad.returncode == 125
        assert "SKERRY_TOKEN" in bad.stderr
    finally:
        assert skerry(*local, "up", "--stop", "--destroy").returncode == 0
    assert before.left() == []


def test_an_address_where_nobody_listens_is_said_so() -> None:
    done = skerry("ls", "--json", SKERRY_URL=f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 125
    assert json.loads(done.stderr)["code"] == "unavailable"


def test_without_a_node_an_embedded_one_comes_and_goes(top: Path) -> None:
    local = ("--state", str(top / "s"), "--run", str(top / "r"))
    before = Watch()
    before.watch(own=(str(top),))
    done = skerry(*local, "ls", "--json")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    until = time.monotonic() + 30
    while (top / "r/node.sock").exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert str(top) not in skerry("census", "--json").stdout
    assert before.left() == []
