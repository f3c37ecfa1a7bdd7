"""What tests of harnesses look at: which sandboxes there are, and whether something has happened."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import skerry
from interop.tools import ROOT

T = TypeVar("T")
PATIENCE_S = 60.0


def sandboxes(**labels: str) -> list[str]:
    """Returns the ids of those that live and have these labels."""
    with skerry.connect() as client:
        found = client.sandboxes.list(labels=labels)
    return [info.id for info in found if info.state not in ("stopped", "failed")]


def examples(page: str) -> list[str]:
    """Returns the Python examples of a page of docs/guide that use an adapter, for this image."""
    text = (ROOT / "docs" / "guide" / page).read_text()
    found = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    image = os.environ["INTEROP_IMAGE"]
    return [block.replace("base/agents", image) for block in found if "skerry.compat" in block]


def until(question: Callable[[], T], what: str) -> T:
    """Asks until the answer is true, and returns it; AssertionError after a minute."""
    give_up = time.monotonic() + PATIENCE_S
    while not (answer := question()):
        assert time.monotonic() < give_up, f"it never happened: {what}"
        time.sleep(0.1)
    return answer


def interrupted(script: Path, *arguments: str, ready: Callable[[], object]) -> int:
    """Runs a script, sends it Ctrl-C once it is `ready`, and returns its exit status."""
    process = subprocess.Popen(
        [sys.executable, str(script), *arguments], stdin=subprocess.DEVNULL, text=True
    )
    try:
        until(ready, f"{script.name} is where it is to be interrupted")
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        return process.wait(PATIENCE_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
