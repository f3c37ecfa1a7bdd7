"""The routes of function calls."""

from __future__ import annotations

from typing import Final

from skerry.spec.function import CallSpec
from skerry.spec.function_result import CallResult, PoolInfo, Prewarm
from skerry.wire.functions import CallEvent, CallFeed, CallOpen
from skerry.wire.route import Route

FUNCTION_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "POST",
        "/v1/functions/call",
        "Calls a function; a client that goes ends it.",
        CallSpec,
        CallResult,
    ),
    Route(
        "GET",
        "/v1/functions/attach",
        "The same with input, output and files streamed both ways. First message: CallOpen.",
        socket=(CallOpen, CallFeed, CallEvent),
    ),
    Route(
        "POST",
        "/v1/functions/prewarm",
        "Keeps containers of an environment ready; answers when they are, or with the error.",
        Prewarm,
        PoolInfo,
    ),
    Route("GET", "/v1/functions/pools", "How the pools stand.", answer=list[PoolInfo]),
)
