"""A server of ours in a process of its own, as a user starts it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys

TOKEN = "interop-token"


@contextlib.contextmanager
def server(*options, how=signal.SIGINT):
    argv = [sys.executable, "-m", "skerry.compat.swerex", "--image", os.environ["INTEROP_IMAGE"]]
    process = subprocess.Popen(
        [*argv, "--port", "0", "--auth-token", TOKEN, *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        assert line, f"it ended with {process.wait()}"
        yield json.loads(line)
    finally:
        process.send_signal(how)
        try:
            process.wait(30)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
