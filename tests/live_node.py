"""A real node as a process of its own, for tests: started, killed, started again, and gone at the end.

Its state lies on a disk and its run directory under /run; the layers can be shared by many nodes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from skerry.sdk.client import AsyncClient, connect
from skerry.testing.census import Watch

START_S = 30.0
STOP_S = 150.0  # an orderly end has several parts, of 30 s at most each (`end_within_s`)


class LiveNode:
    """A node in directories of its own. What `stop` returns is what it left behind."""

    alive: ClassVar[list[LiveNode]] = []  # the others are no business of a census

    def __init__(
        self, store: str | None = None, *, options: str = "", program=(), below: str = "/var/tmp"
    ) -> None:
        self.state = tempfile.mkdtemp(prefix="skerry-state-", dir=below)
        self.run = tempfile.mkdtemp(prefix="skerry-", dir="/run")
        # "": the options say where.
        self.store = f"{self.state}/store" if store is None else store
        self._config = Path(self.state, "node.toml")
        place = f'store_dir = "{self.store}"\n' if self.store else ""
        place += f'registry_cache_dir = "{self.state}/oci"\n'
        self._config.write_text(f"{place}keep_on_exit = false\n{options}\n")
        self._argv = [*(program or (sys.executable, "-m", "skerry.cli.main")), "node"]
        self._argv += ["--config", str(self._config), "--state", self.state, "--run", self.run]
        self._process: subprocess.Popen[bytes] | None = None
        self.watch = Watch()
        self.watch.watch(places=(self.state, self.run))

    @property
    def url(self) -> str:
        return f"unix://{self.run}/node.sock"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def client(self) -> AsyncClient:
        return connect(self.url)

    def launcher(self) -> int:
        """Returns the launcher's process id; 0 while there is none."""
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                stat = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            ours = words[0].endswith(b"skerry-spawn") and f"{self.run}/container".encode() in words
            # The processes that it forks look like it, and may outlive it; it leads its session.
            if ours and stat.rpartition(")")[2].split()[3] == name:
                return int(name)
        return 0

    @contextlib.contextmanager
    def running(self) -> Iterator[LiveNode]:
        """Runs it for a block, and asserts that it leaves nothing behind."""
        self.start()
        try:
            yield self
        finally:
            left = self.stop()
        assert not left, left

    def start(self) -> LiveNode:
        """Starts it, again too; returns when it answers."""
        with Path(self.log).open("ab") as log:
            self._process = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/"
            )
        if self not in self.alive:
            self.alive.append(self)
        until = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"the node does not start:\n{self.tail()}")
            time.sleep(0.02)
        return self

    def _answers(self) -> bool:
        """Asks for its health by hand: no loop and no threads are needed for that."""
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(self.url.removeprefix("unix://"))
                client.sendall(b"GET /v1/health HTTP/1.0\r\n\r\n")
                return b" 200 " in client.recv(4096)
        except OSError:
            return False

    @property
    def log(self) -> str:
        return f"{self.state}/node.log"

    def tail(self) -> str:
        return "\n".join(Path(self.log).read_text(errors="replace").splitlines()[-20:])

    def kill(self) -> None:
        """Ends the node as a crash would; the launcher and the sandboxes live on."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> list[str]:
        """Destroys everything and returns what the census found left."""
        process = self._process
        killed = ""
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                killed = f"it did not end within {STOP_S:g} s and was killed; "
        if self not in self.alive:
            return []
        self.alive.remove(self)
        said = self.tail()
        for place in (self.state, self.run):
            shutil.rmtree(place, ignore_errors=True)
        # Nodes mount nothing below /tmp; other tests on this machine do. The S3 server is of the run.
        others = [" on /tmp/", "/weed -logtostderr server ", "/skerry-s3-"]
        others += [
            word for node in self.alive for word in (node.state, node.run, f"process {node.pid} ")
        ]
        left = self.watch.left(others=tuple(others))
        return [*left, f"{killed}the node's log ends with:\n{said}"] if left else []
