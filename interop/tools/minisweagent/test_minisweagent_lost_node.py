"""The node dies under a command of `mini`'s, and does not come back."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time

from scripted_turns import ENVIRONMENT, configuration, sandboxed

from interop.lost import TOLD_WITHIN_S, other_node


def test_a_node_that_is_gone_ends_the_run_under_that_name_with_nothing_submitted(tmp_path) -> None:
    argv = ["mini", "-c", "mini.yaml", "-y", "--exit-immediately", "-t", "wait"]
    with other_node() as node:
        environment = sandboxed(url=node.url, timeout=600)
        config = configuration(tmp_path, "sleep 500", environment=environment)
        threading.Thread(target=node.kill_under, args=("sleep 500",)).start()
        done = subprocess.run(
            [*argv, "-c", str(config), "-o", str(tmp_path / "traj.json")],
            env=os.environ | ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert time.monotonic() - node.killed_at < TOLD_WITHIN_S
    assert done.returncode != 0
    assert "Unavailable: cannot reach the node at" in " ".join(done.stdout.split())
    info = json.loads((tmp_path / "traj.json").read_text())["info"]
    assert info["exit_status"] == "Unavailable"
    assert info["submission"] == ""
