"""The driver of a session's shell by itself: the shells of this host run it, without an agent."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from skerry.backends.shared import proc
from skerry.guest import shells
from waiting import soon

SHELLS = [
    pytest.param(
        name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not here")
    )
    for name in ("bash", "dash", "busybox", "mksh", "zsh", "ksh93")
]


@contextlib.contextmanager
def started(shell: str, stdin: int, extra: dict[int, int]) -> Iterator[subprocess.Popen[bytes]]:
    """The shell in a process group of its own, which is killed in the end whatever it became."""

    def give() -> None:
        for number, descriptor in extra.items():
            os.dup2(descriptor, number)

    process = subprocess.Popen(
        shells.argv(shutil.which(shell) or shell),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        close_fds=False,  # the rest are closed at exec anyway
        preexec_fn=give,  # noqa: PLW1509 - two system calls, in a test of one thread
        process_group=0,
    )
    with process:
        try:
            yield process
        finally:
            for _ in range(100):  # a chain of forks is faster than one signal
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    break
                time.sleep(0.01)


def ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the shell and all that it forked come to an end."""
    return soon(lambda: process.poll() is not None and not in_group(process.pid))


def in_group(group: int) -> list[int]:
    """The processes of a group that run; orphans that nobody has collected yet do not."""
    pids = [int(name) for name in proc.names("/proc") if name.isdigit()]
    return [pid for pid in pids if proc.runs(pid) and group_of(pid) == group]


def group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


@pytest.mark.parametrize("shell", SHELLS)
def test_a_driver_without_its_descriptors_ends_and_forks_nothing(shell: str) -> None:
    with started(shell, subprocess.DEVNULL, {}) as process:
        assert ended(process)
        assert process.returncode != 0


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("script", [b"exit 3\n", b"true\n", b"(\n", b"set -e; false\n"])
def test_a_driver_whose_host_is_gone_ends(shell: str, script: bytes) -> None:
    with contextlib.ExitStack() as stack:
        numbers, ask = os.pipe()
        answers, answer = os.pipe()
        file = os.memfd_create("script")
        for descriptor in (numbers, ask, answers, answer, file):
            stack.callback(os.close, descriptor)
        os.write(file, script)
        high = {8: fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 200)}
        high[9] = fcntl.fcntl(answer, fcntl.F_DUPFD_CLOEXEC, 200)
        for descriptor in high.values():
            stack.callback(os.close, descriptor)
        with started(shell, numbers, high) as process:
            os.write(ask, b"1\n")
            assert os.read(answers, 100).startswith(b"1 ")
            stack.close()  # every end of a pipe that the agent would hold
            assert ended(process)
