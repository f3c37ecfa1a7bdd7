"""Skerry's errors in Inspect's terms.

Inspect tells the model of OSErrors, ToolErrors and an unavailable sandbox, and the sample goes on; any
other exception is an error of the sample, which `--retry-on-error` runs again. So what the agent caused
becomes one of the former, and a platform fault passes as it is: it must never look like an answer.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from inspect_ai.tool import ToolError
from inspect_ai.util import (
    OutputLimitExceededError,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
)
from rich.markup import escape

from skerry.compat.outcome import is_of_platform
from skerry.compat.reading import FileTooLong
from skerry.errors import (
    FileDenied,
    FileRefused,
    InvalidRequest,
    NotFound,
    SandboxFailed,
    SkerryError,
)

try:  # shown without a traceback; no part of its public names
    from inspect_ai._util.error import PrerequisiteError
except ImportError:
    PrerequisiteError = RuntimeError

_OS = {
    errno.ENOENT: FileNotFoundError,
    errno.ENOTDIR: FileNotFoundError,  # Inspect has no word for it
    errno.EISDIR: IsADirectoryError,
}


class TaskRefused(PrerequisiteError):
    """A task asks for a sandbox that there cannot be; the message names what, and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = escape(message)  # Inspect prints it as markup


@contextmanager
def in_inspects_terms(file: str | None = None) -> Iterator[None]:
    """Raises what happens in the block as Inspect knows it; `file` is the path that the caller gave."""
    try:
        yield
    except (FileRefused, NotFound, InvalidRequest, SandboxFailed) as error:
        if is_of_platform(error):
            raise
        raise _of_agent(error, file) from error


def _of_agent(error: SkerryError, file: str | None) -> Any:
    if isinstance(error, FileTooLong):
        return OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
    if isinstance(error, SandboxFailed):
        return SandboxUnavailableError(error.message)
    if isinstance(error, InvalidRequest):  # an argument that is too long, for instance
        return ToolError(error.message)
    number = error.fields.get("errno")
    if isinstance(error, FileDenied):
        number = number or errno.EACCES
        return PermissionError(number, os.strerror(number), file)
    number = number or errno.ENOENT
    if number in _OS:
        return _OS[number](number, os.strerror(number), file)
    return ToolError(error.message)


def no_nul(*texts: str | None) -> None:
    """Raises ValueError in the words of Python's own subprocess, which Inspect knows."""
    if any("\0" in text for text in texts if text is not None):
        raise ValueError("embedded null byte")
