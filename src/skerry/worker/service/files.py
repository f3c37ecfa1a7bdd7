"""Files that are there as a whole or not at all."""

from __future__ import annotations

import contextlib
from pathlib import Path

from skerry.errors import StorageFailed


def put(path: Path, data: bytes) -> None:
    """Writes a file, with the directory above it; StorageFailed, and then what was there is unchanged.

    It survives the death of this process, not of the host.
    """
    partial = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(data)
        partial.chmod(0o600)
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise StorageFailed(f"{path}: {error.strerror}") from error
