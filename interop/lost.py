"""A node of a test's own, which may be killed under a harness: all others share one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator

import skerry
from interop.looking import until
from interop.tools import ROOT

ENDS_S = 150.0
# What a harness may take to tell of a node that is gone, and to end: less than two of the minutes in
# which one is looked for.
TOLD_WITHIN_S = 115.0
# LiveNode is of the checkout's environment, and not of a harness's.
_CODE = """
import signal
import sys
from interop.environments import CACHE
from live_node import LiveNode
node = LiveNode(str(CACHE / "store")).start()
killed = False
signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with who asks
print(node.url, flush=True)
for line in sys.stdin:
    killed = line == "kill\\n"
    node.kill() if killed else node.start()
    print("done", flush=True)
if killed:
    node.start()  # for its sandboxes to end
node.stop()
"""


class OtherNode:
    """A node with the layers of the shared one, as a process of a process of ours."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [str(ROOT / ".venv" / "bin" / "python"), "-c", _CODE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}:{ROOT / 'tests'}"},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._words, self._answers = self._process.stdin, self._process.stdout
        self.url = self._answers.readline().strip()
        self.killed_at = 0.0

    def kill(self) -> None:
        """Ends it as a crash would; its sandboxes live on, and nobody reaches them."""
        self._tell("kill")
        self.killed_at = time.monotonic()

    def start(self) -> None:
        """Starts it again; it finds its sandboxes."""
        self._tell("start")

    def wait_for(self, command: str, count: int = 1) -> None:
        """Returns once commands in so many of its sandboxes say that text."""
        with skerry.connect(self.url) as client:

            def busy() -> bool:
                found = [client.sandboxes.get(info.id) for info in client.sandboxes.list()]
                said = [[one.status.command for one in sandbox.commands()] for sandbox in found]
                return sum(any(command in line for line in lines) for lines in said) >= count

            until(busy, f"{command} runs in {count} sandboxes")

    def kill_under(self, command: str, count: int = 1) -> None:
        """Kills it then."""
        self.wait_for(command, count)
        self.kill()

    def end(self) -> None:
        """Leaves nothing of it; one that was killed is started again for that."""
        self._words.close()
        assert self._process.wait(ENDS_S) == 0

    def _tell(self, word: str) -> None:
        self._words.write(f"{word}\n")
        self._words.flush()
        assert self._answers.readline() == "done\n"


@contextlib.contextmanager
def other_node() -> Iterator[OtherNode]:
    """Runs one for a block."""
    node = OtherNode()
    try:
        yield node
    finally:
        node.end()
