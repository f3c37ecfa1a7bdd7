"""The routes to a node's workers."""

from __future__ import annotations

from typing import Final

from skerry.wire.route import BYTES, Route
from skerry.wire.workers import WorkerInfo

_ONE: Final = "/v1/workers/{worker}/{path}"
_TEXT: Final = "What the worker serves at this path; the answer is its own."

WORKER_ROUTES: Final[tuple[Route, ...]] = (
    Route("GET", "/v1/workers", "The node's workers.", answer=list[WorkerInfo]),
    Route("GET", _ONE, _TEXT, answer=BYTES),
    Route("POST", _ONE, _TEXT, BYTES, BYTES),
    Route("DELETE", _ONE, _TEXT, answer=BYTES),
)
