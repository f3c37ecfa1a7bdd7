"""The node under test on a small disk of its own, and what can be seen of it from outside."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import msgspec

from live_node import LiveNode
from skerry.testing.census import descriptors

DISK_BYTES = 6 << 30
LEASE_S = 10
SETTLE_S = 20.0
SPARE_UPPERS_MAX = 256


class Sample(msgspec.Struct, frozen=True):
    """What the daemons hold; memory in KiB."""

    pid: int
    node_kib: int
    node_fds: int
    node_threads: int
    launcher: int
    launcher_kib: int
    launcher_fds: int
    slots: int
    journal_kib: int
    worker: int
    worker_kib: int
    worker_fds: int


class Disk:
    """A file system in a file, mounted below a directory of its own."""

    def __init__(self) -> None:
        self.place = tempfile.mkdtemp(prefix="skerry-soak-", dir="/var/tmp")
        self.root = f"{self.place}/disk"
        image = f"{self.place}/disk.img"
        os.mkdir(self.root)
        with open(image, "wb") as file:
            file.truncate(DISK_BYTES)
        for argv in (
            ["mkfs.ext4", "-q", "-F", "-m", "0", image],
            ["mount", "-o", "loop", image, self.root],
        ):
            subprocess.run(argv, check=True, capture_output=True)

    def fill(self, leave: int) -> None:
        """Takes all but that many bytes."""
        facts = os.statvfs(self.root)
        take = facts.f_bavail * facts.f_frsize - leave
        with open(f"{self.root}/ballast", "wb") as file:
            while take > 1 << 20:
                try:
                    os.posix_fallocate(file.fileno(), 0, take)
                except OSError:
                    take = take * 9 // 10
                else:
                    return

    def free(self) -> None:
        """Gives it back."""
        Path(f"{self.root}/ballast").unlink(missing_ok=True)

    def close(self) -> None:
        """Removes everything."""
        subprocess.run(["umount", self.root], check=False, capture_output=True)
        shutil.rmtree(self.place, ignore_errors=True)


class Host:
    """The node, and the state that an epoch must leave as it was."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.node = LiveNode(options=f"lease_s = {LEASE_S}", below=self.disk.root)
        self._mounts = 0

    def keep_log(self) -> str:
        """Copies the logs of node and launcher to where they outlive the run."""
        kept = f"/var/tmp/skerry-soak-{os.getpid()}.log"
        with open(kept, "wb") as file:
            for part in (self.node.log, f"{self.node.run}/container/spawn.log"):
                if os.path.exists(part):
                    file.write(Path(part).read_bytes())
        return kept

    def close(self) -> list[str]:
        """Stops the node; returns what the full census finds left."""
        self.disk.free()
        try:
            return self.node.stop()
        finally:
            self.disk.close()

    def sample(self) -> Sample:
        """Looks at the daemons."""
        pid, launcher, worker = self.node.pid, self.node.launcher(), self.worker()
        return Sample(
            pid=pid,
            node_kib=_status(pid, "VmRSS"),
            node_fds=sum(descriptors(pid).values()),
            node_threads=_status(pid, "Threads"),
            launcher=launcher,
            launcher_kib=_status(launcher, "VmRSS"),
            launcher_fds=sum(descriptors(launcher).values()),
            slots=self.slots(),
            journal_kib=sum(
                file.stat().st_blocks // 2 for file in Path(self.node.state, "journal").iterdir()
            ),
            worker=worker,
            worker_kib=_status(worker, "VmRSS"),
            worker_fds=sum(descriptors(worker).values()) if worker else 0,
        )

    def worker(self) -> int:
        """Returns the process id of the node's worker; 0 while there is none."""
        socket = f"{self.node.run}/workers/0.sock"
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if socket.encode() in Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0"):
                    return int(name)
        return 0

    def slots(self) -> int:
        """Counts the slots' memory groups (or cgroup2 ones)."""
        root = self.groups()
        return sum(os.path.isdir(f"{root}/{name}") for name in os.listdir(root)) if root else 0

    def groups(self) -> str:
        """Returns where this node's slots have their groups."""
        with open(f"{self.node.state}/name") as file:
            name = f"skerry-{file.read().strip()}"
        for base in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup"):
            if os.path.isdir(f"{base}/{name}"):
                return f"{base}/{name}"
        return ""

    def left(self) -> list[str]:
        """Returns what should not be there while no sandbox lives, after some time to settle."""
        until = time.monotonic() + SETTLE_S
        while True:
            found = self._left()
            if not found or time.monotonic() > until:
                return found
            time.sleep(0.2)

    def _left(self) -> list[str]:
        out: list[str] = []
        launcher = self.node.launcher()
        if not launcher:
            return ["there is no launcher"]
        out += [f"process {pid} below the launcher: {_command(pid)}" for pid in _children(launcher)]
        for where in (f"{self.node.run}/container/i", f"{self.node.state}/spool"):
            out += [f"{where}/{name}" for name in os.listdir(where)]
        if os.path.isdir(books := f"{self.node.state}/workers/0/jobs"):
            out += [f"{books}/{name}" for name in os.listdir(books)]
        uppers = os.listdir(f"/proc/{launcher}/root/upper")
        if len(uppers) > SPARE_UPPERS_MAX:
            out.append(f"{len(uppers)} uppers")
        out += [f"upper {name}" for name in uppers if not name.startswith(".")]
        # Layers stay mounted for a while after their last use.
        table = Path(f"/proc/{launcher}/mountinfo").read_text().splitlines()
        mounts = sum("/layers/" not in line for line in table)
        self._mounts = self._mounts or mounts
        if mounts > self._mounts + 4:
            out.append(f"{mounts} mounts in the launcher's namespace, were {self._mounts}")
        return out


def _status(pid: int, name: str) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1])
    except OSError:
        return 0
    return 0


def _children(parent: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == parent:
                found.append(int(name))
    return found


def _command(pid: int) -> str:
    try:
        return (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode("utf-8", "replace")
        )
    except OSError:
        return "(gone)"
