"""Whether a node's layer store works: a finding of `skerry doctor`."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from skerry.cli.findings import Check
from skerry.errors import SkerryError

if TYPE_CHECKING:
    from skerry.node.config import NodeConfig

PATIENCE_S = 3.0  # somebody waits for the answer
SLOW_MS = 100.0


def store_check(config: NodeConfig) -> Check:
    """A bucket: reached, and put, got, listed and deleted in; a directory: there, and to be written."""
    if not config.store:
        return _directory(config.store_dir)
    from skerry.images.objects.check import try_out
    from skerry.images.objects.s3 import S3Objects

    options = dataclasses.replace(
        config.s3,
        patience_s=min(PATIENCE_S, config.s3.patience_s),
        timeout_s=min(PATIENCE_S, config.s3.timeout_s),
    )
    try:
        found = try_out(S3Objects(config.store, options))
    except SkerryError as error:
        return Check("layer store", "missing", config.store, "no layer is found", error.message)
    told = f"{config.store}: a read takes {found.read_ms:.1f} ms, a write {found.write_ms:.1f} ms"
    if found.clock_is_off:
        return Check(
            "layer store", "warning", f"{told}; its clock is {found.clock_off_s:+.0f} s off",
            "requests are refused when it is off by minutes", "set the time of both (NTP)",
        )  # fmt: skip
    if found.read_ms > SLOW_MS:
        return Check(
            "layer store", "warning", told, "each first touch of a part of a layer waits that long",
            "a store nearer to the node, or layers that are warm in its cache",
        )  # fmt: skip
    return Check("layer store", "ok", told)


def _directory(path: str) -> Check:
    from skerry.images.objects.mounts import file_system, is_local

    there = path
    while not os.path.exists(there):
        there = os.path.dirname(there) or "/"
    if not (os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)):
        return Check(
            "layer store", "missing", path, "no layer can be kept there",
            f"{there} must be a directory that can be written to",
        )  # fmt: skip
    kind = file_system(there).kind
    told = path if there == path else f"{path}, to be made"
    shared = "" if is_local(kind) else ", which other hosts may share"
    return Check("layer store", "ok", f"{told}; on {kind}{shared}")
