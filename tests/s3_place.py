"""Where tests keep objects: the options of a client for the S3 server of this run."""

from __future__ import annotations

import zlib
from pathlib import Path

from skerry.images.objects.s3_options import S3Options


def s3_options(server, directory: Path, *, endpoint: str = "", keys=None, **more) -> S3Options:
    """Returns options with the server's keys in files below `directory`."""
    keys = keys or server.keys
    references = {}
    for name, value in (("access_key", keys.access), ("secret_key", keys.secret)):
        path = Path(directory, f"{name}-{zlib.crc32(value.encode()):08x}")
        path.touch(mode=0o600)
        path.write_text(f"{value}\n")
        references[name] = f"file:{path}"
    return S3Options(endpoint=endpoint or server.endpoint, **references, **more)
