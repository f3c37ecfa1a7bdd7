"""A server of ours in a process of its own, as a user starts it, on an image with compilers."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys

import pytest

import skerry

IMAGE = "interop/judge"
PACKAGES = ("python3", "g++", "nodejs", "perl", "python3-pytest")


@contextlib.contextmanager
def server(*options, how=signal.SIGINT):
    """Yields what it prints."""
    argv = [sys.executable, "-m", "skerry.compat.sandboxfusion", "--port", "0", *options]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
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


@pytest.fixture(scope="session")
def judge_image():
    with skerry.connect() as client:
        client.images.debian(IMAGE, "bookworm", PACKAGES)
    return IMAGE


@pytest.fixture(scope="session")
def url(judge_image):
    """The address of a server for the whole run."""
    with server("--image", judge_image, "--module", "json", "--wait", "60") as told:
        yield told["url"]
