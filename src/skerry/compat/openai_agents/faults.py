"""Skerry's errors in the words of the SDK: whose fault it is, and whether trying again may help."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from agents.sandbox.errors import (
    ExecTransportError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceStartError,
)

from skerry.compat.outcome import is_of_platform
from skerry.errors import NotFound, SkerryError


def context(error: SkerryError) -> dict[str, object]:
    """Returns what the SDK's error says of ours."""
    return {
        "backend": "skerry",
        "error": error.code,
        "fault": str(error.fault),
        "detail": str(error),
    }


def lost(error: SkerryError, command: Sequence[str | Path]) -> ExecTransportError:
    """Returns the error of a command of which there is no result: that ends the run."""
    return ExecTransportError(
        command=command, context=context(error), cause=error, retryable=error.retryable
    )


@contextlib.contextmanager
def starting(root: Path, *, new: bool = False) -> Iterator[None]:
    """A fault of the platform in the block is WorkspaceStartError; what the caller did stays.

    What is not found is the caller's where a sandbox is `new`: an image; else it is the sandbox itself.
    """
    try:
        yield
    except SkerryError as error:
        if not is_of_platform(error) or (new and isinstance(error, NotFound)):
            raise
        raise WorkspaceStartError(
            path=root, context=context(error), cause=error, retryable=error.retryable
        ) from error


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """A failure in the block is one of reading the workspace."""
    try:
        yield
    except SkerryError as error:
        if isinstance(error, NotFound) and not is_of_platform(error):
            raise WorkspaceReadNotFoundError(path=path, cause=error) from error
        raise WorkspaceArchiveReadError(
            path=path, context=context(error), cause=error, retryable=error.retryable
        ) from error


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """A failure in the block is one of writing to the workspace."""
    try:
        yield
    except SkerryError as error:
        raise WorkspaceArchiveWriteError(
            path=path, context=context(error), cause=error, retryable=error.retryable
        ) from error
