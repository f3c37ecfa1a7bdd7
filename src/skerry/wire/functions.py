"""Function calls over HTTP: with long input or output over a WebSocket, in constant memory.

POST functions/call takes a CallSpec and answers with a CallResult: input, output and files stand in
them. GET functions/attach is for more than fits there. Its first message is CallOpen; then the client
sends what that announces, in CallFeed: pieces of a tar that is unpacked at /call, and an `end`; then
pieces of standard input, and an `end`. It sends WINDOW_BYTES beyond what the node has `taken` at most.
The node says `taken` first when the call has a place and begins to take its input: what was sent before
is lost with a call that is refused.
The node sends CallEvent: output as it comes, then a tar of the files that were asked for, then the
result or the error. A client that closes the connection ends the call.
"""

from __future__ import annotations

from typing import Final

import msgspec

from skerry.spec.function import CallSpec
from skerry.spec.function_result import CallResult
from skerry.wire.http import ErrorBody

WINDOW_BYTES: Final = 1 << 20
PIECE_BYTES: Final = 1 << 18  # of one message


class CallOpen(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A call, and what of its input follows. Streamed input replaces the spec's `stdin`."""

    call: CallSpec
    files: bool = False
    stdin: bool = False


class CallFeed(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A piece of the files' tar or of standard input, or the end of it; exactly one is set."""

    data: bytes = b""
    end: bool = False


class CallEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """Exactly one field is set. With `result` or `error` it is the last.

    The result's stdout and stderr are empty, and so are its files: they were streamed.
    """

    stdout: bytes | None = None
    stderr: bytes | None = None
    files: bytes | None = None  # a piece of a tar, names relative to /call
    taken: int | None = None  # bytes of the input, in all
    result: CallResult | None = None
    error: ErrorBody | None = None
