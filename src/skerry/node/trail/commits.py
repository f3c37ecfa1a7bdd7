"""What the record of a sandbox says of its commits; their own streams have the rest."""

from __future__ import annotations

import msgspec

from skerry.node.ledger import Acknowledged, Did
from skerry.spec.layers import LayerManifest
from skerry.wire.http import ErrorBody


def acknowledged(commit_id: str, entry: Acknowledged) -> Did:
    """Returns that a commit was acknowledged."""
    return Did(
        "commit",
        msgspec.to_builtins(entry.body),
        bytes.fromhex(commit_id),
        result={"commit": commit_id, "freeze_seconds": entry.freeze_seconds},
        started=entry.time - entry.seconds,
        ended=entry.time,
    )


def packed(
    commit_id: str,
    entry: Acknowledged,
    layer: LayerManifest | None,
    error: ErrorBody | None,
    ended: float,
) -> Did:
    """Returns that a commit became a layer, or did not."""
    made = None if layer is None else {"name": layer.name, "digest": layer.digest}
    return Did(
        "commit.packed",
        {"commit": commit_id},
        result=made,
        error=error,
        started=entry.time,
        ended=ended,
    )
