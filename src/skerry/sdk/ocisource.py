"""Where an image of another system is, as users write it.

| written | is |
|---|---|
| `docker://HOST[:PORT]/NAME[:TAG][@DIGEST]` | an image of a registry, which the node fetches |
| `oci:DIR[:TAG]` | an OCI layout in a local directory |
| `oci-archive:FILE[:TAG]` | such a layout as a tar |
| `docker-archive:FILE[:NAME]` | what `docker save` wrote |
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from skerry.errors import InvalidRequest

REGISTRY = "docker://"
_LOCAL = ("oci:", "oci-archive:", "docker-archive:")


class OciSource(NamedTuple):
    """Either a reference in a registry, or a local path with the image's tag in it."""

    reference: str | None = None
    path: Path = Path()
    tag: str | None = None


def is_oci_source(text: str) -> bool:
    """Says whether a text is one of those forms, not simply a path."""
    return text.startswith((REGISTRY, *_LOCAL))


def parse_oci_source(text: str) -> OciSource:
    """Returns what a text means; raises InvalidRequest if it is no form, or nothing is there."""
    if text.startswith(REGISTRY):
        return OciSource(reference=text.removeprefix(REGISTRY))
    for scheme in _LOCAL:
        if text.startswith(scheme):
            return _local(text.removeprefix(scheme), text)
    raise InvalidRequest(
        f"{text[:200]!r} names no image: write docker://HOST/NAME:TAG, oci:DIR[:TAG], "
        "oci-archive:FILE[:TAG] or docker-archive:FILE"
    )


def _local(rest: str, text: str) -> OciSource:
    """Takes the longest path that is there: both paths and tags may hold colons."""
    parts = rest.split(":")
    for end in range(len(parts), 0, -1):
        path, tag = ":".join(parts[:end]), ":".join(parts[end:])
        if path and os.path.exists(path):
            return OciSource(path=Path(path), tag=tag or None)
    raise InvalidRequest(f"{text[:200]!r}: there is no file or directory {parts[0]!r} here")


def read_auth(path: str | os.PathLike[str] | None) -> str | None:
    """Returns the content of an auth file; raises InvalidRequest if it cannot be read."""
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(1 << 20)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InvalidRequest(f"authfile: {os.fspath(path)} cannot be read: {reason}") from error
