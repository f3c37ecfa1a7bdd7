"""Secrets appear in no log and on no command line, and settings are never evaluated (report 76)."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

import pytest

from live_node import LiveNode
from skerry.errors import SkerryError
from skerry.sdk.client import connect

pytestmark = pytest.mark.root


def command_lines() -> dict[int, bytes]:
    """What every process of the host shows to everyone."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                found[int(name)] = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
    return found


async def test_no_secret_is_in_a_log_or_on_a_command_line(layer_store, tmp_path):
    token = secrets.token_hex(16)
    mark = f"mark-{secrets.token_hex(8)}"
    trap = tmp_path / "evaluated"
    options = (
        f'tcp = "127.0.0.1:0"\ntokens = ["{token}"]\nlog_format = "json"\n'
        f'[weights]\n"$(touch {trap})`touch {trap}`" = 1.0'
    )
    node = LiveNode(layer_store, options=options).start()
    try:
        log = Path(node.log)
        port = next(
            word
            for line in log.read_text().splitlines()
            if "port" in line
            for word in json.loads(line)["message"].split()
            if word.isdecimal()
        )
        seen: set[bytes] = set()
        async with connect(f"http://127.0.0.1:{port}", token) as client:
            with pytest.raises(SkerryError):
                async with connect(f"http://127.0.0.1:{port}", f"{token}x") as stranger:
                    await stranger.sandboxes.list()
            sandbox = await client.sandboxes.create(
                env={"KEY": f"{mark}-env", "TRAP": f"$(touch {trap})"},
                labels={"trap": f"`touch {trap}`"},
            )
            secret = {"env": {"KEY": f"{mark}-env"}, "stdin": f"{mark}-stdin"}
            ran = await sandbox.run("cat; echo $KEY; sleep 0.2", **secret)
            assert f"{mark}-stdin{mark}-env" in ran.text  # the positive control: it went through
            for broken in (["nonesuch"], "exit 3", "kill -9 $$"):
                await sandbox.run(broken, **secret)
            seen |= set(command_lines().values())
            await sandbox.run("sleep 10", timeout=0.2, **secret)
            # the launcher is killed, restarted, and the node too: what they log then counts
            os.kill(node.launcher(), 9)
            await sandbox.run("true", **secret)
            with pytest.raises(SkerryError):
                await client.sandboxes.create(image=f"none:{'x' * 300}", env=secret["env"])
            seen |= set(command_lines().values())
            await sandbox.destroy()
        said = log.read_bytes()
        for name in os.listdir(f"{node.run}/container"):
            if name.startswith("spawn.log"):
                said += Path(node.run, "container", name).read_bytes()
        assert b"the launcher" in said  # something was logged
        for what in (token, mark):
            assert what.encode() not in said
            mine = [line for line in seen if what.encode() in line]
            assert not mine, mine
        assert not trap.exists()
        for line in log.read_text().splitlines():
            assert json.loads(line)["level"] in ("info", "warning", "error")
    finally:
        left = node.stop()
    assert not left
