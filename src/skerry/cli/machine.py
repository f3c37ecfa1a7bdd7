"""A machine as `skerry doctor` looks at it: texts, names, the kernel's options and calls."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gzip
import os

from skerry.backends.shared import proc


class Machine:
    """The machine that this runs on. Everything here reads; a call is made so that it must fail."""

    def __init__(self) -> None:
        self._options: dict[str, str] | None = None
        self._libc = ctypes.CDLL(None, use_errno=True)

    def text(self, path: str) -> str:
        """Returns a file's text without surrounding blanks; "" if it cannot be read."""
        return proc.text(path)

    def exists(self, path: str) -> bool:
        """Returns whether there is something."""
        return os.path.exists(path)

    def names(self, path: str) -> list[str]:
        """Returns what a directory holds, sorted; nothing if it cannot be read."""
        return proc.names(path)

    def release(self) -> tuple[int, int]:
        """Returns the kernel's (major, minor) version."""
        words = os.uname().release.split(".")
        with contextlib.suppress(ValueError, IndexError):
            return int(words[0]), int(words[1].partition("-")[0])
        return (0, 0)

    def option(self, name: str) -> str | None:
        """Returns what CONFIG_NAME is set to: y, m, or n; None if the configuration is not told."""
        if self._options is None:
            self._options = _parse(self._configuration())
        if not self._options:
            return None
        return self._options.get(name, "n")

    def call(self, number: int, *arguments: int) -> int:
        """Returns the errno of a system call with these arguments; 0 if it did not fail."""
        words = [ctypes.c_long(argument) for argument in arguments]
        words += [ctypes.c_long(0)] * (6 - len(words))
        self._libc.syscall.restype = ctypes.c_long
        result = self._libc.syscall(ctypes.c_long(number), *words)
        return ctypes.get_errno() if result < 0 else 0

    def has_call(self, number: int, *arguments: int) -> bool:
        """Returns whether the kernel knows a call, asked with arguments that it must refuse."""
        return self.call(number, *arguments) != errno.ENOSYS

    def opens(self, path: str) -> str:
        """Returns "" if a device can be opened for reading and writing, else why not."""
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except OSError as error:
            return error.strerror or "cannot be opened"
        return ""

    def _configuration(self) -> str:
        with contextlib.suppress(OSError, EOFError), gzip.open("/proc/config.gz", "rt") as file:
            return file.read()
        release = os.uname().release
        return self.text(f"/boot/config-{release}") or self.text(f"/lib/modules/{release}/config")


def _parse(text: str) -> dict[str, str]:
    options = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and name.startswith("CONFIG_"):
            options[name.removeprefix("CONFIG_")] = value
    return options
